"""The benchmark of asynchrony: its plan, its latencies, and what its barrier waits for."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from statistics import fmean

import pytest
from benchmarks.asynchrony import plays
from benchmarks.asynchrony.barrier_loop import BarrierLoop
from benchmarks.asynchrony.cells import Plan, Results, write_recipe
from benchmarks.asynchrony.picture import draw
from benchmarks.asynchrony.sides import BARRIER, HEADRACE, ONE_OFF, Result, RunFailed, find_rate, read_headrace
from benchmarks.asynchrony.tables import build_figures, show
from benchmarks.asynchrony.workloads import EPISODES, TEAM, TURNS, Workload
from rich.console import Console

from headrace.envs.registry import load_environment
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.weights.tensors import Tensor
from headrace.ops.preflight.table import check_names
from headrace.producers.engines.contract import Sampling
from headrace.producers.engines.scripted import ScriptedEngine, ScriptedPolicy, ScriptedSettings
from headrace.producers.rollout.play.actor import EngineActor
from headrace.producers.rollout.play.engine_room import EngineRoom, EpisodeClock
from headrace.producers.rollout.play.episodes import RolloutContext
from headrace.schemas.records import TrajectoryGroup

PLAN = Plan()


def test_every_cell_is_a_run_of_its_own_with_a_recipe_that_can_run(tmp_path: Path) -> None:
    cells = PLAN.list_cells()
    assert len({cell.name for cell in cells}) == len(cells) == 12 + 12 + 15
    for cell in cells[:6] + cells[12:16] + cells[-3:]:
        (folder := tmp_path / cell.name).mkdir()
        recipe = load_recipe(str(write_recipe(cell, folder)))
        check_names(recipe)
        assert (recipe.trainer.steps, recipe.trainer.max_staleness, recipe.seed) == (
            cell.steps,
            cell.staleness,
            cell.seed,
        )
        if cell.part != "learning":
            batch = recipe.trainer.groups_per_batch * recipe.rollout.group_size
            assert recipe.rollout.concurrency == batch == EPISODES


def test_results_are_kept_and_the_figures_compare_runs_of_one_seed(tmp_path: Path) -> None:
    cells, file = PLAN.list_cells(), tmp_path / "cells.jsonl"
    rates = {HEADRACE: 3.0, BARRIER: 1.5, ONE_OFF: 2.0}
    for cell in cells[:-3]:
        held_out = {"solver": [(0, 0.25), (cell.seed, 0.3), (36, 0.5)]} if cell.part == "learning" else {}
        Results(file).add(cell, Result(rates[cell.side] * cell.seed, 1.0, held_out, "closes"))
    figures = build_figures(cells, results := Results(file))
    assert len(results.by_cell) == len(cells) - 3
    assert figures["headline"] == {name: {BARRIER: [2.0, 2.0], ONE_OFF: [1.5, 1.5]} for name in ("team", "turns")}
    assert [one["ratio"] for one in figures["grid"]] == [2.0] * 9
    draw(figures, picture := tmp_path / "picture.png", 256)
    assert picture.stat().st_size > 10_000
    shown = Console(record=True, width=80, file=StringIO())
    assert show(shown, cells, results)
    text = shown.export_text()
    assert "team: 2.00 times the versions/s of barrier (2.00 to 2.00); goal 2.7: missed" in text
    assert "turns: 1.50 times the versions/s of one-step-off (1.50 to 1.50)\n" in text
    assert "learning-sums-one-step-off-1-3" in text
    _, last = figures["learning"][ONE_OFF]["solver"]  # each seed was evaluated at a version of its own too
    assert (last["version"], last["mean"], last["n"]) == (36, 0.5, 4)


def test_the_rate_leaves_out_what_came_before_the_steady_state() -> None:
    made = [(0, 0.0), (1, 50.0), (2, 90.0), (3, 100.0), (4, 110.0), (5, 120.0), (6, 130.0)]
    assert find_rate(made, 2) == pytest.approx(0.1)
    assert find_rate(made, 99) == pytest.approx(0.1)
    with pytest.raises(RunFailed, match="made 1 versions, too few"):
        find_rate(made[:2], 2)


def test_a_summary_gives_the_steady_rate_what_was_lost_and_the_audits_verdict(tmp_path: Path) -> None:
    recipe = TEAM.write_recipe(tmp_path, steps=4, staleness=0, seed=1)
    of_policy = {
        **dict.fromkeys(("reward_last", "eval_last")),
        "versions": 4,
        "groups": {"trained": 64, "discarded": {"stale": 16, "run_end": 5}, "dead": 0, "replayed": 0},
        "lengths": {"trained": 1.0, "discarded": 1.0, "bias": None},
        "trajectories": 640,
        "reward_curve": [],
        "eval_curve": [[0, 0.25]],
        "progress": [[0, 0, 1.0], [1, 80, 9.0], [2, 160, 20.0], [3, 240, 24.0], [4, 320, 28.0]],
    }
    audit = {"ok": False, "lost": 3, "doubled": 0, "problems": ["sums:7 was lost"]}
    ends = dict.fromkeys(("reward_first", "reward_last", "eval_first", "eval_last"))
    policies = dict.fromkeys(TEAM.policies, of_policy)
    whole = {"wall_s": 30.0, **ends, "audit": audit, "selection": {}, "policies": policies}
    (file := tmp_path / "summary.json").write_text(json.dumps(whole))
    found = read_headrace(file, recipe)
    assert (found.versions_per_s, found.samples_per_s) == (0.25, pytest.approx(2 * 0.25 * 128))
    assert (found.discarded, found.audit) == (0.2, "does not close: sums:7 was lost")
    assert found.held_out["solver"] == ((0, 0.25),)
    file.write_text(json.dumps({**whole, "errors": ["3 of 640 episodes failed: time_limit"]}))
    with pytest.raises(RunFailed, match="3 of 640 episodes failed"):
        read_headrace(file, recipe)


# ------------------------------------------------------------------------------------------------------------- plays


class Letters:
    """A tokenizer of one token a letter; token 1 ends an answer."""

    hash, stop_ids, context = "", (1,), 4096
    letters = "\0\1=/?0123456789"

    def encode(self, text: str) -> list[int]:
        return [self.letters.index(one) for one in text]

    encode_plain = encode

    def decode(self, ids: object, *, special_tokens: bool = False) -> str:
        return "".join(self.letters[int(one)] for one in ids if int(one) > 1)  # type: ignore[attr-defined]


def open_scripted(workload: Workload, *policies: str) -> ScriptedEngine:
    settings = ScriptedSettings(0.0, workload.difficulties, workload.tokens, workload.spreads)
    engine = ScriptedEngine({name: ScriptedPolicy(Letters(), 15, 4096) for name in policies}, settings)  # type: ignore[arg-type]
    for name in policies:
        engine.load(name, 0, {})
    return engine


@pytest.mark.parametrize("workload", [TEAM, TURNS])
def test_an_episode_has_the_lengths_that_the_workload_expects(workload: Workload) -> None:
    """What an episode holds in the engine is its generated tokens; tools of no time leave the rest."""
    engine, env = open_scripted(workload, *workload.policies), load_environment("scripted", 1, {"levels": [0]})
    spent = [0] * 300

    async def play(sample: int) -> None:
        clock = EpisodeClock(1e9, EngineRoom())
        sampling = Sampling(max_tokens=workload.limit, stop_ids=(1,))
        actors = {
            role: EngineActor(engine, role, Letters(), sampling, seed=sample + 1000 * at, version=None, clock=clock)  # type: ignore[arg-type]
            for at, role in enumerate(workload.policies)
        }
        problem = env.problem("train", sample)
        if workload.most_turns:
            episode = await plays.turns(problem, env, actors, most=workload.most_turns)
            assert 1 <= episode["solver"].parts["turns"] <= workload.most_turns
        else:
            episode = await plays.team(problem, env, actors)
            judged = episode["verifier"].reward == 1
            is_rejected = (episode["solver"].sequences[0].reward == 1) != judged
            assert len(episode["solver"].sequences) == 1 + is_rejected
        spans = [span for role in episode.values() for sequence in role.sequences for span in sequence.spans]
        spent[sample] = sum(span.length for span in spans if span.kind == "generated")

    async def play_all() -> None:
        await asyncio.gather(*map(play, range(len(spent))))

    asyncio.run(play_all())
    draw = random.Random(3)  # noqa: S311 - the same each time
    expected = fmean(workload.draw_episode(draw)[0] for _ in range(3000)) / 0.02
    assert fmean(spent) == pytest.approx(expected, rel=0.15)


# ------------------------------------------------------------------------------------------------------------ the loop


class Recorder:
    """In place of a trainer's process: keeps what each version would be trained on."""

    def __init__(self) -> None:
        self.given: list[TrajectoryGroup] = []
        self.batches: list[list[TrajectoryGroup]] = []

    def add(self, group: TrajectoryGroup) -> None:
        self.given.append(group)

    async def step(self, version: int) -> Mapping[str, Tensor]:
        given, self.given = self.given, []
        assert len(self.batches) == version - 1
        self.batches.append(given)
        await asyncio.sleep(0.01)
        return {}


@pytest.mark.parametrize(("is_off", "sampled_by"), [(False, [0, 1, 2, 3]), (True, [0, 0, 1, 2])])
def test_a_barrier_trains_whole_batches_of_the_newest_weights_and_one_step_off_of_those_before(
    tmp_path: Path, *, is_off: bool, sampled_by: list[int]
) -> None:
    small = ("rollout.engine.seconds_per_token=0", "trainer.groups_per_batch=4", "rollout.group_size=2")
    recipe = load_recipe(str(TEAM.write_recipe(tmp_path, steps=4, staleness=0, seed=1)), small)
    engine, trainers = open_scripted(TEAM, *TEAM.policies), {policy: Recorder() for policy in TEAM.policies}
    tokenizers: Mapping[str, Letters] = dict.fromkeys(TEAM.policies, Letters())
    context = RolloutContext(engine, "scripted", "", tokenizers, "w", "", lambda _: 0, room=EngineRoom(8))  # type: ignore[arg-type]
    loop = BarrierLoop(recipe, trainers, context, is_off=is_off)  # type: ignore[arg-type]
    asyncio.run(loop.run({policy: {} for policy in TEAM.policies}))  # type: ignore[arg-type]
    for trainer in trainers.values():
        assert [sorted(group.number for group in batch) for batch in trainer.batches] == [
            list(range(first, first + 4)) for first in (0, 4, 8, 12)
        ]
        sequences = [
            [sequence for group in batch for member in group.trajectories for sequence in member.sequences]
            for batch in trainer.batches
        ]
        made = [{int(version) for one in some for version in one.version_runs[::2]} - {-1} for some in sequences]
        assert made == [{version} for version in sampled_by]
    assert [one.version for one in loop.figures.made] == [1, 2, 3, 4]
    assert (loop.figures.samples, loop.figures.failed) == (4 * 4 * 2 * 2, 0)
