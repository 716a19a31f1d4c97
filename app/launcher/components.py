"""The component processes of a run on one machine, according to the recipe's `launch`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from headrace.app.launcher import fork_imports
from headrace.infra.process.child_life import Child
from headrace.infra.process.child_process import PYTHON
from headrace.infra.recipe.kinds import list_kinds
from headrace.infra.recipe.pools import CURATE, ROLLOUT, count_pools
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.topics import policy_of, variant_of

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--max-restarts", "0", "--nproc-per-node")
"""Starts the processes of one trainer on this machine; when one dies all end, and the supervisor restarts them."""


def list_components(
    recipe: Recipe,
    address: str,
    logs: Path,
    counts: Mapping[str, int] | None = None,
    regions: Mapping[str, str] = MappingProxyType({}),
) -> list[Child]:
    """Return the component processes of a run on one machine, according to the recipe's `launch`.

    What needs no torch comes first, as it is forked before torch is imported. `counts` are the numbers of processes by
    pool; without them the recipe's hold. `regions` are the addresses of the run in the Kafka of each region.
    """
    counts = counts or count_pools(recipe)

    def make_child(
        name: str, *words: str, imports: Sequence[str], torch_processes: int = 0, address: str = address
    ) -> Child:
        together: list[str] = []
        if torch_processes > 1:  # without a folder for it, torchrun leaves one in /tmp
            folder = ("--log-dir", str(logs / "torchrun"), "--no-python", "--")
            together = [*PYTHON, *TORCHRUN, str(torch_processes), *folder]
        command = [*together, *PYTHON, "-m", "headrace", *words, "--run", address]
        return Child(name, command, torch_processes, imports, is_region_part="--region" in words)

    children = [make_child("feed", "feed", imports=fork_imports.FEED)] if recipe.launch.feeder else []
    children += [
        make_child(
            f"{CURATE}{policy_variant}-{n}",
            "curate",
            *_name_options(policy_variant),
            "--slot",
            str(n),
            imports=fork_imports.CURATE,
        )
        for policy_variant in recipe.policy_variants
        for n in range(counts.get(f"{CURATE}{policy_variant}", 1))  # a shadow has one
    ]
    if recipe.evaluate.every:
        children.append(make_child("evaluate", "evaluate", imports=fork_imports.EVALUATE))
    for region in regions:
        mirrored = ("--folder", str(logs.parent / "regions" / region / "mirror"))
        named = ("--region", region)
        children.append(make_child(f"mirror-{region}", "mirror", *named, *mirrored, imports=()))
        children.append(make_child(f"relay-{region}", "relay", *named, imports=()))
    for policy_variant in recipe.policy_variants:
        trainer, words = recipe.trainer_of(policy_variant), ("train", *_name_options(policy_variant))
        imports = fork_imports.list_trainer_imports(trainer)
        if trainer.processes:
            children.append(
                make_child(f"train-{policy_variant}", *words, imports=imports, torch_processes=trainer.processes)
            )
    children += [
        make_child(
            worker.name,
            *worker.list_words(),
            imports=fork_imports.list_worker_imports(recipe.rollout_of(worker.kind)),
            torch_processes=1,
            address=regions.get(worker.region, address),
        )
        for worker in (*_list_workers(recipe, counts), *_list_region_workers(recipe, regions))
    ]
    return children


class _Worker(NamedTuple):
    name: str
    workflow: str
    kind: str
    region: str = ""

    def list_words(self) -> tuple[str, ...]:
        """Return the command line, after the program's name."""
        options = (("--workflow", self.workflow), ("--region", self.region), ("--name", self.name))
        given = [word for option in (*options, ("--kind", self.kind)) if option[1] for word in option]
        return "rollout", *given


def _list_workers(recipe: Recipe, counts: Mapping[str, int]) -> Iterator[_Worker]:
    """Yield the workers at home; evaluations that are pinned to another kind than their workflow need one more."""
    for workflow in recipe.workflows:
        name, (kind, *others) = f"{ROLLOUT}{workflow}", list_kinds(recipe, workflow)
        for n in range(counts[name]):
            yield _Worker(f"{name}-{n}", workflow, kind)
        for other in others if recipe.launch.workers else ():
            yield _Worker(f"{name}-evaluations", workflow, other)


def _list_region_workers(recipe: Recipe, regions: Iterable[str]) -> Iterator[_Worker]:
    for region in regions:
        for workflow in recipe.workflows:
            for n in range(recipe.regions[region].workers):
                yield _Worker(f"{ROLLOUT}{workflow}-{region}-{n}", workflow, recipe.kind_of(workflow), region)


def list_parts(recipe: Recipe, address: str, regions: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the command-line words (without `headrace`) that start each part of a run once.

    `regions` are the addresses of the run in the Kafka of each region.
    """
    trained = [(policy_variant, _name_options(policy_variant)) for policy_variant in recipe.policy_variants]
    at_home = [
        ("feed",),
        *(("curate", *options) for _, options in trained),
        *([("evaluate",)] if recipe.evaluate.every else []),
        *(("train", *options) for policy_variant, options in trained if recipe.trainer_of(policy_variant).processes),
        *(
            _Worker("", workflow, kind).list_words()
            for workflow in recipe.workflows
            for kind in list_kinds(recipe, workflow)
        ),
        *((part, "--region", region) for region in regions for part in ("mirror", "relay")),
    ]
    away = [
        (*_Worker("", workflow, recipe.kind_of(workflow), region).list_words(), "--run", there)
        for region, there in regions.items()
        for workflow in recipe.workflows
    ]
    return [*((*words, "--run", address) for words in at_home), *away]


def _name_options(policy_variant: str) -> list[str]:
    """Return how the command line names a policy or a shadow."""
    variant = variant_of(policy_variant)
    return ["--policy", policy_of(policy_variant), *(["--variant", variant] if variant else [])]
