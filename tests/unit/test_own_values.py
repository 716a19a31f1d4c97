"""What a user's own code gives back: any number is taken, and what is none is refused where it was written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import SHAPE, TOKENIZER, batch

from headrace.consumers.algorithms.chain import Chain
from headrace.consumers.algorithms.contract import Candidate, Keep, Stateless
from headrace.consumers.curate.curated_records import build_curated
from headrace.envs.contract import Problem, RoleTrajectory, Score
from headrace.envs.isolation import score_in_child
from headrace.envs.transcript import Transcript
from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.schemas import codec
from headrace.schemas.records import CuratedGroup, Sequence, Trajectory, TrajectoryGroup
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import build_model
from headrace.trainers.losses import TokenLoss, TrainedTokens, add_metrics, objective_of

NUMBERS: Mapping[str, Any] = {
    "int": 1,
    "bool": True,
    "float32": np.float32(1),
    "float64": np.float64(1),
    "numpy bool": np.bool_(True),
    "tensor": torch.tensor(1),
    "zero-dimensional array": np.array(1),
}
NO_NUMBERS: tuple[Any, ...] = ("1", None, [1], np.ones(2), 1j)


def test_any_number_is_a_reward_and_a_part_and_travels() -> None:
    for number in NUMBERS.values():
        score = Score(number, {"used": number})
        played = RoleTrajectory(number, [Sequence(reward=number, baseline=number)], {"used": number})  # type: ignore[arg-type]  # the test's point
        for one in (score, played):
            assert (type(one.reward), type(one.parts["used"])) == (float, float)
            assert (one.reward, one.parts) == (1.0, {"used": 1.0})
        again = Transcript("solver").sequence(reward=number, baseline=number)
        made = Trajectory("w:0:0", played.reward, dict(played.parts), (*played.sequences, again))
        [read] = codec.decode(codec.encode(TrajectoryGroup(trajectories=(made,))), TrajectoryGroup).trajectories
        assert (read.reward, read.reward_parts) == (1.0, {"used": 1.0})
        for sequence in (*played.sequences, again):
            assert [type(value) for value in (sequence.reward, sequence.baseline)] == [float] * 2


def test_what_is_no_number_is_refused_by_name() -> None:
    for value in NO_NUMBERS:
        for make, name in (
            (lambda: Score(value), r"Score\.reward"),  # noqa: B023 - called at once
            (lambda: Score(1, {"used": value}), r"Score\.parts\['used'\]"),  # noqa: B023
            (lambda: RoleTrajectory(value, ()), r"RoleTrajectory\.reward"),  # noqa: B023
        ):
            with pytest.raises(TypeError, match=f"^{name} must be a number, got "):
                make()


def test_what_is_no_part_no_sequence_and_no_text_is_refused_by_name() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"a name in Score\.parts must be a string, got int 3"):
        Score(1, {wrong: 1})
    with pytest.raises(TypeError, match=r"^Score\.parts must be a dict of numbers by name, got int 3"):
        Score(1, wrong)
    with pytest.raises(TypeError, match=r"must hold objects of .*, got Transcript: call its sequence\(\)"):
        RoleTrajectory(1, (Transcript("solver"),))  # type: ignore[arg-type]  # the test's point
    with pytest.raises(TypeError, match="must be a list of sequences, got Sequence"):
        RoleTrajectory(1, Sequence())  # type: ignore[arg-type]  # the test's point
    with pytest.raises(TypeError, match=r"^Sequence\.reward must be a number, got str 'high'"):
        RoleTrajectory(1, (Sequence(reward="high"),))  # type: ignore[arg-type]  # the test's point
    for field in ("task_id", "prompt", "answer", "tier"):
        or_messages = " or a list of messages" if field == "prompt" else ""
        with pytest.raises(TypeError, match=rf"^Problem\.{field} must be a string{or_messages}, got int 3"):
            Problem(**{"task_id": "t", "prompt": "p", field: wrong})


def test_half_of_a_character_is_refused_by_the_name_of_its_field() -> None:
    for make, name in (
        *((lambda field=field: Problem(**{"task_id": "t", "prompt": "p", field: "a\ud800"}), f"Problem.{field}")
          for field in ("task_id", "prompt", "answer", "tier")),
        (lambda: Problem("t", [{"role": "user", "content": "a\ud800"}]), "Problem.prompt[0].content"),
        (lambda: Score(1, {"a\ud800": 1}), "a name in Score.parts"),
        (lambda: RoleTrajectory(1, (), {"a\ud800": 1}), "a name in RoleTrajectory.parts"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^{re.escape(name)} holds half of a character \('\\ud800' at index 1\)"):
            make()


def test_a_number_is_a_score_without_parts_and_what_is_no_score_is_refused() -> None:
    def score(found: Any) -> Score:
        return score_in_child(type("Own", (), {"name": "own", "score": lambda *_: found})(), Problem("t", "p"), "")

    assert [score(number) for number in NUMBERS.values()] == [Score(1.0)] * len(NUMBERS)
    assert score(Score(0.5, {"a": 1})) == Score(0.5, {"a": 1.0})
    said = r"`score` of environment own \(.*py:\d+\) is no Score.*, so it must be a number, got NoneType None"
    with pytest.raises(TypeError, match=said):
        score(None)
    for number, says in (
        (Score(float("nan")), r"the reward in a score of environment own \(.*py:\d+\) must be finite; got nan"),
        (
            Score(1.0, {"length": float("inf")}),
            r"part .length. in a score of environment own .* must be finite; got inf",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            score(number)


class Shaped(Stateless):
    """Gives whole numbers for rewards, and its verdict alone."""

    def process(self, candidate: Candidate, clock: int) -> Any:
        return Keep(candidate.with_shaped_rewards([1, np.float32(0)]))


def test_whole_numbers_are_shaped_rewards_and_one_verdict_needs_no_list() -> None:
    group = TrajectoryGroup(trajectories=(Trajectory("w:0:0"), Trajectory("w:0:1")))

    [kept] = Chain([("own", Shaped())]).process(Candidate.of(group), 0)

    assert isinstance(kept, Keep)
    record = build_curated(kept.candidate, b"", 1)
    assert codec.decode(codec.encode(record), CuratedGroup).rewards == (1.0, 0.0)
    with pytest.raises(ValueError, match="one reward for each of the 2 trajectories, kept or not; got 1"):
        Candidate.of(group).with_shaped_rewards([1])


def some_tokens() -> TrainedTokens:
    numbers = torch.linspace(-1, 0, 4)
    return TrainedTokens(numbers.requires_grad_(), numbers.detach(), torch.ones(4), torch.zeros(4, dtype=torch.int64))


def own_loss(tokens: TrainedTokens, *, give: str = "float") -> Any:
    terms = -tokens.advantages * tokens.logprobs
    metrics: dict[str, Any] = {
        "float": {"mine": 2.0, "mine_max": 3},
        "tensor": {"mine": terms.sum() * 0 + 2, "mine_max": torch.tensor(3)},
        "vector": {"mine": terms},
        "text": {"mine": "much"},
        "learner's": {"loss": 1.0},
    }.get(give, {})
    match give:
        case "bare":
            return terms
        case "scalar":
            return terms.sum()
        case "list":
            return [terms]
        case _:
            return TokenLoss(terms, metrics)


def loss_that_gives(what: str) -> Any:
    return objective_of({"use": f"{__name__}:own_loss", "give": what})


@pytest.mark.parametrize("give", ["float", "tensor"])
def test_a_metric_of_a_loss_may_be_any_number(give: str) -> None:
    objective, tokens = loss_that_gives(give), some_tokens()

    _, sums = objective.compute_loss_share(tokens, objective.totals(tokens))

    for name, value in {"mine": 2.0, "mine_max": 3.0}.items():
        assert (sums[name].dtype, sums[name].shape, sums[name].requires_grad) == (torch.float64, (), False)
        assert sums[name] == value
    both = add_metrics(sums, sums)
    assert (both["mine"], both["mine_max"]) == (4, 3)


def test_a_metric_of_an_own_loss_comes_out_of_a_step() -> None:
    settings = TrainerSettings(loss=Named(use=f"{__name__}:own_loss"), minibatches=1, groups_per_batch=1)
    learner = Learner(build_model(SHAPE, TOKENIZER, seed=1), settings)

    metrics = learner.step(batch(1), 1)

    assert metrics["mine"] == pytest.approx(2.0 / metrics["tokens"])
    assert metrics["mine_max"] == 3.0


def test_terms_alone_are_a_loss_without_metrics() -> None:
    objective, tokens = loss_that_gives("bare"), some_tokens()

    loss, sums = objective.compute_loss_share(tokens, objective.totals(tokens))

    assert float(loss.detach()) == pytest.approx(float(-tokens.logprobs.detach().mean()))
    assert set(sums) == {"tokens"}


def test_what_no_loss_may_give_is_refused_by_name_before_anything_is_trained() -> None:
    for give, said in (
        ("vector", r"metric 'mine' of the loss must be one number, a sum over tokens, got a tensor of \[2\]"),
        ("text", "metric 'mine' of the loss must be one number, a sum over tokens, got str 'much'"),
        ("learner's", "metric 'loss' of the loss has a name that the learner uses itself"),
        ("scalar", r"the terms of a loss must be a tensor of one number for each of the 2 tokens; got shape \[\]"),
        ("list", r"a loss must return TokenLoss\(terms, metrics\), or the tensor of terms alone; got list"),
    ):
        with pytest.raises(UsageError, match=rf"^trainer\.loss: {said}"):
            loss_that_gives(give)
