"""Whether this machine has the devices that a recipe names. Torch is asked only if a device is not the CPU.

Torch is asked in a process of its own: what it sets up on a GPU would stay there until the process ends.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headrace.infra.process.child_process import PYTHON
from headrace.infra.recipe.kinds import list_started_kinds
from headrace.infra.recipe.settings import Recipe
from headrace.ops.preflight.contract import Asked, Fault

CPU = "cpu"
TORCH = "torch"
"""The engine that computes on `rollout.device`."""
PROBE_LIMIT_S = 60.0
"""Importing torch takes seconds, and many seconds from a cold disk."""
PROBE_PROGRAM = """
import json, sys
import torch

def ask(name):
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        if device.type != "cuda":
            return {}
        free, total = torch.cuda.mem_get_info(device)
        return {"free": free, "total": total}
    except Exception as error:
        return {"error": str(error).splitlines()[0]}

print(json.dumps({"gpus": torch.cuda.device_count(), "devices": {name: ask(name) for name in sys.argv[1:]}}))
"""


@dataclass(frozen=True, slots=True)
class WantedDevice:
    """A device that a recipe names."""

    key: str
    """Key of the recipe."""
    name: str
    processes: int = 1
    """Processes of a trainer; on CUDA each needs a GPU of its own."""

    @property
    def is_cuda(self) -> bool:
        """Whether it is a CUDA device."""
        return self.name.partition(":")[0] == "cuda"


@dataclass(frozen=True, slots=True)
class SeenDevice:
    """Torch's answer about a device."""

    error: str = ""
    free: int = 0
    """Free bytes of a GPU."""
    total: int = 0


@dataclass(frozen=True, slots=True)
class SeenDevices:
    """Torch's answers about this machine."""

    gpus: int = 0
    devices: Mapping[str, SeenDevice] | None = None
    """Devices by name; None if torch gave no answer."""
    error: str = ""
    """Why torch gave no answer."""


def examine_devices(asked: Asked) -> list[Fault]:
    """Return the faults of the devices that the processes of `headrace up` use here."""
    wanted = find_devices(asked.recipe)
    return find_device_faults(wanted, probe_devices(wanted)) if wanted else []


def find_devices(recipe: Recipe) -> tuple[WantedDevice, ...]:
    """Return the devices, other than the CPU, that the processes of `headrace up` use."""
    found = [
        WantedDevice(f"rollout.device{f' of kind {kind}' if kind else ''}", rollout.device)
        for kind in list_started_kinds(recipe)
        if (rollout := recipe.rollout_of(kind)).engine.use == TORCH
    ]
    for policy_variant in recipe.policy_variants:
        trainer = recipe.trainer_of(policy_variant)
        if trainer.processes:
            found.append(WantedDevice(f"trainer.device of {policy_variant}", trainer.device, trainer.processes))
    return tuple(one for one in found if one.name != CPU)


def probe_devices(wanted: Sequence[WantedDevice]) -> SeenDevices:
    """Ask torch for devices, in a process of its own; the answer is cached in this process."""
    return _probe(tuple(sorted({one.name for one in wanted})))


@lru_cache(maxsize=8)
def _probe(names: tuple[str, ...]) -> SeenDevices:
    try:
        done = subprocess.run(
            [*PYTHON, "-c", PROBE_PROGRAM, *names], check=False, capture_output=True, text=True, timeout=PROBE_LIMIT_S
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return SeenDevices(error=f"torch did not answer within {PROBE_LIMIT_S:.0f} s")
    except (ValueError, IndexError):
        return SeenDevices(error=(done.stderr.strip().splitlines() or ["torch printed nothing"])[-1])
    return SeenDevices(found["gpus"], {name: SeenDevice(**one) for name, one in found["devices"].items()})


def find_device_faults(wanted: Sequence[WantedDevice], seen: SeenDevices) -> list[Fault]:
    """Return the faults of the devices that a recipe names, according to torch."""
    if seen.devices is None:
        names = " and ".join(dict.fromkeys(one.name for one in wanted))
        return [Fault(f"it is unknown whether torch can use {names} here: {seen.error}", is_doubt=True)]
    faults = []
    if not seen.gpus and (in_vain := [one for one in wanted if one.is_cuda]):
        keys = " and ".join(f'{one.key} is "{one.name}"' for one in in_vain)
        why = seen.devices[in_vain[0].name].error.partition(". ")[0]
        faults.append(Fault(f'{keys}, but torch finds no GPU here ({why}): set "cpu", or use a machine with a GPU'))
    for one in wanted:
        device = seen.devices[one.name]
        if one.is_cuda and not seen.gpus:
            continue
        if device.error and one.is_cuda:
            known = f"cuda:0 to cuda:{seen.gpus - 1}" if seen.gpus > 1 else "cuda:0"
            faults.append(
                Fault(
                    f'{one.key} is "{one.name}", but torch cannot use it ({device.error}): set a GPU '
                    f"that torch finds here, {known}"
                )
            )
        elif device.error:
            known = 'set "cpu", "cuda", or a GPU by its number, as in "cuda:1"'
            faults.append(Fault(f'{one.key} is "{one.name}": {device.error}; {known}'))
        elif one.is_cuda and one.processes > seen.gpus:
            faults.append(
                Fault(
                    f'{one.key} is "{one.name}", so each of the {one.processes} processes (trainer.processes) needs '
                    f"a GPU of its own, but torch finds {seen.gpus} here: set trainer.processes to {seen.gpus} or less"
                )
            )
    return faults
