"""The interfaces of environments, workflows and actors.

An *environment* gives problems and scores answers. It draws problems by index: the same (split, index) is always the
same problem. A *workflow* plays one episode: an async function of a problem and one actor per role.
Neither uses Kafka, weights or torch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, Literal, Protocol, SupportsFloat, SupportsIndex, TypedDict, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.envs.messages import Message, Prompt, check_messages, join_text, refuse_lone_surrogates, show_value
from headrace.schemas import records

Split = Literal["train", "held_out", "warm_start"]
"""Disjoint sets of problems."""
OWN_TEMPLATE_ARGUMENTS = frozenset({"conversation", "messages", "tools", "tokenize", "add_generation_prompt"})
"""Chat template arguments that no problem may give, because rendering sets them."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of an environment."""

    task_id: str
    """Id of the problem in its source, the same at every draw."""
    prompt: Prompt
    """The prompt: a text, or messages with `role` and `content`."""
    answer: str = ""
    """The answer with which the scorer compares, in the environment's form."""
    tier: str = ""
    """Difficulty tier or source."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other data that the environment needs to score; plain JSON."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the tools that a chat template shows to the policy."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, such as `enable_thinking`; plain JSON."""

    def __post_init__(self) -> None:
        """Raise TypeError, which names the field, for a value of another type: a task could not hold it.

        Raise ValueError for a text with half of a character (a lone surrogate).
        """
        for name in ("task_id", "answer", "tier"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"Problem.{name} must be a string, got {show_value(value)}")
            refuse_lone_surrogates(f"Problem.{name}", value)
        if isinstance(self.prompt, str):
            refuse_lone_surrogates("Problem.prompt", self.prompt)
        else:
            if isinstance(self.prompt, Mapping) or not isinstance(self.prompt, Iterable):
                raise TypeError(f"Problem.prompt must be a string or a list of messages, got {show_value(self.prompt)}")
            object.__setattr__(self, "prompt", check_messages("Problem.prompt", self.prompt))
        object.__setattr__(self, "tools", check_tools("Problem.tools", self.tools))
        check_template_arguments("Problem.template_arguments", self.template_arguments)

    @property
    def text(self) -> str:
        """The prompt as text; for messages their contents, separated by blank lines."""
        return join_text(self.prompt)


@dataclass(frozen=True, slots=True)
class Score:
    """A score. Any number is accepted: 1, True, numpy's. Raises TypeError, which names the field, for other types."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Convert numbers to floats."""
        object.__setattr__(self, "reward", check_number("Score.reward", self.reward))
        object.__setattr__(self, "parts", _check_numbers("Score.parts", self.parts))


@dataclass(frozen=True, slots=True)
class LateScore:
    """What counts for a text that its judge cannot judge: an environment may return it from `late_score(problem)`."""

    limit_s: float
    """Seconds that the score may take. If its process dies on the text, it counts as late."""
    score: Score


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """A prompt and a good completion, for a supervised warm start. Raises TypeError, which names the field."""

    prompt: Prompt
    """As `Problem.prompt`: a text (one user turn) or messages."""
    completion: str
    """The answer to learn: plain text, without a chat template."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """As `Problem.template_arguments`; plain JSON."""
    tools: Sequence[Mapping[str, Any]] = ()
    """As `Problem.tools`."""

    def __post_init__(self) -> None:
        """Refuse values that could not be encoded later."""
        object.__setattr__(self, "tools", check_tools("WorkedExample.tools", self.tools))
        if not isinstance(self.prompt, str):
            object.__setattr__(self, "prompt", check_messages("WorkedExample.prompt", self.prompt))
        if not isinstance(self.completion, str):
            raise TypeError(f"WorkedExample.completion must be a string, got {show_value(self.completion)}")
        check_template_arguments("WorkedExample.template_arguments", self.template_arguments)


class Environment(Protocol):
    """Gives problems, scores answers. Built as `Environment(seed=…, **settings)`; a bad setting raises ValueError."""

    name: str

    def size(self, split: Split) -> int | None:
        """Return how many problems a split has; None for endless. A feeder that reaches the end begins again."""

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index: a pure function of the settings, the split and the index."""

    def score(self, problem: Problem, text: str) -> Score:
        """Score a completion. It must not raise for any text: a wrong form gets a low reward."""


@runtime_checkable
class GivesExamples(Protocol):
    """An environment that has worked examples."""

    def example(self, index: int) -> WorkedExample:
        """Return a worked example from the split `warm_start`."""


@runtime_checkable
class HasTiers(Protocol):
    """An environment whose problems can be made harder while a run is running."""

    def tiers(self) -> tuple[str, ...]:
        """Return all tiers, easiest first. The setting `tiers` chooses which of them are used."""

    def asked(self) -> tuple[str, ...]:
        """Return the tiers in use, easiest first."""


FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """Tokens generated by a policy: the answer of an engine to a request, or of an actor to a workflow."""

    ids: npt.NDArray[np.int32]
    """Token ids, int32[T], the stop token included."""
    logprobs: npt.NDArray[np.float32]
    """Log-probabilities of the tokens as sampled, float32[T], by the engine's `logprob_convention`."""
    version_runs: tuple[tuple[int, int], ...]
    """(weight version, number of tokens); the numbers add up to T."""
    finish_reason: FinishReason
    """cancelled: the deadline passed; the tokens until then are included."""
    routing: npt.NDArray[np.uint8 | np.uint16] | None = None
    """uint8 or uint16 [P+T-1, layers, experts per token]: the experts of all P tokens before it and of its own tokens
    except the last; None if the engine records none."""
    sampling: records.Sampling = field(default_factory=records.Sampling)
    """Sampling parameters; set by the actor, not by the engine."""


class SamplingOptions(TypedDict, total=False):
    """Sampling options of one call of `Actor.generate`."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: Sequence[str]
    stop_ids: Sequence[int]


class Actor(Protocol):
    """The interface of a policy for one episode."""

    @property
    def context(self) -> int:
        """Most tokens of one sequence, including prompt and answers."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as text, with the generation prompt, by the model's chat template.

        Without a chat template, the contents are joined, with an EOS after each assistant message; tools are refused.
        """

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a user's turn that begins a sequence.

        The tokenizer's chat template, if it has one, is applied, and start tokens such as BOS are put first.
        """

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of a text unchanged, without special tokens."""

    def encode_rendered(self, text: str) -> list[int]:
        """Return the token ids of a rendered conversation that begins a sequence, with start tokens once."""

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, special_tokens: bool = False) -> str:
        """Return the text of token ids, without special tokens or with them."""

    async def generate(
        self,
        ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
    ) -> Generation:
        """Continue these token ids. Generated tokens are never tokenized again.

        An option that is None has the recipe's value. A generation ends with the first token that completes one of
        `stop` in its text, with one of `stop_ids`, or with an EOS of the policy; this token is part of it.
        """


@dataclass(frozen=True, slots=True)
class ToolError:
    """An error of a tool's own code, which the policy read as an observation. The worker logs and shows it."""

    error: Exception
    turn: int
    """The policy's turn that called the tool, from 1."""
    at: str = ""
    """Where the tool was, for an error that was not raised there."""


@dataclass(frozen=True, slots=True)
class RoleTrajectory:
    """The sequences and reward of one role in an episode; they train the role's policy.

    Any number is accepted as a float, and any iterable of sequences as the tuple. Raises TypeError, which names the
    field, for other values, and ValueError for half of a character in the name of a part.
    """

    reward: float
    sequences: tuple[records.Sequence, ...]
    parts: Mapping[str, float] = field(default_factory=dict)
    errors: Sequence[ToolError] = ()
    """Errors of tools that did not end the episode."""

    def __post_init__(self) -> None:
        """Convert numbers to floats, and the sequences to a tuple."""
        object.__setattr__(self, "reward", check_number("RoleTrajectory.reward", self.reward))
        object.__setattr__(self, "parts", _check_numbers("RoleTrajectory.parts", self.parts))
        given: Any = self.sequences
        if not isinstance(given, Iterable):
            raise TypeError(f"RoleTrajectory.sequences must be a list of sequences, got {type(given).__name__}")
        object.__setattr__(self, "sequences", tuple(map(_check_sequence, given)))


def check_number(what: str, value: object) -> float:
    """Return any number as a float. Raises TypeError, which names `what`, for other values."""
    if type(value) is float:
        return value
    if isinstance(value, SupportsFloat) and not isinstance(value, str):
        try:
            return float(value)
        except OverflowError:
            raise TypeError(f"{what} is too large for a float") from None
        except (TypeError, ValueError):  # an array of several numbers
            pass
    raise TypeError(f"{what} must be a number, got {show_value(value)}")


def check_tools(what: str, tools: object) -> tuple[Mapping[str, Any], ...]:
    """Return JSON schemas of tools as a tuple. Raises TypeError, which names the index, for a tool without a name."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise TypeError(f"{what} must be a list of JSON schemas, got {show_value(tools)}")
    found = tuple(tools)
    for at, tool in enumerate(found):
        if not isinstance(tool, Mapping) or not isinstance(tool_name(tool), str):
            raise TypeError(f"{what}[{at}] must be a JSON schema with a name, got {show_value(tool)}")
    return found


def check_template_arguments(what: str, given: object) -> None:
    """Raise TypeError unless it is a dict of arguments by name; ValueError for an argument that Headrace sets."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"{what} must be a dict of arguments by name, got {show_value(given)}")
    if taken := sorted(OWN_TEMPLATE_ARGUMENTS & set(given)):
        raise ValueError(f"{what} must not hold {', '.join(taken)}, which Headrace itself gives to the chat template")


def tool_name(tool: Mapping[str, Any]) -> Any:
    """Return the name of a tool; its schema may be inside `function`."""
    inner = tool.get("function", tool)
    return inner.get("name") if isinstance(inner, Mapping) else None


def _check_numbers(what: str, values: object) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a dict of numbers by name, got {show_value(values)}")
    for name in values:
        if not isinstance(name, str):
            raise TypeError(f"a name in {what} must be a string, got {show_value(name)}")
        refuse_lone_surrogates(f"a name in {what}", name)
    return {name: check_number(f"{what}[{name!r}]", value) for name, value in values.items()}


def _check_sequence(value: object) -> records.Sequence:
    if not isinstance(value, records.Sequence):
        hint = ": call its sequence()" if hasattr(value, "sequence") else ""
        raise TypeError(
            "RoleTrajectory.sequences must hold objects of headrace.schemas.records.Sequence, got "
            f"{type(value).__name__}{hint}"
        )
    if not isinstance(value.parent, SupportsIndex):
        raise TypeError(
            "Sequence.parent must be the index of a sequence of its role, or -1 for none; got "
            f"{show_value(value.parent)}"
        )
    parent = index(value.parent)
    reward = None if value.reward is None else check_number("Sequence.reward", value.reward)
    baseline = None if value.baseline is None else check_number("Sequence.baseline", value.baseline)
    if parent is value.parent and reward is value.reward and baseline is value.baseline:
        return value
    return replace(value, parent=parent, reward=reward, baseline=baseline)


Episode = Mapping[str, RoleTrajectory]
"""Result of an episode by role; a role that never acted is left out."""

Workflow = Callable[[Problem, Environment, Mapping[str, Actor]], Awaitable[Episode]]
"""Plays one episode. An exception makes the episode a recorded failure, never a crash. After a ConnectionError or
another error of an unreachable server, the episode waits and is played again."""
