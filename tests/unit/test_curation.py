"""One partition of a curator, driven by messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from made_groups import group as small_group
from made_recipes import sums_recipe
from structlog.testing import capture_logs

from headrace.consumers.algorithms.chain import ChainError
from headrace.consumers.algorithms.contract import LARGEST_NUMBER, Candidate, Keep, Result, Stateless
from headrace.consumers.curate import dedupe
from headrace.consumers.curate.context import CuratorContext, UnknownRevision, find_recipe
from headrace.consumers.curate.curator import MOST_FAILURES, CuratorPartition
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message, Outgoing
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
    TrajectoryGroup,
)
from headrace.schemas.topics import Topics

RECIPE = sums_recipe(trainer={"max_staleness": 2})
TOPIC = "t.trajectories.solver"


def group(number: int, rewards: tuple[float, ...] = (1.0, 0.0), version: int = 3, **more: object) -> TrajectoryGroup:
    made = small_group(rewards, [2] * len(rewards), number=number, version=version)
    return replace(made, **{"run_id": "run-1", **more})  # type: ignore[arg-type]


def message(made: TrajectoryGroup, value: bytes | None = None, offset: int = 0) -> Message:
    stamp = Stamp(
        made.run_id, made.stream, made.number, revision=made.revision, policy=made.policy,
        head_version=made.head_version,
    )  # fmt: skip
    data = codec.encode(made) if value is None else value
    return Message(TOPIC, 0, offset, stamp.key, data, stamp.to_headers())


def partition(fetch: Any = pytest.fail, policy: str = "solver", recipe: Recipe | None = None, **more: Any) -> Any:
    """One partition of four of a curator."""
    context = CuratorContext("run-1", policy, Topics("t"), lambda _: recipe or RECIPE, fetch, **more)
    return CuratorPartition(context, (TOPIC, 0), 4)


def handled(state: CuratorPartition, made: TrajectoryGroup) -> Any:
    """Return the first record of a group: its outcome, or its dead letter."""
    return read(list(state.handle(message(made))))[0]


def read(outgoing: list[Outgoing]) -> list[object]:
    return [codec.decode_any(record.value) for record in outgoing]


def test_a_group_with_signal_is_kept_with_its_bytes_unchanged_and_one_without_is_dropped() -> None:
    sent = message(group(0))
    outgoing = list(partition().handle(sent))
    outcome, curated = read(outgoing)
    assert isinstance(outcome, Outcome)
    assert isinstance(curated, CuratedGroup)
    assert [(r.topic, r.partition) for r in outgoing] == [("t.outcomes.solver", 0), ("t.curated.solver", 0)]
    assert (outcome.verdict, outcome.rewards, outcome.lengths) == ("kept", (1.0, 0.0), (2, 2))
    assert curated.group == sent.value
    assert (curated.min_version, curated.deadline_version, curated.kept) == (3, 5, (0, 1))
    with capture_logs() as logs:
        equal = handled(partition(), group(0, rewards=(1.0, 1.0)))
    [dropped] = [log for log in logs if log["event"] == "group.dropped"]
    assert (dropped["number"], dropped["why"]) == (0, "all 2 rewards are 1.0"), (
        "a user sees the case, not only the rule"
    )
    assert (equal.verdict, equal.reason, equal.rewards) == ("dropped", "zero_variance", (1.0, 1.0))


def test_the_outcome_of_a_group_whose_episodes_failed_tells_how() -> None:
    failure = Failure(0, "error", "KeyError: 'x'", "own.py:5 in judge", "solver", 1, "Traceback ...")
    [outcome] = read(list(partition().handle(message(group(0, (), failures=(failure,) * 2, reason="failed")))))
    assert isinstance(outcome, Outcome)
    assert (outcome.reason, outcome.errors) == (
        "failed",
        (EpisodeError("error", "KeyError: 'x'", "own.py:5 in judge", "solver", 1, 2, has_traceback=True),),
    )


def test_a_repetition_gives_nothing_even_after_a_restore() -> None:
    first, second = partition(), partition()
    assert list(first.handle(message(group(0))))
    second.restore(first.snapshot())
    assert list(second.handle(message(group(0, rewards=(0.0, 1.0))))) == []
    assert list(second.handle(message(group(4))))


def test_staleness_is_measured_by_the_newest_head_version_of_the_partition() -> None:
    state = partition()
    state.handle(message(group(0, version=9)))
    outcome = handled(state, group(4, version=6))
    assert (outcome.verdict, outcome.reason) == ("dropped", "stale")
    assert len(list(state.handle(message(group(8, version=7))))) == 2


def test_what_cannot_be_read_becomes_a_dead_letter_with_its_bytes() -> None:
    for sent, reason, number in (
        (message(group(0), value=codec.encode(group(0))[:-5]), "undecodable", 0),
        (message(group(0), value=b"\xc3\x01unknown!" + b"x" * 20), "undecodable", 0),
        (replace(message(group(0)), headers=[]), "undecodable", -1),
        (message(group(0, run_id="run-0")), "other_run", -1),
        (message(group(1)), "misrouted", -1),
        (message(group(0, policy="judge")), "misrouted", -1),
        (message(group(0), value=codec.encode(group(4))), "undecodable", 0),
    ):
        state = partition()
        (letter,) = read(list(state.handle(sent)))
        assert isinstance(letter, DeadLetter)
        assert (letter.reason, letter.number, letter.value) == (reason, number, sent.value)
        assert bool(list(state.handle(message(group(0))))) == (number < 0), "what names no number concludes none"


def test_a_head_version_from_far_ahead_is_dead_and_moves_nothing() -> None:
    state = partition()
    state.handle(message(group(0, version=1)))
    assert handled(state, group(4, version=5000)).reason == "time_travel"
    assert len(list(state.handle(message(group(8, version=1))))) == 2, "the clock did not move"


def test_a_group_of_a_version_that_is_not_published_is_dead_and_moves_nothing() -> None:
    asked: list[int] = []

    def is_published(_: Message, one: TrajectoryGroup) -> bool:
        asked.append(one.head_version)
        return one.head_version <= 3

    state = partition(is_published=is_published)
    state.handle(message(group(0, version=3)))
    letter = handled(state, group(4, version=904))
    assert (letter.reason, letter.number) == ("time_travel", 4)
    assert "904, but no such version is published" in letter.detail
    assert state.is_last_refused, "a snapshot follows, so that a restore does not decide anew"
    assert len(list(state.handle(message(group(8, version=3))))) == 2, "the clock did not move"
    assert asked == [3, 904], "what is no newer than the clock is published"


def test_a_published_version_moves_the_clock_however_far_ahead_it_is() -> None:
    state = partition(is_published=lambda *_: True)
    state.handle(message(group(0, version=1)))
    assert len(list(state.handle(message(group(4, version=5000))))) == 2
    assert handled(state, group(8, version=1)).reason == "stale"


def test_a_group_of_a_number_that_was_never_issued_concludes_nothing_and_is_no_first_of_its_number() -> None:
    for variant in ("solver", "solver.free"):
        issued = {0, 4}
        state = partition(policy=variant, recipe=SHADOWED, is_issued=lambda _, stamp, all_=issued: stamp.number in all_)
        state.handle(message(group(0)))
        letter = handled(state, group(8))
        assert (letter.reason, letter.number, letter.stream, letter.headers) == ("not_issued", -1, "", {})
        assert (letter.topic, letter.partition, letter.offset) == (TOPIC, 0, 0), "a replay finds by that what it was"
        assert state.is_last_refused, "a snapshot follows, so that a restore does not decide anew"
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

    assert handled(partition(missing), claimed).reason == "missing_object"


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
    monkeypatch.setattr(dedupe, "MOST_DEAD_KEPT", 1)
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


def test_what_an_algorithm_only_watches_is_counted_over_a_restore_and_nothing_else_changes() -> None:
    watch = {"use": "repetition", "run": 2, "probability": 0.5, "monitor": True}
    watched, other, twice = (partition_of(chain) for chain in ([watch], [{**watch, "run": 3}], [watch, watch]))
    for number in (0, 4):
        sent = message(group(number))
        assert list(watched.handle(sent)) == list(other.handle(sent)) == list(twice.handle(sent))
    again = partition_of([watch])
    again.restore(watched.snapshot())
    flagged = [one.flagged["repetition"] for one in (watched, again, other, twice)]
    assert flagged == [4, 4, 0, 8]


class Picky(Stateless):
    """Fails over some numbers."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.refused = refused

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        if candidate.group.number in self.refused:
            raise ZeroDivisionError("rewards of nobody")
        return (Keep(candidate),)


def picky(*refused: int, kind: type[Picky] = Picky) -> CuratorPartition:
    return partition_of([{"use": f"{__name__}:{kind.__name__}", "refused": list(refused)}])


def test_a_group_over_which_an_algorithm_fails_is_dead_and_the_next_one_is_kept() -> None:
    state, mended = picky(4), picky()
    [dead] = read(list(state.handle(message(group(4)))))
    assert isinstance(dead, DeadLetter)
    assert (dead.reason, dead.number, dead.component) == ("algorithm_failed", 4, "curate.solver")
    assert "Picky failed: ZeroDivisionError: rewards of nobody (" in dead.detail
    assert "test_curation.py:" in dead.detail
    assert state.is_last_refused, "a snapshot follows: what it did before it failed is not done again otherwise"
    mended.restore(state.snapshot())
    assert handled(state, group(0)).verdict == "kept"
    outcome, _ = read(list(mended.handle(sent_back(message(group(4), offset=1)))))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.number) == ("kept", 4), "it was sent back after the fix"


class Timeless(Picky):
    """Gives some groups a version that no record can hold with the trainer's limit on top."""

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        changes = {"min_version": 2**63 - 1} if candidate.group.number in self.refused else {}
        return (Keep(replace(candidate, **changes)),)


def test_a_group_whose_version_no_record_can_hold_is_dead_and_the_next_one_is_kept() -> None:
    state = picky(0, kind=Timeless)
    dead = handled(state, group(0))
    assert (dead.reason, dead.number) == ("algorithm_failed", 0)
    assert "min_version must be a whole number from -2^62 to 2^62" in dead.detail
    assert handled(state, group(4)).verdict == "kept"


def test_a_replay_however_late_it_may_be_has_a_deadline_that_a_record_can_hold() -> None:
    late = {"use": "replay_uniform", "ratio": 0.9, "max_staleness": LARGEST_NUMBER}
    state = partition_of(["validate", late])
    [*_, again] = [record for number in range(0, 12, 4) for record in read(list(state.handle(message(group(number)))))]
    assert isinstance(again, CuratedGroup)
    assert again.deadline_version == LARGEST_NUMBER + 3


def test_an_algorithm_that_fails_over_one_group_after_the_other_ends_the_curator_with_its_words() -> None:
    state, now_and_then = picky(*range(0, 400, 4)), picky(*range(0, 400, 8))
    for offset in range(4 * MOST_FAILURES):
        list(now_and_then.handle(message(group(4 * offset), offset=offset)))  # which ends nothing
    for offset in range(MOST_FAILURES - 1):
        assert len(list(state.handle(message(group(4 * offset), offset=offset)))) == 1
    with pytest.raises(
        ChainError, match=r"the chain failed on 8 groups in a row; the last error: .*rewards of nobody"
    ) as caught:
        list(state.handle(message(group(4 * MOST_FAILURES), offset=MOST_FAILURES)))
    assert caught.value.exit_code == 2, "the supervisor does not start it again"


def partition_of(chain: list[object]) -> CuratorPartition:
    return partition(recipe=Recipe.model_validate({**RECIPE.model_dump(mode="json"), "curate": {"chain": chain}}))


SHADOWED = Recipe.model_validate({**RECIPE.model_dump(), "shadows": {"free": {"chain": ["validate"]}, "twin": {}}})


def shadow(line: str = "solver.free") -> CuratorPartition:
    return partition(policy=line, recipe=SHADOWED)


def test_a_shadow_decides_by_its_own_chain_and_writes_to_its_own_topics() -> None:
    equal = message(group(0, rewards=(1.0, 1.0)))
    assert [one.topic for one in partition().handle(equal)] == ["t.outcomes.solver"]
    assert [one.topic for one in shadow().handle(equal)] == ["t.outcomes.solver.free", "t.curated.solver.free"]
    sent = message(group(0))
    values = [[one.value for one in state.handle(sent)] for state in (partition(), shadow("solver.twin"))]
    assert values[0] == values[1], "the same chain gives the same bytes"


def test_what_a_shadow_cannot_read_it_concludes_as_the_policy_does_and_without_a_letter() -> None:
    for sent, reasons in (
        (message(group(0), value=b"no record"), ["undecodable"]),
        (message(group(0, version=5000)), ["time_travel"]),
        (replace(message(group(0)), headers=[]), []),
        (message(group(1)), []),
        (message(group(0, run_id="run-0")), []),
    ):
        state, beside = shadow(), partition()
        found = [one for one in read(list(state.handle(sent))) if isinstance(one, Outcome)]
        assert [(one.verdict, one.reason, one.number) for one in found] == [("dropped", why, 0) for why in reasons]
        (letter,) = read(list(beside.handle(sent)))
        assert isinstance(letter, DeadLetter)
        assert (letter.number >= 0) == bool(reasons), "what concludes a number here concludes it there"
        assert (state.is_last_refused, beside.is_last_refused) == (True, True)
        state.handle(message(group(4)))
        assert not state.is_last_refused


def test_groups_of_before_a_shadow_was_there_go_through_the_first_chain_that_it_had() -> None:
    later = Recipe.model_validate({**RECIPE.model_dump(), "shadows": {"free": {"chain": []}}})
    recipes = {0: RECIPE, 1: SHADOWED, 2: later}
    assert [find_recipe(recipes, revision, "solver.free") for revision in recipes] == [SHADOWED, SHADOWED, later]
    assert find_recipe(recipes, 0, "solver") is RECIPE
    with pytest.raises(UnknownRevision):
        find_recipe(recipes, 3, "solver.free")


def test_the_curator_of_a_shadow_that_a_later_recipe_dropped_ends_with_a_sentence() -> None:
    recipes = {0: RECIPE, 1: SHADOWED, 2: RECIPE}
    context = CuratorContext(
        "run-1", "solver.free", Topics("t"), lambda revision: find_recipe(recipes, revision, "solver.free"), pytest.fail
    )
    state = CuratorPartition(context, (TOPIC, 0), 4)
    assert handled(state, group(0, revision=1)).verdict == "kept"
    with pytest.raises(
        UsageError, match=r"recipe revision 2 and later ones have no shadow solver\.free, so this curator ends"
    ):
        handled(state, group(4, revision=2))
    with pytest.raises(UsageError, match="recipe revision 2 and later ones have no policy judge"):
        find_recipe(recipes, 2, "judge")
    recipes[3] = SHADOWED
    assert handled(state, group(8, revision=2)).verdict == "kept", "the shadow is back"
