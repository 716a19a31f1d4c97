"""The component processes of a run on one machine, according to the recipe's `launch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from headrace.app.launcher import fork_imports
from headrace.infra.process.child_life import Child
from headrace.infra.process.child_process import PYTHON
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
        return Child(name, command, torch_processes, imports)

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
        children.append(make_child(f"mirror-{region}", "mirror", "--region", region, *mirrored, imports=()))
        children.append(make_child(f"relay-{region}", "relay", "--region", region, imports=()))
    for policy_variant in recipe.policy_variants:
        trainer, words = recipe.trainer_of(policy_variant), ("train", *_name_options(policy_variant))
        imports = fork_imports.list_trainer_imports(trainer)
        if trainer.processes:
            children.append(
                make_child(f"train-{policy_variant}", *words, imports=imports, torch_processes=trainer.processes)
            )
    imports = fork_imports.list_worker_imports(recipe)
    children += [
        make_child(name, "rollout", "--workflow", workflow, "--name", name, imports=imports, torch_processes=1)
        for workflow in recipe.workflows
        for name in (f"{ROLLOUT}{workflow}-{n}" for n in range(counts[f"{ROLLOUT}{workflow}"]))
    ]
    children += [
        make_child(name, *words, imports=imports, torch_processes=1, address=there)
        for region, there in regions.items()
        for name, words in _list_region_workers(recipe, region)
    ]
    return children


def _list_region_workers(recipe: Recipe, region: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and command-line words of each worker that is started in a region."""
    for workflow in recipe.workflows:
        for n in range(recipe.regions[region].workers):
            name = f"{ROLLOUT}{workflow}-{region}-{n}"
            yield name, ("rollout", "--workflow", workflow, "--region", region, "--name", name)


def parts_of(recipe: Recipe) -> list[tuple[str, ...]]:
    """Return the command-line words (without `headrace` and `--run`) that start each part of a run once."""
    trained = [(policy_variant, _name_options(policy_variant)) for policy_variant in recipe.policy_variants]
    return [
        ("feed",),
        *(("curate", *options) for _, options in trained),
        *([("evaluate",)] if recipe.evaluate.every else []),
        *(("train", *options) for policy_variant, options in trained if recipe.trainer_of(policy_variant).processes),
        *(("rollout", "--workflow", workflow) for workflow in recipe.workflows),
    ]


def _name_options(policy_variant: str) -> list[str]:
    """Return how the command line names a policy or a shadow."""
    variant = variant_of(policy_variant)
    return ["--policy", policy_of(policy_variant), *(["--variant", variant] if variant else [])]
