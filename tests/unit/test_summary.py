from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.app.views.closing import show_summary
from headrace.app.views.tables import MOST_ERRORS
from headrace.infra.embedded.data_folder import DataFolder, Effort
from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ledger.ledger import Ledger
from headrace.ledger.run_streams import RunStreams
from headrace.ops.figures import summary as summaries
from headrace.ops.figures.summary import (
    AuditVerdict,
    FeedSettings,
    Summary,
    estimate_last_error,
    find_eval_ends,
    log_cpu_share,
    summarize,
)
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    GroupUse,
    Outcome,
    RecipeRevision,
    Snapshot,
    WorkerStatus,
)

RUN_ID = "arithmetic-1"
CPU = {
    "broker": {"process": 10.0, "librdkafka": 0.0},
    "feed": {"process": 2.0, "librdkafka": 1.0},
    "curate-solver-0": {"process": 3.0, "librdkafka": 1.0},
    "rollout-sums-0": {"process": 40.0, "librdkafka": 4.0},
    "train-solver": {"process": 45.0, "librdkafka": 1.0},
}


def test_the_logs_cpu_share_is_broker_feeder_curators_and_the_clients_threads() -> None:
    assert log_cpu_share(CPU) == pytest.approx((10 + 2 + 3 + 4 + 1) / 100)
    assert log_cpu_share({}) == 0.0


def test_evaluations_of_the_first_and_last_version_are_averaged_over_workflows() -> None:
    evals = [
        EvalResult(workflow="b", version=40, avg_at_k=0.9),
        EvalResult(workflow="a", version=40, avg_at_k=0.7),
        EvalResult(workflow="a", version=0, avg_at_k=0.3),
        EvalResult(workflow="b", version=0, avg_at_k=0.1),
    ]

    assert find_eval_ends(evals) == (pytest.approx(0.2), pytest.approx(0.8))
    assert estimate_last_error(evals) is None, "builds before said none"
    assert estimate_last_error([replace(one, standard_error=0.03 + one.version / 4000) for one in evals]) == (
        pytest.approx(math.sqrt(2 * 0.04**2) / 2)
    )
    assert find_eval_ends(evals[:2]) == (None, pytest.approx(0.8)), "one version is not told as two"
    assert find_eval_ends([]) == (None, None)


def test_a_version_that_lacks_a_workflow_is_neither_the_first_nor_the_last_that_was_evaluated() -> None:
    easy = [
        EvalResult(workflow="easy", version=at, avg_at_k=reward) for at, reward in ((0, 0.8), (20, 0.85), (40, 0.86))
    ]
    hard = [EvalResult(workflow="hard", version=at, avg_at_k=reward) for at, reward in ((0, 0.1), (20, 0.15))]
    of_two = (pytest.approx(0.45), pytest.approx(0.5))
    assert find_eval_ends([*easy, *hard]) == of_two
    failed = EvalResult(workflow="hard", version=40, avg_at_k=math.nan, problems=4, samples=1, failures=4)
    assert find_eval_ends([*easy, *hard, failed]) == of_two
    left_out = EvalResult(workflow="easy", version=60, avg_at_k=0.9)
    assert find_eval_ends([*easy, *hard, left_out]) == (0.8, 0.9), "the recipe has one workflow by then"


def run_of(recipe_name: str = "arithmetic", sets: Sequence[str] = ()) -> Run:
    recipe = load_recipe(recipe_name, sets)
    address = RunAddress(Connection("127.0.0.1:1"), recipe.name)
    return Run(address, RUN_ID, (recipe,), StoreAddress("127.0.0.1:2", "b", "k", "s"), ended="steps")


def messages(run: Run, issued: int = 20) -> list[Message]:
    """Ten versions of two groups each: rewards rise from 0.0 to 0.9, every second group of a version is dropped."""
    topics = run.topics
    found: list[tuple[str, Any, int, bytes]] = []
    for number in range(20):
        reward = number // 2 / 10
        said = ("kept", "") if number % 2 == 0 else ("dropped", "zero_variance")
        record = Outcome(
            RUN_ID, "sums", number, policy="solver", verdict=said[0], reason=said[1], component="curate",
            rewards=(reward, reward), lengths=(4, 6), head_version=number // 2,
        )  # fmt: skip
        found.append((topics.outcomes("solver"), record, 1000 + 100 * number, b""))
    batch = BatchTrained(
        RUN_ID, "solver", version=10, created_ms=7500, metrics={"seconds_step": 6.0, "seconds_commit": 1.0},
        groups=tuple(GroupUse("sums", number) for number in range(0, 20, 2)),
    )  # fmt: skip
    state = Snapshot(run_id=RUN_ID, component="feed", body=json.dumps({"next": {"sums": issued}}).encode())
    seconds = {"generate": 2.0, "produce": 1.0, "wait": 90.0}
    worker = WorkerStatus(run_id=RUN_ID, worker="w", tokens=250, wasted_tokens=20, seconds=seconds)
    found += [
        (topics.batches("solver"), batch, 4000, b""),
        (topics.evals("solver"), EvalResult(run_id=RUN_ID, policy="solver", version=0, avg_at_k=0.25), 4000, b""),
        (topics.workers, worker, 4000, b"w"),
        (topics.state, state, 4000, b"feed"),
        (topics.recipe, RecipeRevision(run_id=RUN_ID, ended="steps", created_ms=1000), 4000, b""),
        (topics.dead_letters, DeadLetter(run_id=RUN_ID, reason="undecodable"), 4000, b""),
    ]
    return [
        Message(topic, 0, offset, key, codec.encode(record), [], at_ms)
        for offset, (topic, record, at_ms, key) in enumerate(found)
    ]


def summary_of(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    issued: int = 20,
    *,
    lost: int = 0,
    unchecked: str = "",
    sets: Sequence[str] = (),
) -> Summary:
    """Summarize 20 concluded groups; of what is in flight the whole audit says that so many are lost."""
    run = run_of(sets=sets)

    def report(_run: Run, *, rests: bool) -> AuditVerdict:
        assert rests
        problems = (f"{lost} groups are lost",) if lost else ()
        return AuditVerdict(not problems and not unchecked, lost, 0, problems, unchecked)

    def ask_ledger(_run: Run, _path: Path, ask: Callable[[Ledger], Summary]) -> Summary:
        ledger = Ledger(None, run.run_id, RunStreams(run.recipe))
        ledger.add(messages(run, issued))
        return ask(ledger)

    monkeypatch.setattr(summaries, "ask_ledger", ask_ledger)
    monkeypatch.setattr(summaries, "report", report)
    rest = f"{issued - 20} groups are still in flight" if issued > 20 else ""
    return summarize(run, Effort(12.34, CPU), DataFolder(folder), rest)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Summary:
    (tmp_path / "kafka").write_bytes(bytes(10_000))
    return summary_of(monkeypatch, tmp_path)


def test_a_summary_says_what_came_of_the_run(found: Summary) -> None:
    summary, block = plain(found), found.policies["solver"]
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["run"], summary["versions"], summary["wall_s"]) == ("arithmetic", 10, 12.3)
    assert (summary["reward_first"], summary["reward_last"]) == pytest.approx((0.2, 0.7))
    assert (summary["eval_first"], summary["eval_last"]) == (None, 0.25)
    groups = {"issued": 20, "trained": 10, "discarded": {"zero_variance": 10}, "dead": 0, "in_flight": 0}
    assert summary["groups"] == groups
    assert summary["audit"] == {"ok": True, "lost": 0, "doubled": 0, "problems": [], "unchecked": ""}
    assert (summary["log_share"], summary["log_cpu_share"]) == pytest.approx((2 / 10, 0.2))
    assert (summary["samples_per_s"], summary["tokens_per_s"]) == pytest.approx((40 / 12.34, 200 / 12.34), abs=0.05)
    assert (summary["tokens"], summary["wasted_tokens"]) == (250, 50), "200 came to a curator, the worker knew of 20"
    assert summary["data"]["bytes"] >= 10_000
    assert summary["policies"]["solver"]["weights"]["greatest_skew"] == 0
    assert summary["policies"]["solver"]["lengths"]["bias"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    assert (block.trajectories, block.progress) == (40, ((10, 40, 6.5),))


def test_groups_in_flight_at_the_end_are_lost_only_where_the_whole_audit_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waiting = summary_of(monkeypatch, tmp_path, 24)
    assert (waiting.audit.ok, waiting.audit.lost, waiting.rest) == (True, 0, "4 groups are still in flight")
    assert "closes so far, with 4 groups in flight: nothing lost" in shown(waiting)
    gone = summary_of(monkeypatch, tmp_path, 24, lost=4)
    assert (gone.audit.ok, gone.audit.lost, gone.rest) == (False, 4, "")
    assert "does not close: groups lost: 4, groups doubled: 0" in shown(gone)
    assert "4 groups are lost" in shown(gone)
    away = summary_of(monkeypatch, tmp_path, 20, unchecked="the store is away")
    assert not away.audit.ok
    assert "no verdict: the store is away" in shown(away)


def shown(found: Summary, width: int = 100, again: str = "headrace up arithmetic") -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        show_summary(found, console, "headrace", again)
    return captured.get()


def test_the_closing_page_shows_what_is_not_ours_as_it_is(found: Summary) -> None:
    solver = replace(found.policies["solver"], eval_tiers={"[/hard]": (0.1, 0.2), "[easy]": (None, 0.9)})
    groups = replace(found.groups, discarded={"[/own]": 2})
    data = replace(found.data, folder="/data/[/x] [y]")
    page = shown(replace(found, policies={"solver": solver}, groups=groups, data=data))

    for words in ("[/hard]", "0.10 → 0.20", "[easy]", "2 [/own]", "/data/[/x] [y]"):
        assert words in page


def test_the_closing_page_tells_what_came_of_the_run(found: Summary) -> None:
    page, solver = shown(found), found.policies["solver"]
    assert "1 dead letter not tied to a task (1 undecodable)" in page
    assert "held-out reward  0.25 " in page, "no reward twice"
    assert "replays " not in page
    assert "no progress" not in page
    counts = replace(solver.groups, replays=12, replayed=10, replays_discarded=1)
    solver = replace(solver, groups=counts, reward_first=None, reward_last=0.4, eval_last=None)
    page = shown(replace(found, policies={"solver": solver}, stood_still=("solver made no version for 130 s",)))
    for words in (
        "solver: 12 replays, 10 trained beside 10 fresh groups (50% of all trained)",
        "made no version for 130 s",
        "training reward  0.40 ",
        "held-out reward  not measured",
    ):
        assert words in page


def test_the_closing_page_has_the_rewards_of_each_policy_and_no_mean_of_them(found: Summary) -> None:
    solver = replace(found.policies["solver"], reward_first=0.1, reward_last=0.3, eval_first=0.2, eval_last=0.4)
    judge = replace(solver, versions=3, reward_first=0.5, reward_last=0.9, eval_first=None, eval_last=0.8)

    page = shown(replace(found, policies={"solver": solver, "judge": judge}, reward_first=0.3, reward_last=0.6))

    rows = [" ".join(line.strip("│ ").split()) for line in page.splitlines()]
    at = rows.index("training reward solver, 10 versions: 0.10 → 0.30")
    assert rows[at + 1 : at + 4] == [
        "training reward judge, 3 versions: 0.50 → 0.90",
        "held-out reward solver, 10 versions: 0.20 → 0.40",
        "held-out reward judge, 3 versions: 0.80",
    ]
    assert "0.60" not in page


def test_the_closing_page_names_the_errors_of_episodes_in_their_order(found: Summary) -> None:
    errors = tuple(f"{count} episodes failed: KeyError: '[{count}]'" for count in range(19, 9, -1))
    page = shown(replace(found, errors=errors))
    assert [error for error in errors if error in page] == list(errors[:MOST_ERRORS])
    assert "episodes failed" not in shown(found)


def test_the_way_on_keeps_no_old_value_and_no_summary_file_however_they_were_given(found: Summary) -> None:
    again = "'/my bin/headrace' up arithmetic --set=trainer.steps=10 --summary=old.json --set=name=mine --set seed=3"
    assert (
        "  '/my bin/headrace' up arithmetic --set name=mine --set seed=3 --set trainer.steps=20 --new-recipe\n"
    ) in shown(found, 60, again)


def test_the_way_on_doubles_the_steps_of_every_policy_where_they_are_set(found: Summary) -> None:
    solver = found.policies["solver"]
    judge, idle = replace(solver, versions=4, has_own_steps=True), replace(solver, versions=0)
    both, own = "--set trainer.steps=20", "--set policies.judge.trainer.steps=8"
    for policies, words in (
        ({"solver": solver, "judge": judge}, f"{both} {own}"),
        ({"judge": judge}, own),
        ({"solver": solver, "judge": replace(judge, has_own_steps=False)}, both),
        ({"solver": solver, "idle": idle}, both),
        ({"idle": idle}, "--set trainer.steps=1"),
        ({"solver": solver, "idle": replace(idle, has_own_steps=True)}, both),
    ):
        least = min(block.versions for block in policies.values())
        page = shown(replace(found, policies=policies, versions=least), again="headrace up arithmetic --set seed=3")
        assert f"  headrace up arithmetic --set seed=3 {words} --new-recipe\n" in page


def test_the_closing_page_of_a_solved_run_says_so_and_how_to_go_on(found: Summary) -> None:
    solved = replace(found, ended="solved")
    page = shown(solved)
    for words in ("ended as solved", "more than 95.0% (feed.solved_share)"):
        assert words in page
    for setting in ("raise_tier=true", "solved_share=0.975"):
        assert f"headrace up arithmetic --set feed.{setting} --new-recipe" in page
    assert "trainer.steps" not in page
    assert "raise_tier" not in shown(replace(solved, feed=FeedSettings(0.9, raise_tier=True)))
