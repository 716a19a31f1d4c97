"""Two colleagues run the same recipe on one Kafka, from two data folders: the second is told, the first goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.app.launcher.beginning import RunOfAnother, begin_or_join
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.up_lease import Holder, UpLease


@pytest.fixture
def recipe(bootstrap: str, run_name: str) -> Recipe:
    return load_recipe("arithmetic", [f"name={run_name}", f'kafka.bootstrap="{bootstrap}"'])


@pytest.fixture
def claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Recipe, str], Servers]]:
    """Servers of a recipe with the data folder of a colleague; none is started."""
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", "access")
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", "secret")
    made: list[Servers] = []

    def servers(recipe: Recipe, colleague: str) -> Servers:
        made.append(Servers(recipe.kafka, recipe.store, DataFolder(tmp_path / colleague), lambda _: None))
        made[-1].claim()
        return made[-1]

    yield servers
    for each in made:
        each.stop()


def test_a_run_that_another_up_has_just_begun_is_refused_before_any_worker_of_it_runs(
    recipe: Recipe, claimed: Callable[[Recipe, str], Servers]
) -> None:
    shared = recipe.model_copy(update={"store": recipe.store.model_copy(update={"endpoint": "127.0.0.1:1"})})

    def begin_from(folder: str, attempt: int, lease: UpLease) -> None:
        servers = claimed(shared, f"{folder}-{attempt}")
        begin_or_join(servers, shared, lambda _: None, new_recipe=False, hold=lease.take)

    def lease_of(folder: str) -> UpLease:
        return UpLease(Holder(f"host-of-{folder}", folder, 1_700_000_000_000))

    with lease_of("hers") as hers:
        begin_from("hers", 0, hers)
        with (
            lease_of("his") as his,
            pytest.raises(RunOfAnother, match=": on host-of-hers, in hers, since 2023-11-14 22:13:20 UTC"),
        ):
            begin_from("his", 0, his)
        with lease_of("hers") as again:  # of one folder, a lock sees to it that the other is dead
            begin_from("hers", 1, again)
    with lease_of("his") as his:
        begin_from("his", 1, his)
