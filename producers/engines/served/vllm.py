"""vLLM servers: the command that starts one, and its interface."""

from __future__ import annotations

import json
import secrets

from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.weights.files import ADAPTER_CONFIG
from headrace.producers.engines.served.adapter_policy import MOST_IN_BATCH
from headrace.producers.engines.served.generation_server import ServedWeights
from headrace.producers.engines.served.server_settings import ServerKind
from headrace.producers.engines.served.vllm_adapters import VllmAdapters, choose_rank
from headrace.producers.engines.served.vllm_api import LOGPROBS_MODE, VllmApi


def build_words(weights: ServedWeights, port: int, context: int) -> list[str]:
    """Return what comes after `python` to start a server; see `ServerKind.build_words`."""
    arguments = {
        "--host": HOST,
        "--port": port,
        "--max-model-len": context,
        "--logprobs-mode": LOGPROBS_MODE,
        # With several API processes, an order to end a request could reach a process that does not have it.
        "--api-server-count": 1,
        # Otherwise vLLM would sample by the defaults in the model's folder.
        "--generation-config": "vllm",
        # Otherwise all servers have seed 0, and two servers would generate the same trajectories for a group.
        "--seed": secrets.randbelow(2**31),
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    if weights.base is not None:
        adapter = json.loads((weights.folder / ADAPTER_CONFIG).read_text())
        words += ["--enable-lora", "--max-lora-rank", str(choose_rank(adapter["r"])), "--max-loras", str(MOST_IN_BATCH)]
    model = str(weights.base or weights.folder)
    return ["-m", "vllm.entrypoints.cli.main", "serve", model, "--disable-uvicorn-access-log", *words]


VLLM = ServerKind(
    engine="vllm",
    what="vLLM",
    build_words=build_words,
    build_api=VllmApi,
    build_adapter_api=VllmAdapters,
    # Only development mode accepts weights. The second variable stops vLLM's usage reports.
    environment={
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    },
    version_path="/version",
    logprob_convention="masked",
    # Without a GPU, vLLM keeps a packed copy of the output layer, and renews it only when it reads that layer itself.
    writes_ties=True,
    sockets_variable="VLLM_RPC_BASE_PATH",
)
