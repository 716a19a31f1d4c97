"""One partition of a curator, driven by messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from made_recipes import sums_recipe

from headrace.consumers.algorithms.chain import ChainError
from headrace.consumers.algorithms.contract import Candidate, Keep, Result, Stateless
from headrace.consumers.curate import dedupe
from headrace.consumers.curate.context import CuratorContext, UnknownRevision, recipe_for
from headrace.consumers.curate.curator import MOST_FAILURES, CuratorPartition
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import REDRIVE_HEADER
from headrace.infra.recipe.settings import Recipe
from headrace.infra.store.object_store import ObjectMissing
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import (
    ClaimCheck,
    CuratedGroup,
    DeadLetter,
    EpisodeError,
    Failure,
    Outcome,
    Sampling,
    Sequence,
    Span,
    Trajectory,
    TrajectoryGroup,
)
from headrace.schemas.topics import Topics

RECIPE = sums_recipe(trainer={"max_staleness": 2})
TOPIC = "t.trajectories.solver"


def sequence(version: int) -> Sequence:
    return Sequence(
        ids=np.array([5, 6, 7, 1], np.int32),
        logprobs=np.array([0, 0, -0.5, -0.25], np.float32),
        version_runs=np.array([-1, 2, version, 2], np.int32),
        spans=(Span("prompt", 2), Span("generated", 2, finish_reason="stop", sampling=Sampling())),
    )


def group(number: int, rewards: tuple[float, ...] = (1.0, 0.0), version: int = 3, **more: object) -> TrajectoryGroup:
    trajectories = tuple(Trajectory(f"sums:{number}:{i}", r, {}, (sequence(version),)) for i, r in enumerate(rewards))
    made = TrajectoryGroup(
        run_id="run-1",
        stream="sums",
        number=number,
        policy="solver",
        n_asked=len(rewards),
        trajectories=trajectories,
        head_version=version,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def message(made: TrajectoryGroup, value: bytes | None = None, offset: int = 0) -> Message:
    stamp = Stamp(
        made.run_id,
        made.stream,
        made.number,
        revision=made.revision,
        policy=made.policy,
        head_version=made.head_version,
    )
    data = codec.encode(made) if value is None else value
    return Message(TOPIC, 0, offset, stamp.key, data, stamp.to_headers())


def partition(fetch: object = None) -> CuratorPartition:
    context = CuratorContext("run-1", "solver", Topics("t"), lambda _: RECIPE, fetch or pytest.fail)  # type: ignore[arg-type]
    return CuratorPartition(context, (TOPIC, 0), 4)


def read(outgoing: list[Outgoing]) -> list[object]:
    return [codec.decode_any(record.value) for record in outgoing]


def test_a_group_with_signal_is_kept_with_its_bytes_unchanged() -> None:
    sent = message(group(0))
    outcome, curated = read(list(partition().handle(sent)))
    assert isinstance(outcome, Outcome)
    assert isinstance(curated, CuratedGroup)
    assert (outcome.verdict, outcome.rewards, outcome.lengths) == ("kept", (1.0, 0.0), (2, 2))
    assert curated.group == sent.value
    assert (curated.min_version, curated.deadline_version, curated.kept) == (3, 5, (0, 1))


def test_the_outcome_of_a_group_whose_episodes_failed_tells_how() -> None:
    failure = Failure(0, "error", "KeyError: 'x'", "own.py:5 in judge", "solver", 1, "Traceback ...")
    [outcome] = read(list(partition().handle(message(group(0, (), failures=(failure,) * 2, reason="failed")))))
    assert isinstance(outcome, Outcome)
    assert (outcome.reason, outcome.errors) == (
        "failed",
        (EpisodeError("error", "KeyError: 'x'", "own.py:5 in judge", "solver", 1, 2),),
    )


def test_records_go_to_the_partition_that_they_came_from() -> None:
    context = CuratorContext("run-1", "solver", Topics("t"), lambda _: RECIPE, pytest.fail)
    outgoing = list(CuratorPartition(context, (TOPIC, 2), 4).handle(message(group(6))))
    assert [(r.topic, r.partition) for r in outgoing] == [("t.outcomes.solver", 2), ("t.curated.solver", 2)]


def test_equal_rewards_are_dropped_with_an_outcome_that_still_tells_them() -> None:
    (outcome,) = read(list(partition().handle(message(group(0, rewards=(1.0, 1.0))))))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason, outcome.rewards) == ("dropped", "zero_variance", (1.0, 1.0))


def test_a_repetition_gives_nothing_even_after_a_restore() -> None:
    first, second = partition(), partition()
    assert list(first.handle(message(group(0))))
    second.restore(first.snapshot())
    assert list(second.handle(message(group(0, rewards=(0.0, 1.0))))) == []
    assert list(second.handle(message(group(4))))


def test_staleness_is_measured_by_the_newest_head_version_of_the_partition() -> None:
    state = partition()
    state.handle(message(group(0, version=9)))
    (outcome,) = read(list(state.handle(message(group(4, version=6)))))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason) == ("dropped", "stale")
    assert len(list(state.handle(message(group(8, version=7))))) == 2


@pytest.mark.parametrize(
    ("sent", "reason", "number"),
    [
        (message(group(0), value=codec.encode(group(0))[:-5]), "undecodable", 0),
        (message(group(0), value=b"\xc3\x01unknown!" + b"x" * 20), "undecodable", 0),
        (replace(message(group(0)), headers=[]), "undecodable", -1),
        (message(group(0, run_id="run-0")), "other_run", -1),
        (message(group(1)), "misrouted", -1),
        (message(group(0), value=codec.encode(group(4))), "undecodable", 0),
    ],
)
def test_what_cannot_be_read_becomes_a_dead_letter_with_its_bytes(sent: Message, reason: str, number: int) -> None:
    (letter,) = read(list(partition().handle(sent)))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.number, letter.value) == (reason, number, sent.value)


def test_a_head_version_from_far_ahead_is_dead_and_moves_nothing() -> None:
    state = partition()
    state.handle(message(group(0, version=1)))
    (letter,) = read(list(state.handle(message(group(4, version=5000)))))
    assert isinstance(letter, DeadLetter)
    assert letter.reason == "time_travel"
    assert len(list(state.handle(message(group(8, version=1))))) == 2, "the clock did not move"


def test_a_group_of_a_version_that_is_not_published_is_dead_and_moves_nothing() -> None:
    asked: list[int] = []

    def is_published(_: Message, one: TrajectoryGroup) -> bool:
        asked.append(one.head_version)
        return one.head_version <= 3

    context = CuratorContext("run-1", "solver", Topics("t"), lambda _: RECIPE, pytest.fail, is_published)
    state = CuratorPartition(context, (TOPIC, 0), 4)
    state.handle(message(group(0, version=3)))
    (letter,) = read(list(state.handle(message(group(4, version=904)))))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.number) == ("time_travel", 4)
    assert "904, and no such version is published" in letter.detail
    assert state.was_unread, "a snapshot follows, so that a restore does not decide anew"
    assert len(list(state.handle(message(group(8, version=3))))) == 2, "the clock did not move"
    assert asked == [3, 904], "what is no newer than the clock is published"


def test_a_published_version_moves_the_clock_however_far_ahead_it_is() -> None:
    context = CuratorContext("run-1", "solver", Topics("t"), lambda _: RECIPE, pytest.fail, lambda *_: True)
    state = CuratorPartition(context, (TOPIC, 0), 4)
    state.handle(message(group(0, version=1)))
    assert len(list(state.handle(message(group(4, version=5000))))) == 2
    (outcome,) = read(list(state.handle(message(group(8, version=1)))))
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "stale"


@pytest.mark.parametrize("variant", ["solver", "solver.free"])
def test_a_group_of_a_number_that_was_never_issued_concludes_nothing_and_is_no_first_of_its_number(
    variant: str,
) -> None:
    issued = {0, 4}

    def is_issued(_: Message, stamp: Stamp) -> bool:
        return stamp.number in issued

    context = CuratorContext("run-1", variant, Topics("t"), lambda _: SHADOWED, pytest.fail, is_issued=is_issued)
    state = CuratorPartition(context, (TOPIC, 0), 4)
    state.handle(message(group(0)))
    (letter,) = read(list(state.handle(message(group(8)))))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.number, letter.stream, letter.headers) == ("not_issued", -1, "", {})
    assert (letter.topic, letter.partition, letter.offset) == (TOPIC, 0, 0), "a replay finds what was refused by that"
    assert state.was_unread, "a snapshot follows, so that a restore does not decide anew"
    issued.add(8)
    assert len(list(state.handle(message(group(8))))) == 2, "what was forged before is no repetition of it"


def test_a_group_behind_a_claim_check_is_fetched_and_a_missing_one_is_dead() -> None:
    whole = group(0)
    claimed = replace(whole, trajectories=(), claim=ClaimCheck("main", "groups/x", "00", 1))
    outcome, curated = read(list(partition(lambda _: codec.encode(whole)).handle(message(claimed))))
    assert isinstance(outcome, Outcome)
    assert isinstance(curated, CuratedGroup)
    assert outcome.rewards == (1.0, 0.0)
    assert codec.decode(curated.group, TrajectoryGroup).claim == claimed.claim

    def missing(_: ClaimCheck) -> bytes:
        raise ObjectMissing("groups/x is not there")

    (letter,) = read(list(partition(missing).handle(message(claimed))))
    assert isinstance(letter, DeadLetter)
    assert letter.reason == "missing_object"


def test_the_same_records_give_the_same_bytes_whether_live_or_restored_half_way() -> None:
    sent = [message(group(4 * i, rewards=(float(i % 2), 0.0), version=i // 3), offset=i) for i in range(30)]
    live = partition()
    whole = [record for m in sent for record in live.handle(m)]
    first, second = partition(), partition()
    halves = [record for m in sent[:15] for record in first.handle(m)]
    second.restore(first.snapshot())
    halves += [record for m in sent[15:] for record in second.handle(m)]
    assert halves == whole


def sent_back(message: Message) -> Message:
    return replace(message, headers=[*message.headers, ("redrive", b"3")])


def test_a_dead_group_that_is_sent_back_after_a_fix_is_new_once_over_a_restore() -> None:
    store: dict[str, bytes] = {}

    def fetch(claim: ClaimCheck) -> bytes:
        if claim.key not in store:
            raise ObjectMissing(f"{claim.key} is not there")
        return store[claim.key]

    whole = group(0)
    sent = message(replace(whole, trajectories=(), claim=ClaimCheck("main", "groups/x", "00", 1)))
    first, second = partition(fetch), partition(fetch)
    assert isinstance(read(list(first.handle(sent)))[0], DeadLetter)
    second.restore(first.snapshot())
    assert list(second.handle(sent)) == [], "a repetition by a worker stays one"
    assert isinstance(read(list(second.handle(sent_back(sent))))[0], DeadLetter), "nothing was mended yet"
    store["groups/x"] = codec.encode(whole)
    outcome, curated = read(list(second.handle(sent_back(sent))))
    assert isinstance(outcome, Outcome)
    assert isinstance(curated, CuratedGroup)
    assert list(second.handle(sent_back(sent))) == [], "a second copy is a repetition"


def test_a_dead_group_that_was_forgotten_becomes_a_letter_again_when_it_is_sent_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedupe, "MOST_DEAD", 1)
    first, second = partition(), partition()
    remembered, forgotten = (message(group(number)) for number in (0, 4))
    for one in (remembered, forgotten):
        assert isinstance(read(list(first.handle(replace(one, value=b"torn"))))[0], DeadLetter)
    second.restore(first.snapshot())
    (letter,) = read(list(second.handle(sent_back(forgotten))))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.number) == ("forgotten", 4), "the word that it was sent back opened its number"
    assert list(second.handle(forgotten)) == [], "a repetition by a worker stays one"
    assert len(list(second.handle(sent_back(remembered)))) == 2


def test_a_group_that_was_read_is_not_read_again_because_a_header_says_so() -> None:
    state = partition()
    assert list(state.handle(message(group(0))))
    assert list(state.handle(sent_back(message(group(0))))) == []


def test_a_group_of_another_policy_concludes_nothing() -> None:
    state = partition()
    (letter,) = read(list(state.handle(message(group(0, policy="judge")))))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.number) == ("misrouted", -1)
    assert list(state.handle(message(group(0))))


def test_what_an_algorithm_only_watches_is_counted_over_a_restore_and_nothing_else_changes() -> None:
    watch = {"use": "repetition", "run": 2, "probability": 0.85}
    watched, other = (partition_of([use]) for use in ({**watch, "monitor": True}, {**watch, "run": 3, "monitor": True}))
    flagged = replace(sequence(3), logprobs=np.array([0, 0, -0.1, -0.1], np.float32))
    for number in (0, 4):
        made = group(number)
        one = replace(made.trajectories[0], sequences=(flagged,))
        sent = message(replace(made, trajectories=(one, *made.trajectories[1:])))
        assert list(watched.handle(sent)) == list(other.handle(sent))
    again = partition_of([{**watch, "monitor": True}])
    again.restore(watched.snapshot())
    assert (watched.flagged, again.flagged, other.flagged) == ({"repetition": 2}, {"repetition": 2}, {"repetition": 0})


def test_an_algorithm_that_stands_twice_counts_what_both_flagged() -> None:
    watch = {"use": "repetition", "run": 2, "probability": 0.3, "monitor": True}
    state = partition_of([watch, {**watch, "run": 3}])
    list(state.handle(message(group(0))))
    assert state.flagged == {"repetition": 2}


def test_a_trajectory_that_is_dropped_is_named_as_it_is_where_an_episode_failed_before_it() -> None:
    whole, long = sequence(3), replace(sequence(3), ids=np.array([5, 6, 7, 7, 1], np.int32))
    long = replace(
        long,
        logprobs=np.array([0, 0, -0.5, -0.5, -0.5], np.float32),
        version_runs=np.array([-1, 2, 3, 3], np.int32),
        spans=(Span("prompt", 2), Span("generated", 3, finish_reason="stop", sampling=Sampling())),
    )
    members = tuple(
        Trajectory(f"sums:0:{sample}", reward, {}, (played,))
        for sample, reward, played in ((0, 1.0, whole), (2, 0.0, whole), (3, 0.0, long))
    )
    state = partition_of([{"use": "length_bounds", "longest": 2}])
    found = read(list(state.handle(message(group(0, trajectories=members, n_asked=4)))))
    dropped = [one for one in found if isinstance(one, Outcome) and one.level == "trajectory"]
    assert [one.trajectory_id for one in dropped] == ["sums:0:3"]


class Picky(Stateless):
    """Fails over some numbers."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.refused = refused

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        if candidate.group.number in self.refused:
            raise ZeroDivisionError("rewards of nobody")
        return (Keep(candidate),)


def picky(*refused: int) -> CuratorPartition:
    return partition_of([{"use": f"{__name__}:Picky", "refused": list(refused)}])


def test_a_group_over_which_an_algorithm_fails_is_dead_and_the_next_one_is_kept() -> None:
    state = picky(4)
    [dead] = read(list(state.handle(message(group(4)))))
    assert isinstance(dead, DeadLetter)
    assert (dead.reason, dead.number, dead.component) == ("algorithm_failed", 4, "curate.solver")
    assert "Picky failed: ZeroDivisionError: rewards of nobody (" in dead.detail
    assert "test_curation.py:" in dead.detail
    assert state.was_unread, "a snapshot follows: what it did before it failed is not done again otherwise"
    outcome, _ = read(list(state.handle(message(group(0), offset=1))))
    assert isinstance(outcome, Outcome)
    assert outcome.verdict == "kept"


def test_a_group_over_which_an_algorithm_failed_is_curated_once_it_is_sent_back_after_the_fix() -> None:
    state = picky(4)
    list(state.handle(message(group(4))))
    mended = picky()
    mended.restore(state.snapshot())
    outcome, curated = read(list(mended.handle(sent_back(message(group(4), offset=1)))))
    assert isinstance(outcome, Outcome)
    assert isinstance(curated, CuratedGroup)
    assert (outcome.verdict, outcome.number) == ("kept", 4)


def test_an_algorithm_that_fails_over_one_group_after_the_other_ends_the_curator_with_its_words() -> None:
    state = picky(*range(0, 400, 4))
    for place in range(MOST_FAILURES - 1):
        assert len(list(state.handle(message(group(4 * place), offset=place)))) == 1
    with pytest.raises(ChainError, match=r"8 groups in a row are dead, the last as .*rewards of nobody") as caught:
        list(state.handle(message(group(4 * MOST_FAILURES), offset=MOST_FAILURES)))
    assert caught.value.exit_code == 2, "the supervisor does not start it again"


def test_failures_between_which_groups_are_curated_end_nothing() -> None:
    state = picky(*range(0, 400, 8))
    for place in range(4 * MOST_FAILURES):
        list(state.handle(message(group(4 * place), offset=place)))


def partition_of(chain: list[object]) -> CuratorPartition:
    recipe = Recipe.model_validate({**RECIPE.model_dump(mode="json"), "curate": {"chain": chain}})
    return CuratorPartition(
        CuratorContext("run-1", "solver", Topics("t"), lambda _: recipe, pytest.fail), (TOPIC, 0), 4
    )


SHADOWED = Recipe.model_validate({**RECIPE.model_dump(), "shadows": {"free": {"chain": ["validate"]}, "twin": {}}})


def shadow(line: str = "solver.free") -> CuratorPartition:
    context = CuratorContext("run-1", line, Topics("t"), lambda _: SHADOWED, pytest.fail)
    return CuratorPartition(context, (TOPIC, 0), 4)


def test_a_shadow_decides_by_its_own_chain_and_writes_to_its_own_topics() -> None:
    equal = message(group(0, rewards=(1.0, 1.0)))
    assert [one.topic for one in partition().handle(equal)] == ["t.outcomes.solver"]
    assert [one.topic for one in shadow().handle(equal)] == ["t.outcomes.solver.free", "t.curated.solver.free"]
    sent = message(group(0))
    values = [[one.value for one in state.handle(sent)] for state in (partition(), shadow("solver.twin"))]
    assert values[0] == values[1], "the same chain gives the same bytes"


@pytest.mark.parametrize(
    ("sent", "reasons"),
    [
        (message(group(0), value=b"no record"), ["undecodable"]),
        (message(group(0, version=5000)), ["time_travel"]),
        (replace(message(group(0)), headers=[]), []),
        (message(group(1)), []),
        (message(group(0, run_id="run-0")), []),
    ],
)
def test_what_a_shadow_cannot_read_it_concludes_as_the_policy_does_and_without_a_letter(
    sent: Message, reasons: list[str]
) -> None:
    state, beside = shadow(), partition()
    found = [one for one in read(list(state.handle(sent))) if isinstance(one, Outcome)]
    assert [(one.verdict, one.reason, one.number) for one in found] == [("dropped", why, 0) for why in reasons]
    (letter,) = read(list(beside.handle(sent)))
    assert isinstance(letter, DeadLetter)
    assert (letter.number >= 0) == bool(reasons), "what concludes a number here concludes it there"
    assert (state.was_unread, beside.was_unread) == (True, True)
    state.handle(message(group(4)))
    assert not state.was_unread


def test_what_is_sent_back_is_a_repetition_to_a_shadow() -> None:
    broken, sent_back = message(group(0), value=b"no record"), message(group(0))
    sent_back = replace(sent_back, headers=[*sent_back.headers, (REDRIVE_HEADER, b"0")])
    for state, expected in ((partition(), 2), (shadow(), 0)):
        assert list(state.handle(broken))
        assert len(list(state.handle(sent_back))) == expected


def test_groups_of_before_a_shadow_was_there_go_through_the_first_chain_that_it_had() -> None:
    later = Recipe.model_validate({**RECIPE.model_dump(), "shadows": {"free": {"chain": []}}})
    recipes = {0: RECIPE, 1: SHADOWED, 2: later}
    assert [recipe_for(recipes, revision, "solver.free") for revision in recipes] == [SHADOWED, SHADOWED, later]
    assert recipe_for(recipes, 0, "solver") is RECIPE
    with pytest.raises(UnknownRevision):
        recipe_for(recipes, 3, "solver.free")
