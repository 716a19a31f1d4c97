"""How each engine's servers run without a GPU, for a model of 100,000 parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
ARGUMENTS: Mapping[str, Sequence[str]] = {
    "sglang": (
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--sleep-on-idle",
        "--max-total-tokens",
        "65536",
        "--max-running-requests",
        "256",
    ),
    "vllm": ("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "256"),
}
ADAPTERS: Mapping[str, Sequence[str]] = {"sglang": ("--lora-backend", "torch_native"), "vllm": ()}
"""Further ones for adapters."""
STARTED_BY: Mapping[str, str] = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.cli.main"}
"""The module that is the main process of a server."""
