"""The fingerprint of a machine's numerics, and the dtype in which a device computes."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from headrace.infra.recipe.plug_in_sources import SHOWN_DIGITS, find_loaded_source, top_module_of, trainer_plug_ins
from headrace.infra.recipe.settings import TrainerSettings


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which a device evaluates the published values."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def fingerprint_numerics(device_name: str) -> dict[str, str]:
    """Return all that bit-equality depends on besides batch and settings; versions are comparable only if it is equal.

    `device_name` is the recipe's name of the device. A device that this machine lacks is reported as missing.
    """
    device = torch.device(device_name)
    build = {line.strip() for line in torch.__config__.show().splitlines()}
    found = {
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "mkl": next((line for line in build if "Math Kernel Library" in line), "- none").removeprefix("- "),
        "onednn": next((line for line in build if "MKL-DNN" in line), "- none").removeprefix("- "),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu": _cpu_name(),
        "threads": str(torch.get_num_threads()),
        "device": device.type,
        "compute_dtype": str(compute_dtype(device)).removeprefix("torch."),
    }
    if device.type == "cuda":
        found["device"] = (
            torch.cuda.get_device_name(device) if torch.cuda.is_available() else f"{device_name} is missing"
        )
        found["cuda"] = str(torch.version.cuda)
    return found


def fingerprint_plug_ins(settings: TrainerSettings) -> dict[str, str]:
    """Return the fingerprint parts for plug-ins that compute loss or advantage: their source hashes here."""
    tops = dict.fromkeys(map(top_module_of, trainer_plug_ins(settings)))
    return {
        f"plug-in {top}": source.hash[:SHOWN_DIGITS] for top in tops if (source := find_loaded_source(top)) is not None
    }


def list_differences(expected: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return `part: expected -> here` for every part in which two fingerprints differ."""
    return [
        f"{part}: {expected.get(part, 'none')} -> {here.get(part, 'none')}"
        for part in dict.fromkeys((*expected, *here))
        if expected.get(part) != here.get(part)
    ]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
