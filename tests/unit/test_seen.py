"""A group as people see it, and its page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from drawn_page import drawn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.app.views.inspection_page import find_table_begin, step_page, trajectory_page
from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.infra.run.run import Run
from headrace.infra.weights.files import TOKENIZER_FILE
from headrace.ops.lineage.inspection import StepSeen, TrajectoryFound, _explain_missing_step
from headrace.ops.lineage.seen import (
    AdvantagesBySequence,
    TokenSeen,
    compute_shown_advantages,
    describe_group,
    describe_sequence,
)
from headrace.schemas.episode_errors import describe_error
from headrace.schemas.records import (
    ClaimCheck,
    CuratedGroup,
    Failure,
    NamedObject,
    Sequence,
    Span,
    Trajectory,
    TrajectoryGroup,
)
from headrace.trainers.batches.groups import DecodedGroup, build_batch_sequences, prepare_group
from headrace.trainers.batches.token_texts import NoTokenizer, TokenTexts, token_texts

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
END = len(BYTES)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token per byte: characters outside ASCII are of several."""
    made = Tokenizer(models.BPE(vocab={byte: n for n, byte in enumerate(BYTES)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return made


@pytest.fixture(scope="module")
def texts(tokenizer: Tokenizer) -> TokenTexts:
    return TokenTexts(tokenizer)


def test_a_character_of_several_tokens_stands_with_its_last(tokenizer: Tokenizer, texts: TokenTexts) -> None:
    ids = [*tokenizer.encode("a€ b").ids, END]

    assert texts.pieces(ids) == ["a", "", "", "€", " ", "b", "<end>"]
    assert [texts.is_special(i) for i in ids][-2:] == [False, True]
    assert texts.pieces([]) == []


def test_a_tokenizer_that_cannot_be_read_is_named() -> None:
    class Store:
        run_id = "r"

        def get(self, _: ClaimCheck) -> bytes:
            return b'{"version": "9.0", "model": {"type": "OfANewerBuild"}}'

    files = [NamedObject(TOKENIZER_FILE, ClaimCheck("main", "k"))]
    with pytest.raises(NoTokenizer, match=r"cannot read the tokenizer\.json of solver: "):
        token_texts(cast("Run", Store()), "solver", files)


def sequence(tokenizer: Tokenizer, prompt: str = "2+3?", answer: str = "5") -> Sequence:
    asked, said = tokenizer.encode(prompt).ids, [*tokenizer.encode(answer).ids, END]
    first = len(said) - 1
    return Sequence(
        ids=np.array([*asked, *said], np.int32),
        logprobs=np.array([0.0] * len(asked) + [-0.5] * first + [-0.25], np.float32),
        version_runs=np.array([-1, len(asked), 3, first, 4, 1], np.int32),
        spans=(Span("prompt", len(asked)), Span("generated", len(said), finish_reason="stop")),
    )


def test_a_sequence_is_seen_with_texts_statistics_and_tokens(tokenizer: Tokenizer, texts: TokenTexts) -> None:
    one = sequence(tokenizer)
    advantages = np.linspace(-0.5, 0.5, one.ids.size, dtype=np.float32)
    seen = describe_sequence(one, advantages, texts, each=True)

    assert [(span.kind, span.text) for span in seen.spans] == [("prompt", "2+3?"), ("generated", "5")]
    assert (seen.tokens, seen.versions, seen.advantage) == (2, {"3": 1, "4": 1}, pytest.approx(0.4))
    assert (seen.logprob_mean, seen.logprob_min) == (-0.375, -0.5)
    assert [(t.text, t.version, t.logprob, t.advantage) for t in seen.each[-3:]] == [
        ("?", None, None, None),
        ("5", 3, -0.5, pytest.approx(0.3)),
        ("<end>", 4, -0.25, 0.5),
    ]
    assert describe_sequence(sequence(tokenizer), None, texts).each == ()


def test_a_malformed_sequence_is_seen_without_its_tokens_beside_the_others(
    tokenizer: Tokenizer, texts: TokenTexts
) -> None:
    one = sequence(tokenizer)
    for malformed in (
        replace(one, spans=one.spans[:-1]),
        replace(one, ids=one.ids[:-1]),
        replace(one, logprobs=one.logprobs[:-1]),
        replace(one, version_runs=one.version_runs[:-1]),
        replace(one, ids=one.ids - 1000),
    ):
        member = Trajectory("sums:9:0", 1.0, {}, (malformed, one))
        dropped = DecodedGroup(CuratedGroup(), TrajectoryGroup(stream="sums", number=9, trajectories=(member,)))
        [seen] = describe_group(dropped, {}, texts, index=None, each=True).trajectories
        assert [(each.tokens, len(each.spans)) for each in seen.sequences] == [(0, 0), (2, 2)]
        assert seen.reward == 1.0


def group(tokenizer: Tokenizer, answer: str = "5") -> DecodedGroup:
    """Of four members, one malformed and one kept back; the first has two sequences."""
    one = sequence(tokenizer, answer=answer)
    members = tuple(
        Trajectory(f"sums:9:{n}", reward, {"[bold]": reward}, (one, one) if n == 0 else (one,))
        for n, reward in enumerate((1.0, 0.0, 9.0, 0.0))
    )
    failure = Failure(4, "time_limit", "it took 9 s", "own.py:3 in play")
    record = TrajectoryGroup(stream="sums", number=9, task_id="[b]2+3?", trajectories=members, failures=(failure,))
    return DecodedGroup(CuratedGroup(kept=(0, 3), rewards=(1.0, 0.0, math.nan, 0.0)), record)


def taken(whole: DecodedGroup, settings: TrainerSettings | None = None) -> AdvantagesBySequence:
    [found] = compute_shown_advantages([whole], settings or TrainerSettings())
    return found


def test_advantages_are_those_of_the_trainer_and_stand_with_their_sequences(tokenizer: Tokenizer) -> None:
    whole = group(tokenizer)

    found = taken(whole)

    assert list(found) == [(0, 0), (0, 1), (3, 0)]
    trained = build_batch_sequences([prepare_group(whole)], TrainerSettings())
    assert [each[-1] for each in found.values()] == [one.advantage for one in trained]
    assert [each[0] for each in found.values()] == [0, 0, 0], "of a prompt"
    assert found[0, 0][-1] > 0 > found[3, 0][-1]


def test_advantages_that_depend_on_the_batch_are_taken_from_all_of_it(tokenizer: Tokenizer) -> None:
    whole = group(tokenizer)
    other = replace(whole, curated=CuratedGroup(kept=(0, 3), rewards=(5.0, 0.0, math.nan, 0.0)))
    settings = TrainerSettings(advantage=Named(use="lite_ppo"))

    alone, (beside, _) = taken(whole, settings), compute_shown_advantages([whole, other], settings)

    assert alone.keys() == beside.keys()
    assert beside[0, 0][-1] < 0.6 * alone[0, 0][-1], "the other group's rewards are far apart"


def test_a_group_is_seen_with_what_was_not_trained_on(tokenizer: Tokenizer, texts: TokenTexts) -> None:
    whole = group(tokenizer)

    seen = describe_group(whole, taken(whole), texts, index=2)

    assert [one.trained for one in seen.trajectories] == [True, False, False, True]
    assert [one.shaped_reward for one in seen.trajectories] == [1.0, 0.0, None, 0.0]
    assert [one.reward for one in seen.trajectories] == [1.0, 0.0, 9.0, 0.0]
    assert seen.failures == ("time_limit",)
    assert [describe_error(error) for error in seen.errors] == ["it took 9 s at own.py:3 in play"]
    assert "1 by it took 9 s at own.py:3 in play" in drawn(step_page(step_of(whole, texts, 1)))


def step_of(whole: DecodedGroup, texts: TokenTexts, count: int) -> StepSeen:
    seen = describe_group(whole, taken(whole), texts, index=0)
    return StepSeen(
        "demo",
        "solver",
        7,
        0,
        0,
        "a",
        "b",
        {"loss": 0.25, "tokens": 1234.0, "ratio_max": 7.0, "mine": 2.5, "reward_part_answered": 0.9},
        32,
        (seen,) * count,
    )


def test_a_step_shows_short_answers_in_a_table(tokenizer: Tokenizer, texts: TokenTexts) -> None:
    told = drawn(step_page(step_of(group(tokenizer), texts, 2)))

    assert "loss 0.2500" in told
    assert "tokens 1,234" in told
    assert "mine 2.5" in told, "of a loss of one's own"
    assert "answered 0.9" in told, "a part of the reward"
    assert "ratio_max" not in told
    assert told.count("  2+3?") == 2, "one prompt for all of a group, without markup taken for a style"
    assert "0.1    1.00" in told, "a second sequence of the first member"
    assert "not used" in told
    assert "1 episode failed: time_limit" in told
    assert "30 more groups" in told


def test_a_trajectory_is_shown_token_by_token(tokenizer: Tokenizer, texts: TokenTexts) -> None:
    whole = group(tokenizer, answer="a b\n")
    seen = describe_group(whole, taken(whole), texts, index=0, only=3)
    found = TrajectoryFound("demo", "solver", 7, "demo.curated.solver[1]@5", seen)

    told, cut = drawn(trajectory_page(found, 0)), drawn(trajectory_page(found, 3))

    assert "sums:9:3 of solver, trained into version 7" in told
    assert "2+3?⟨v3⟩a b" in told
    assert "⟨v4⟩<end>" in told
    rows = [row.split() for row in told.splitlines()]
    assert ["5", "3", "1", "-0.58", "-0.5000", "60.7%", "▅", "␣", "generated"] in rows
    assert ["7", "3", "1", "-0.58", "-0.5000", "60.7%", "▅", "⏎", "generated"] in rows
    assert "6 more tokens" in cut


def test_log_probabilities_that_no_token_can_have_are_shown_as_they_are(
    tokenizer: Tokenizer, texts: TokenTexts
) -> None:
    whole = group(tokenizer, answer="abc")
    impossible = whole.trajectory_group.trajectories[3].sequences[0]
    impossible.logprobs[-4:] = (math.nan, math.inf, -math.inf, 800.0)
    found = TrajectoryFound("demo", "solver", None, "", describe_group(whole, {}, texts, index=0, only=3))

    rows = [row.split() for row in drawn(trajectory_page(found, 0)).splitlines()]

    assert ["4", "3", "1", "not", "used", "nan", "a", "generated"] in rows, "it has no probability"
    assert ["5", "3", "1", "not", "used", "inf", "100.0%", "█", "b", "generated"] in rows
    assert ["6", "3", "1", "not", "used", "-inf", "0.0%", "▁", "c", "generated"] in rows
    assert ["7", "4", "1", "not", "used", "800.0000", "100.0%", "█", "<end>", "generated"] in rows


@pytest.mark.parametrize(("first", "where"), [(1, "; version 0 is the start, which no step made"), (6, "")])
def test_training_is_said_to_have_begun_with_version_0_only_where_it_did(first: int, where: str) -> None:
    assert _explain_missing_step(0, first, 9) == f"no step 0: there are {first} to 9{where}"


def test_a_table_of_some_tokens_begins_shortly_before_the_first_generated_one() -> None:
    prompt = TokenSeen(1, "a", special=False, kind="prompt", turn=0, version=None, logprob=None, advantage=None)
    made = replace(prompt, kind="generated", logprob=-0.1)
    for asked, most, begin in ((20, 8, 16), (20, 100, 0), (2, 8, 0), (20, 24, 6), (20, 28, 2)):
        assert find_table_begin([prompt] * asked + [made] * 10, most) == begin, (asked, most)
    assert find_table_begin([prompt] * 20, 8) == 0
    assert find_table_begin([], 8) == 0
