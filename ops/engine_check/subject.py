"""The engine under check, with what every check asks of it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.ops.engine_check.weight_pair import WeightPair
from headrace.producers.engines.contract import Engine, EngineStats, Generation, Sampling

PROMPT_TOKENS = 24
LONGEST = 2000
"""Tokens of the longest sequence that is made. Filling a longer context would take minutes on a CPU."""
SURE_GAP = 10
"""The two sets of weights must differ by this many times the tolerance: else no check can tell which made a token."""


class Broken(Exception):
    """A promise that an engine does not keep; the text says what it did."""


class Skipped(Exception):
    """A promise that cannot be checked here; the text says why."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Mean differences of log-probabilities to plain forward passes."""

    own: float
    """Difference to passes with the weights of the versions that the tokens name."""
    other: float
    """Difference to passes with the other set of weights."""


@dataclass(slots=True, eq=False)
class Subject:
    """An engine under check, with version 0 of one policy loaded."""

    engine: Engine
    policy: str
    weights: WeightPair
    stop_ids: tuple[int, ...]
    """Ids that end a generation: no prompt holds one."""
    tolerance: float
    """Largest mean difference of log-probabilities."""
    version: int = 0
    """The version that the engine serves."""
    returned: int = 0
    """Number of tokens that the engine has returned."""

    async def generate(self, prompt: list[int], sampling: Sampling, seed: int = 0, **more: float) -> Generation:
        """Ask the engine; raise Broken if the parts of the answer do not fit together."""
        made = await self.engine.generate(self.policy, prompt, sampling, seed=seed, **more)  # type: ignore[arg-type]
        self.returned += len(made.ids)
        lengths = (len(made.ids), len(made.logprobs), sum(length for _, length in made.version_runs))
        if len(set(lengths)) > 1:
            raise Broken(
                "ids, logprobs and version_runs must have equal lengths; they have {}, {} and {} tokens".format(
                    *lengths
                )
            )
        if made.ids.dtype != np.int32 or made.logprobs.dtype != np.float32:
            raise Broken(f"ids must be int32 and logprobs float32; they are {made.ids.dtype} and {made.logprobs.dtype}")
        if len(made.ids) > sampling.max_tokens:
            raise Broken(f"at most {sampling.max_tokens} tokens (max_tokens) may be made, but {len(made.ids)} were")
        return made

    async def load(self) -> None:
        """Load the next version, so that the engine serves it."""
        following = self.version + 1
        await call_in_thread(self.engine.load, self.policy, following, self.weights.weights_of(following))
        self.version = following

    @property
    def most_generated_tokens(self) -> int:
        """Tokens of the longest generation that the checks request, after a prompt of usual length."""
        return min(self.weights.context or LONGEST, LONGEST) - self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        """Usual length of a prompt."""
        return min(PROMPT_TOKENS, (self.weights.context or LONGEST) // 4)

    def draw_prompt(self, seed: int, length: int = 0) -> list[int]:
        """Return random token ids without stop ids: `length` of them, or the usual number."""
        length = length or self.prompt_tokens
        ids = [one for one in range(self.weights.vocabulary) if one not in self.stop_ids]
        return random.Random(seed).choices(ids, k=length)  # noqa: S311 - any ids will do

    def compare(self, prompt: list[int], made: Generation, temperature: float = 1.0) -> Gaps:
        """Compare with plain forward passes; raise Broken if other weights than those of the named versions made it."""
        convention = self.engine.logprob_convention
        divisor = 1.0 if convention == "raw" else temperature or 1.0
        own, other = self.weights.compute_gaps(prompt, made, divisor)
        of_other = int(((own > SURE_GAP * self.tolerance) & (other < self.tolerance)).sum())
        if of_other:
            raise Broken(
                f"{of_other} of {len(own)} tokens were not made by the weights of their version in version_runs, "
                f"{made.version_runs}"
            )
        if (gap := float(own.mean())) > self.tolerance:
            raise Broken(
                f"log-probabilities of {len(own)} tokens at temperature {temperature:g} ({convention}) must differ "
                f"from those of a plain forward pass by at most {self.tolerance:g} in the mean (--tolerance); they "
                f"differ by {gap:.2g}"
            )
        return Gaps(gap, float(other.mean()))

    async def wait_until(self, holds: Callable[[EngineStats], bool]) -> None:
        """Wait until a condition on `stats` holds, by polling: an engine has no event for it."""
        while not holds(self.engine.stats()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def call_in_thread(function: Callable[..., None], *arguments: object) -> None:
    """Call a blocking function, such as a load, in a thread; a thread that hangs does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[BaseException | None] = loop.create_future()

    def settle(raised: BaseException | None) -> None:
        if not done.done():
            done.set_result(raised)

    def call() -> None:
        raised: BaseException | None = None
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            raised = error
        loop.call_soon_threadsafe(settle, raised)

    threading.Thread(target=call, daemon=True).start()
    if error := await done:
        raise error
