"""SGLang servers: the command that starts one, and its interface."""

from __future__ import annotations

import json

from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.weights.files import ADAPTER_CONFIG
from headrace.producers.engines.served.adapter_policy import MOST_IN_BATCH
from headrace.producers.engines.served.generation_server import ServedWeights
from headrace.producers.engines.served.server_settings import ServerKind
from headrace.producers.engines.served.sglang_adapters import SGLangAdapters
from headrace.producers.engines.served.sglang_api import SGLangApi
from headrace.producers.engines.served.sglang_experts import RETURN_EXPERTS, SGLangExperts

RESERVED = 6
"""Tokens of its context that SGLang does not give to a prompt; so its context is set longer by this number."""


def build_words(weights: ServedWeights, port: int, context: int) -> list[str]:
    """Return what comes after `python` to start a server; see `ServerKind.build_words`."""
    arguments = {
        "--model-path": weights.base or weights.folder,
        "--weight-version": weights.version,
        "--host": HOST,
        "--port": port,
        "--context-length": context + RESERVED,
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    if weights.base is not None:
        adapter = json.loads((weights.folder / ADAPTER_CONFIG).read_text())
        targets = sorted({str(name).rpartition(".")[2] for name in adapter["target_modules"]})
        words += ["--enable-lora", "--max-lora-rank", str(adapter["r"]), "--max-loras-per-batch", str(MOST_IN_BATCH)]
        words += ["--lora-target-modules", *targets]
    # Its own warm-up asks in English, which some tokenizers cannot encode; `is_ready` asks for one token instead.
    return ["-m", "sglang.launch_server", "--skip-server-warmup", *words]


SGLANG = ServerKind(
    engine="sglang",
    what="SGLang",
    build_words=build_words,
    build_api=SGLangApi,
    build_adapter_api=SGLangAdapters,
    build_experts_api=SGLangExperts,
    experts_words=(RETURN_EXPERTS,),
    # SGLang gives a mixture of experts an untied output layer, and leaves it unset if the files lack it.
    writes_ties=True,
    environment={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
    version_path="/server_info",
)
