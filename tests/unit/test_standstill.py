"""What is said of a run that makes no version. The topics are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from made_ledger import MadeLedger
from made_recipes import sums_recipe

from headrace.infra.embedded.server_probe import Silence
from headrace.infra.process.child_life import ChildState
from headrace.infra.recipe.settings import Recipe
from headrace.ops.figures.concluded import RECENT_GROUPS, Concluded
from headrace.ops.figures.discard_advice import ADVICE_BY_REASON
from headrace.ops.figures.failing import ENOUGH, Failures
from headrace.ops.figures.late_versions import FIRST_MS, LEAST_MS, describe_longest_pause, patience_ms
from headrace.ops.figures.standstill import (
    CAUSES,
    Seen,
    Standstill,
    Surroundings,
    describe_discards,
    standstill,
)
from headrace.schemas.records import BatchTrained, DeadLetter, EpisodeError, GroupUse, Outcome, WorkerStatus

NOW = 1_700_000_000_000
RECIPE = sums_recipe(trainer={"steps": 9, "groups_per_batch": 4})
TASKS = RECIPE.topics.tasks("sums")
TRAJECTORIES, CURATED = RECIPE.topics.trajectories("solver"), RECIPE.topics.curated("solver")
MADE = {0: NOW - 130_000, 1: NOW - 125_000, 2: NOW - 120_000}
"""The third version but one is two minutes old, where one takes five seconds."""
ROLLING = WorkerStatus(worker="rollout-sums-0", workflow="sums", state="rolling", episodes_running=7, updated_ms=NOW)


def discarded(count: int, reason: str = "zero_variance", at_ms: int = NOW - 1000) -> MadeLedger:
    ledger = MadeLedger()
    for _ in range(count):
        ledger.say(Outcome(stream="sums", component="curate", verdict="dropped", reason=reason), at_ms)
    return ledger


def said(  # noqa: PLR0913 - each is of the defaults of a run that stands still
    *workers: WorkerStatus,
    made: Mapping[int, int] = MADE,
    lag: Mapping[str, int] | None = None,
    groups: MadeLedger | None = None,
    episodes: MadeLedger | None = None,
    in_flight: int = 3,
    at_once: bool = False,
    recipe: Recipe = RECIPE,
    many_failed: Mapping[str, str] | None = None,
    **around: Any,
) -> Standstill | None:
    seen = Seen(
        recipe=recipe,
        versions={"solver": max(made)} if made else {},
        made_ms={"solver": made},
        groups=Concluded(groups or MadeLedger()),
        episodes=Failures(episodes or MadeLedger()),
        workers=workers,
        lag=lag or {},
        in_flight={"solver": in_flight},
        many_failed=many_failed or {},
    )
    return standstill(seen, Surroundings(**{"began_ms": NOW - 200_000, **around}), NOW, at_once=at_once)


def test_a_version_is_overdue_after_five_times_what_most_took_and_after_a_minute_at_least() -> None:
    assert patience_ms([]) == patience_ms([NOW]) == FIRST_MS
    assert patience_ms(range(0, 100_000, 5000)) == LEAST_MS
    assert patience_ms(range(0, 900_000, 30_000)) == 150_000
    night = [*range(0, 90_000, 30_000), *range(40_000_000, 40_090_000, 30_000)]
    assert patience_ms(night) == 150_000, "a night at rest says nothing of what a version takes"


def test_nothing_is_said_while_versions_come_nor_of_a_policy_that_has_made_its_last() -> None:
    assert said(ROLLING, made={0: NOW - 60_000, 1: NOW - 50_000}) is None
    assert said(ROLLING, made={9: NOW - 900_000}) is None
    assert said(made={}, began_ms=NOW - FIRST_MS) is None, "components start"
    assert said(ROLLING, began_ms=NOW - 1000) is None, "it was at rest, and was begun again a second ago"
    warming = WorkerStatus(worker="train-solver", state="warming up", detail="reward 0.1", updated_ms=NOW - 1000)
    assert said(warming, made={}, began_ms=NOW - 9 * FIRST_MS) is None, "a trainer that reports long work"
    silent = (Silence("the broker (process 7)", NOW - 60_000, "kill it"),)
    assert said(ROLLING, made=YOUNG, silent=silent, episodes=failed(400, NOW - 9000)) is None, "servers come first"


def test_nothing_is_said_of_a_policy_that_no_workflow_plays() -> None:
    recipe = sums_recipe(policies={"solver": {"path": "x"}, "idle": {"path": "y"}}, trainer={"steps": 9})
    at_last = {9: NOW - 900_000}
    assert said(made=at_last, recipe=recipe) is None
    assert said(made=at_last, recipe=recipe, at_once=True) is None
    found = said(recipe=recipe, at_once=True)
    assert found is not None
    assert (found.policy, found.cause) == ("solver", "no_worker")


def test_the_first_cause_that_shows_is_told_with_what_happens_by_itself_and_what_to_do() -> None:
    seen = replace(ROLLING, updated_ms=NOW - 60_000)
    behind = WorkerStatus(worker="a", workflow="sums", state="behind", detail="served at version 1", updated_ms=NOW)
    hanging = replace(ROLLING, episodes_running=0, detail="commit: no answer from Kafka for 9 s")
    warming = WorkerStatus(worker="train-solver", state="warming up", detail="reward 0.1", updated_ms=NOW - 600_000)
    silent = (Silence("the broker (process 7)", NOW - 60_000, "kill it"),)
    dead, there = ChildState("waiting", None, 3, 1), ChildState("running", 7, 1, None)
    begun: dict[str, Any] = {"made": {}, "began_ms": NOW - 900_000, "logs": "/data/logs"}
    for cause, found, *words in (
        (
            "server",
            said(ROLLING, silent=silent),
            "the broker (process 7) has not answered since 22:12:20 UTC",
            "kill it",
        ),
        (
            "trainer",
            said(ROLLING, warming, processes={"train-solver": dead}, **begun),
            "has not made its first weights since 22:03:20 UTC",
            "it last reported warming up: reward 0.1",
            "train-solver is waiting, started 3 times, and ended with exit code 1",
            "look into /data/logs/train-solver.log",
        ),
        ("no_worker", said(), "no worker is alive", "headrace rollout --run"),
        (
            "no_worker",
            said(processes={"feed": there}),
            "no worker is alive, and `headrace up` runs none. What happens next: the run pauses, and continues when a",
            "you can do: start workers by `headrace scale rollout=N` or `headrace rollout --run ADDRESS`.",
        ),
        (
            "no_worker",
            said(seen, processes={"rollout-sums-0": there}),
            "no worker is alive; the last was seen at 22:12:20 UTC; process 7 of rollout-sums-0 exists, but may be",
        ),
        ("waiting", said(behind), "no worker plays: a is behind (served at version 1)"),
        (
            "waiting",
            said(hanging, lag={CURATED: 4}),
            "rollout-sums-0 is rolling (commit: no answer from Kafka for 9 s)",
        ),
        (
            "waiting",
            said(replace(ROLLING, episodes_running=0), lag={TASKS: 67, CURATED: 4}),
            "no worker plays: rollout-sums-0 is rolling (plays no episode, although tasks wait)",
        ),
        (
            "dropped",
            said(ROLLING, groups=discarded(10)),
            "of 10 groups 10 were discarded, 10 of them as zero_variance",
            "harder tasks",
        ),
        ("feeder", said(ROLLING, in_flight=0), "no task is open", "look into the log of feed"),
        (
            "curator",
            said(ROLLING, lag={TRAJECTORIES: 5}),
            "5 groups wait for the curator, which has concluded no group",
            "headrace curate --policy solver --run",
        ),
        ("trainer", said(ROLLING, lag={CURATED: 4}), "groups wait for the trainer"),
        (
            "playing",
            said(ROLLING),
            "1 worker plays 7 episodes, and no group has concluded since then; a batch needs 4 groups",
        ),
        (
            "playing",
            said(replace(ROLLING, requests_running=1, requests_waiting=2)),
            "7 episodes (1 request in the engine, 2 waiting for room there), and no group has concluded",
        ),
    ):
        assert found is not None
        assert found.cause == cause
        assert found.sentence.startswith("solver has not made ")
        for some in (*words, "What happens next: ", "What you can do: "):
            assert some in found.sentence


def test_a_worker_that_rolls_beside_one_that_waits_is_not_what_is_short() -> None:
    waiting = WorkerStatus(worker="b", workflow="sums", state="rolling", detail="waits for partitions", updated_ms=NOW)
    assert (found := said(ROLLING, waiting)) is not None
    assert found.cause == "playing"
    assert (found := said(waiting)) is not None
    assert found.cause == "waiting"


def test_a_curator_that_has_just_concluded_a_group_is_not_what_is_short() -> None:
    fold = MadeLedger()
    fold.say(Outcome(stream="sums", component="curate", verdict="kept"), NOW - 1000)
    assert (found := said(ROLLING, lag={TRAJECTORIES: 5}, groups=fold)) is not None
    assert found.cause == "playing"


def test_a_run_that_is_given_up_is_explained_before_a_version_is_overdue() -> None:
    fresh = {0: NOW - 60_000, 1: NOW - 50_000}
    assert (found := said(made=fresh, at_once=True)) is not None
    assert found.cause == "no_worker"
    assert "What happens next: nothing, because the run is given up. What you can do: " in found.sentence
    assert said(made={9: NOW}, at_once=True) is None


def test_drops_of_nearly_all_groups_are_told_while_versions_come() -> None:
    young = {0: NOW - 60_000, 1: NOW - 1000}
    fold = discarded(RECENT_GROUPS, "unwanted")
    assert (found := said(ROLLING, made=young, groups=fold)) is not None
    assert found.cause == "dropped"
    assert (
        f"of {RECENT_GROUPS} groups {RECENT_GROUPS} were discarded, {RECENT_GROUPS} of them as unwanted"
        in found.sentence
    )
    assert found.since_ms == NOW - 1000
    assert (early := said(ROLLING, made={0: NOW - 60_000}, groups=fold)) is not None
    assert early.since_ms == NOW - 60_000, "none was trained since the version, which is longer ago than these groups"
    fold.say(BatchTrained(groups=(GroupUse("sums", 1, 0),) * 20), NOW)
    assert said(ROLLING, made=young, groups=fold) is None, "one in thirteen is trained"


def test_of_the_groups_the_newest_count_whatever_order_their_topics_are_read_in() -> None:
    fold = MadeLedger()
    fold.say(BatchTrained(groups=(GroupUse("sums", 1, 0),) * RECENT_GROUPS), NOW)
    fold.say(DeadLetter(policy="solver", reason="poison"), NOW + 1)
    for _ in range(RECENT_GROUPS):
        fold.say(Outcome(stream="sums", component="curate", verdict="dropped", reason="stale"), NOW - 1)
    for passed_over in (Outcome(verdict="kept"), Outcome(level="trajectory"), Outcome(use=1), Outcome(stream="eval.s")):
        fold.say(passed_over, NOW + 2)
    assert Concluded(fold).count_since("solver", 0) == (RECENT_GROUPS, {"poison": 1})


ERROR = EpisodeError("error", "KeyError: 'x'", "own.py:5 in judge", "solver", 1, 4)
YOUNG = {0: NOW - 20_000}


def failed(
    count: int, first_ms: int, last_ms: int = NOW - 1000, error: EpisodeError = ERROR, stream: str = "sums"
) -> MadeLedger:
    """Groups of four episodes that all failed, evenly from the first to the last."""
    fold, groups = MadeLedger(), count // error.episodes
    for number in range(groups):
        at_ms = first_ms + (last_ms - first_ms) * number // max(1, groups - 1)
        outcome = Outcome(component="curate", stream=stream, verdict="dropped", errors=(error,))
        fold.say(outcome, at_ms)
    return fold


def well(fold: MadeLedger, at_ms: int, stream: str = "sums") -> MadeLedger:
    outcome = Outcome(component="curate", stream=stream, verdict="kept", rewards=(0.0, 1.0))
    fold.say(outcome, at_ms)
    return fold


def test_that_every_episode_fails_is_told_before_a_version_is_overdue_with_the_most_frequent_error() -> None:
    found = said(ROLLING, made=YOUNG, episodes=failed(ENOUGH, NOW - 9000))
    assert found is not None
    assert (found.cause, found.hopeless, found.in_part, found.since_ms) == ("failing", False, False, NOW - 9000)
    assert "all 32 since 22:13:11 UTC failed, most of them with KeyError: 'x' at own.py:5 in judge" in found.sentence
    assert "; none has ever succeeded. What happens next: " in found.sentence
    assert "`headrace up` ends with exit code 1 after 300 s in which every episode failed" in found.sentence
    assert "the log of rollout-sums-0, event episode.failed" in found.sentence
    assert said(ROLLING, made=YOUNG, episodes=failed(ENOUGH - 4, NOW - 9000)) is None, "too few to say"
    large = EpisodeError("error", "KeyError: 'x'", "", "", 0, 8)
    assert said(ROLLING, made=YOUNG, episodes=failed(56, NOW - 9000, error=large)) is None, "of too few tasks"
    assert said(ROLLING, made=YOUNG, episodes=failed(64, NOW - 9000, error=large)) is not None
    slow = replace(large, reason="time_limit")
    assert (found := said(ROLLING, made=YOUNG, episodes=failed(64, NOW - 9000, error=slow))) is not None
    assert "look into the log of rollout-sums-0, event episode.failed, for where the episodes wait" in found.sentence
    assert said(ROLLING, made=YOUNG, episodes=failed(ENOUGH, NOW - 900_000, NOW - 800_000)) is None, "long ago"
    away = EpisodeError("unreachable", "ConnectionError: no", "", "", 0, 4)
    assert said(ROLLING, made=YOUNG, episodes=failed(400, NOW - 9000, error=away)) is None, "nobody's fault"


def test_the_error_that_is_told_is_the_most_frequent_since_an_episode_succeeded() -> None:
    fold, new = (
        failed(400, NOW - 60_000, NOW - 40_000),
        replace(ERROR, detail="KeyError: 'new'", at="own.py:9 in judge"),
    )
    dropped = Outcome(component="curate", stream="sums", verdict="dropped", errors=(new,))
    fold.say(dropped, NOW - 10_000)
    well(fold, NOW - 30_000)  # the outcomes of other partitions are read later
    for number in range(20):
        fold.say(dropped, NOW - 9000 + number)

    [found] = Failures(fold).find_failing("solver", 0)
    assert (found.episodes, found.error) == (84, new)


def test_one_episode_that_succeeds_ends_it_and_failures_after_it_count_anew() -> None:
    fold = well(failed(400, NOW - 9000), NOW - 500)
    assert said(ROLLING, made=YOUNG, episodes=fold) is None
    fold = well(failed(400, NOW - 9000), NOW - 20_000)
    assert (found := said(ROLLING, made=YOUNG, episodes=fold)) is not None
    assert not found.hopeless
    assert "none has ever" not in found.sentence
    assert "exit code" not in found.sentence, "some have succeeded, so it is not given up"


def test_a_run_in_which_nothing_ever_succeeds_is_hopeless_after_the_recipes_time() -> None:
    assert (found := said(ROLLING, made=YOUNG, began_ms=1, episodes=failed(400, NOW - 301_000))) is not None
    assert found.hopeless
    assert (
        "What happens next: nothing more: `headrace up` ends after 300 s in which every episode failed"
        in found.sentence
    )
    assert (found := said(ROLLING, made=YOUNG, began_ms=1, episodes=failed(400, NOW - 290_000))) is not None
    assert not found.hopeless
    once = well(failed(400, NOW - 400_000), NOW - 900_000)
    assert (found := said(ROLLING, made=YOUNG, began_ms=0, episodes=once)) is not None
    assert not found.hopeless, "an episode has succeeded, ever so long ago"
    assert (found := said(ROLLING, made=YOUNG, began_ms=NOW - 9000, episodes=failed(400, NOW - 400_000))) is None
    recent = failed(4000, NOW - 400_000)
    assert (found := said(ROLLING, made=YOUNG, began_ms=NOW - 100_000, episodes=recent)) is not None
    assert not found.hopeless, "what failed before it was started again was another source's, perhaps"


def two_workflows() -> Recipe:
    sums = {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}}
    return sums_recipe(workflows={"sums": sums, "words": sums}, trainer={"steps": 9, "groups_per_batch": 4})


def test_a_workflow_that_always_fails_beside_one_that_succeeds_is_told_by_its_name() -> None:
    fold, recipe = failed(400, NOW - 400_000, stream="words"), two_workflows()
    for number in range(400):
        well(fold, NOW - 400_000 + 1000 * number)
    there = replace(ROLLING, worker="rollout-words-0", workflow="words")
    found = said(ROLLING, there, made=YOUNG, began_ms=0, episodes=fold, recipe=recipe)
    assert found is not None
    assert (found.cause, found.hopeless, found.since_ms) == ("failing", False, NOW - 400_000)
    assert found.sentence.startswith("solver gets no episode of workflow words: all 400 since ")
    assert found.in_part, "versions come"
    assert "none has ever succeeded" not in found.sentence, "that is said of the run"
    late = said(ROLLING, there, began_ms=NOW - 400_000, episodes=fold, recipe=recipe, in_flight=0)
    assert late is not None
    assert late.cause == "feeder", "it is not what keeps a policy from its next version that has groups of another"
    assert "the log of rollout-words-0, event" in found.sentence
    assert said(ROLLING, there, made=YOUNG, episodes=well(fold, NOW, "words"), recipe=recipe) is None
    old = well(failed(400, NOW - 900_000, NOW - 800_000, stream="words"), NOW - 1000)
    assert said(ROLLING, there, made=YOUNG, began_ms=0, episodes=old, recipe=recipe) is None, "long ago"


def test_a_run_is_hopeless_only_if_no_workflow_ever_succeeded_and_their_failures_count_together() -> None:
    fold, recipe = failed(ENOUGH // 2, NOW - 301_000), two_workflows()
    for number in range(4):
        error = Outcome(component="curate", stream="words", verdict="dropped", errors=(ERROR,))
        fold.say(error, NOW - 5000 + number)
    found = said(ROLLING, made=YOUNG, began_ms=0, episodes=fold, recipe=recipe)
    assert found is not None
    assert found.hopeless
    assert "solver gets no episode of workflows sums, words: all 32 since " in found.sentence
    assert said(ROLLING, made=YOUNG, began_ms=0, episodes=well(fold, NOW - 500_000), recipe=recipe) is None


def test_workers_that_all_wait_for_their_environment_are_told_at_once() -> None:
    away = WorkerStatus(
        worker="a", workflow="sums", state="rolling", detail="environment: ConnectionRefusedError: no", updated_ms=NOW
    )
    assert (found := said(away, made=YOUNG)) is not None
    assert found.cause == "unreachable"
    assert (
        "solver waits: its environment cannot be reached (ConnectionRefusedError: no). What happens next: "
        in found.sentence
    )
    assert said(away, ROLLING, made=YOUNG) is None, "one of them plays"


def test_workers_that_users_code_blocks_are_told_at_once_and_endless_episodes_with_their_place() -> None:
    blocked = replace(ROLLING, detail="blocked for 20 s at shop.py:50 in till: no episode can go on")
    assert (found := said(blocked, made=YOUNG)) is not None
    assert found.cause == "blocked"
    assert "solver gets no episode: its workers are blocked for 20 s at shop.py:50 in till" in found.sentence
    assert said(blocked, replace(ROLLING, worker="b"), made=YOUNG) is None, "the other one plays"
    endless = replace(
        ROLLING, detail="episodes play their 40th turn, and none has ended in 45 s; most are at shop.py:33"
    )
    assert said(endless, made=YOUNG) is None, "they may be long"
    assert (found := said(endless)) is not None
    assert found.cause == "playing"
    assert "; rollout-sums-0: episodes play their 40th turn, and none has ended in 45 s" in found.sentence


def test_of_a_run_that_is_over_it_is_told_where_it_stood_still() -> None:
    even = {version: version * 5000 for version in range(10)}
    assert not describe_longest_pause("solver", even)
    late = {**even, 10: 45_000 + 130_000, 11: 45_000 + 230_000}
    told = describe_longest_pause("solver", late)
    assert "solver made no version for 130 s before version 10" in told
    assert "2 pause(s)" in told


def test_of_a_run_that_is_over_it_is_told_that_nearly_all_was_dropped() -> None:
    told = describe_discards("solver", 5, {"zero_variance": 700, "stale": 9, "run_end": 40})
    assert "of 714 groups 709 were discarded, 700 of them as zero_variance" in told
    assert not describe_discards("solver", 5, {"run_end": 400}), "the run was over"
    assert not describe_discards("solver", 100, {"stale": 700})


def test_every_cause_and_reason_has_its_place_on_the_page_that_explains_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "page.md").read_text()
    rows = text.partition("## When a run stands still")[2].splitlines()
    assert [row.split("`")[1] for row in rows if row.startswith("| `")] == [*dict.fromkeys(CAUSES)]
    assert all(f"`{reason}`" in text for reason in ADVICE_BY_REASON)
