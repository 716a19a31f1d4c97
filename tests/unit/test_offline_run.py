"""What a run over an archive tells at its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe

from headrace.infra.archive.reading import Archive
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.errors import UsageError
from headrace.ops.cleaning import clean_folder
from headrace.ops.offline import offline_run
from headrace.ops.offline.archived_recipe import read_newest_recipe
from headrace.ops.offline.held_out import Measured
from headrace.ops.offline.offline_run import (
    CuratedStep,
    OfflineRequest,
    TrainedStep,
    _build_summary,
    _claim_folder,
    _evaluate,
    _WallClock,
    run_offline,
)

RECIPE = sums_recipe()
CURATED = CuratedStep(read=40, kept=30, again=0, dropped={"zero_variance": 9}, dead={"undecodable": 1})
NOTHING_LOST: dict[str, dict[str, int]] = {"evicted": {}, "unusable": {}, "replays_lost": {}}


def trained(**lost: dict[str, int]) -> TrainedStep:
    return TrainedStep(versions=[1, 2], seconds=[0.0, 1.0, 2.5], weights_hash="abc", **{**NOTHING_LOST, **lost})


def test_every_group_concludes_once_and_no_replay_counts_as_a_group_that_was_discarded() -> None:
    found = trained(
        evicted={"expired": 9, "missing": 2},
        unusable={"unusable": 3},
        replays_lost={"expired": 5, "missing": 2, "unusable": 2},
    )
    batches = [([0] * 8, 32), ([0] * 6 + [1, 2], 30)]
    told = _build_summary(RECIPE, "solver", (replace(CURATED, again=18), found, []), batches).groups
    assert told.discarded == {"zero_variance": 9, "expired": 4, "unusable": 1, "run_end": 30 - 14 - 5}
    assert told.trained + sum(told.discarded.values()) + told.dead == told.issued
    assert (told.trained, told.replays, told.replayed) == (14, 18, 2)


def test_trajectories_are_those_that_were_trained_on() -> None:
    told = _build_summary(RECIPE, "solver", (CURATED, trained(), []), [([0] * 4, 16), ([0] * 4, 13)])
    block = told.policies["solver"]
    assert block.trajectories == 29
    assert block.progress == [[0, 0, 0.0], [1, 16, 1.0], [2, 29, 2.5]]


def test_a_recipe_with_a_selector_is_refused_with_its_name_and_settings(tmp_path: Path) -> None:
    recipe = sums_recipe(feed={"selector": {"use": "greso", "p_easy": 0.5}})
    with pytest.raises(UsageError, match=r"feed\.selector is greso p_easy=0\.5, but an archive has no tasks to choose"):
        run_offline(OfflineRequest(recipe, str(tmp_path / "nosuch"), tmp_path / "data"))


def test_an_archive_that_is_not_there_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run_offline(OfflineRequest(RECIPE, str(tmp_path / "nosuch"), tmp_path / "data"))
    assert not (tmp_path / "data").exists()


def test_a_summary_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "summary.json"):
        with pytest.raises(UsageError, match="the summary cannot be written to"):
            run_offline(OfflineRequest(RECIPE, str(tmp_path / "nosuch"), tmp_path / "data", path))


def test_a_folder_of_the_users_own_is_not_taken_for_a_step_to_do_again(tmp_path: Path) -> None:
    archive = cast("Any", SimpleNamespace(root="a", manifest=SimpleNamespace(to_bytes=lambda: b"")))
    request = OfflineRequest(RECIPE, "a", tmp_path)
    (tmp_path / "trained").mkdir()
    with pytest.raises(UsageError, match=r" holds trained but no experiment\.json, so"):
        _claim_folder(request, archive)
    (tmp_path / "trained").rmdir()
    _claim_folder(request, archive)
    (tmp_path / "trained").mkdir()
    _claim_folder(request, archive)


def test_a_version_that_failed_in_one_workflow_has_no_held_out_reward_until_it_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard: dict[str, float | None] = {"1": 0.3, "trained": None}
    (tmp_path / "trained" / "versions" / "1").mkdir(parents=True)

    def measure(_recipe: object, folders: dict[str, Path]) -> dict[str, dict[str, Measured]]:
        rewards = {"hard": hard[folders["solver"].name], "easy": 0.8}
        return {name: {"solver": Measured(4, 1, reward, None, {}, 1.0, 0, {})} for name, reward in rewards.items()}

    clock = _WallClock(tmp_path)

    def curve() -> list[list[float]]:
        return _evaluate(OfflineRequest(RECIPE, "a", tmp_path), "solver", RECIPE, 2, clock)

    monkeypatch.setattr(offline_run, "evaluate", measure)
    assert curve() == [[1, 0.55]]
    (tmp_path / "held-out.json").write_text('{"1": 0.55, "2": null}')  # as an earlier release noted it
    hard["trained"] = 0.4
    assert curve() == [[1, 0.55], [2, 0.6]]


def test_the_wall_seconds_of_an_experiment_are_those_of_all_commands_that_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 103.0, 900.0, 901.5, 2000.0, 2001.0])
    monkeypatch.setattr(offline_run, "time", SimpleNamespace(monotonic=lambda: next(times)))
    (tmp_path / "experiment.json").touch()
    _WallClock(tmp_path).save_seconds()
    assert _WallClock(tmp_path).seconds == 4.5
    (tmp_path / "experiment.json").unlink()
    assert _WallClock(tmp_path).seconds == 1.0, "what another experiment left does not count"


def test_clean_removes_all_that_an_experiment_over_an_archive_writes(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "experiment")
    with folder.hold("`headrace offline up`"):
        for name in (offline_run.CURATED, offline_run.TRAINED):
            (folder.root / name).mkdir()
        for name in (offline_run.CURATED, offline_run.TRAINED, offline_run.HELD_OUT, offline_run.EXPERIMENT):
            (folder.root / f"{name}.json").touch()
        (folder.root / offline_run.SECONDS).touch()
    assert clean_folder(folder)[1] == []
    assert not folder.root.exists()


def test_an_archive_without_a_recipe_is_refused() -> None:
    archive = cast("Archive", SimpleNamespace(root="a", revisions=list))
    with pytest.raises(UsageError, match="the archive a holds no recipe of its run"):
        read_newest_recipe(archive)
