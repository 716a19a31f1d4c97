"""The table of all checks before a start, read from top to bottom; `up`, `try`, `compare` and `doctor` walk it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Flag, auto

from headrace.envs.identity import identify_environment
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.errors import HeadraceError
from headrace.infra.inflection import inflect
from headrace.infra.recipe.settings import Recipe
from headrace.ops.preflight import devices, machine, room
from headrace.ops.preflight import recipe as parts
from headrace.ops.preflight.contract import Asked, Fault, Finding, refuse
from headrace.schemas.records import UsedEnvironment


class Needs(Flag):
    """What a check of a recipe needs besides the recipe."""

    NOTHING = 0
    MACHINE = auto()
    """The machine where the processes start."""
    RUN = auto()
    """A run, with a feeder and servers."""


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table."""

    name: str
    find: Callable[[Asked], list[Fault]]
    needs: Needs


CHECKS = (
    Check("devices", devices.examine_devices, Needs.MACHINE),
    Check("model files", parts.examine_model_files, Needs.MACHINE),
    Check("engine", parts.examine_engine, Needs.NOTHING),
    Check("models", parts.examine_models, Needs.NOTHING),
    Check("workflows", parts.examine_workflows, Needs.NOTHING),
    Check("feed", parts.examine_feed, Needs.RUN),  # uses the environments that `workflows` builds, as the next one
    Check("warm starts", parts.examine_warm_starts, Needs.RUN),
    Check("algorithms", parts.examine_algorithms, Needs.NOTHING),
    Check("own engine", parts.examine_own_engine, Needs.MACHINE),
    Check("boxes", parts.examine_boxes, Needs.MACHINE),
    Check("partitions", parts.examine_partitions, Needs.MACHINE | Needs.RUN),
    Check("memory", room.examine_memory, Needs.MACHINE),
    Check("disk", room.examine_disk, Needs.MACHINE | Needs.RUN),
    Check("temporary files", parts.examine_temporary_folder, Needs.MACHINE),
    Check("kafka client", parts.examine_client, Needs.MACHINE | Needs.RUN),
)
"""The checks of a recipe, in the order in which their faults are listed."""
MACHINE_CHECKS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("python", machine.check_python),
    ("packages", machine.check_packages),
    ("java", machine.check_java),
    ("kafka jars", machine.check_kafka_jars),
    ("object store", machine.check_object_store),
    ("ports", machine.check_ports),
    ("memory", machine.check_memory),
    ("disk", machine.check_disk),
    ("data folder", machine.check_data_folder),
    ("file locks", machine.check_file_locks),
    ("cache folder", machine.check_cache_folder),
    ("temporary folder", machine.check_temporary_folder),
    ("sandbox", machine.check_boxes),
)
"""The checks of this machine, without a recipe."""


def examine_machine() -> Iterator[Finding]:
    """Yield what `headrace doctor` shows: one finding after the other."""
    for name, check in MACHINE_CHECKS:
        try:
            yield check()
        except (HeadraceError, OSError) as error:  # OSError: the working directory may be deleted
            yield Finding(name, ok=False, detail=str(error))


def build_check_input(recipe: Recipe, folder: DataFolder) -> Asked:
    """Return the input of the checks for a run in a data folder. Raises HeadraceError if its notes cannot be read."""
    notes = folder.read()
    is_embedded = not (recipe.kafka.bootstrap and recipe.store.endpoint)
    return Asked(recipe, folder.root if is_embedded else None, notes is not None and notes.run == recipe.name)


def check_names(recipe: Recipe) -> tuple[UsedEnvironment, ...]:
    """Check that all names of a recipe exist, from algorithms to environments, without looking at this machine.

    Return its environments and their data. Raises RecipeUnfit with all faults, and with the names that exist.
    """
    asked = Asked(recipe)
    refuse([fault for check in CHECKS if not check.needs & Needs.MACHINE for fault in check.find(asked)])
    return list_environments(asked)


def list_environments(asked: Asked) -> tuple[UsedEnvironment, ...]:
    """Return the environments that the checks have built, and the data that these have read."""
    workflows = asked.recipe.workflows
    return tuple(
        identify_environment(name, environment, workflows[name].env) for name, environment in asked.environments.items()
    )


def examine(asked: Asked) -> list[Fault]:
    """Return all faults and doubts about a recipe that is to run on this machine."""
    return [fault for check in CHECKS for fault in check.find(asked)]


def examine_for_trial(recipe: Recipe, *, has_answers: bool = False) -> list[Fault]:
    """Return all faults and doubts about a recipe for `headrace try`, where no feeder and no servers run.

    Without answers that are given, a warm start without examples is a doubt: `headrace up` would refuse it.
    """
    asked = Asked(_with_one_process(recipe))
    found = [fault for check in CHECKS if not check.needs & Needs.RUN for fault in check.find(asked)]
    refused = [] if has_answers else parts.examine_warm_starts(asked)
    return found + [Fault(f"`headrace up` refuses this recipe: {one.sentence}", is_doubt=True) for one in refused]


def _with_one_process(recipe: Recipe) -> Recipe:
    """Return a recipe whose trainers are one process each, as in a trial."""
    one = {"processes": 1, "tensor_parallel": 1}
    trainer, changed = recipe.trainer.model_copy(update=one), {}
    for what in ("policies", "shadows"):
        parts_of = getattr(recipe, what).items()
        changed[what] = {name: part.model_copy(update={"trainer": part.trainer | one}) for name, part in parts_of}
    return recipe.model_copy(update={"trainer": trainer, **changed})


def run_checks(asked: Asked) -> Iterator[Finding]:
    """Yield what `headrace doctor RECIPE` shows: every check, with its faults."""
    for check in CHECKS:
        faults = check.find(asked)
        lines = [f"{'maybe: ' * fault.is_doubt}{fault.sentence}" for fault in faults]
        if check.find is parts.examine_workflows:
            lines = [*_describe_sizes(asked), *lines]
        detail = f"\n{' ' * 20}".join(lines)
        yield Finding(check.name, all(fault.is_doubt for fault in faults), detail, is_note=bool(faults))


def _describe_sizes(asked: Asked) -> Iterator[str]:
    for name, environment in asked.environments.items():
        training, held_out = environment.size("train"), environment.size("held_out")
        found = "any number of problems" if training is None else f"{training:,} {inflect(training, 'problem')}"
        yield (f"{name}: {found} for training, {'any number' if held_out is None else f'{held_out:,}'} held out")
