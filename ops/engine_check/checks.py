"""The checks of `headrace check-engine`: one for each promise of an engine.

Every log-probability is recomputed by a plain forward pass with the weights of the version that the token names. This
finds a wrong convention, a prefix cache that was kept after a swap, and a token with a wrong version.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from headrace.ops.engine_check.subject import LONGEST, SURE_GAP, Broken, Skipped, Subject, call_in_thread
from headrace.producers.engines.contract import EngineError, Generation, Sampling, VersionGone, capabilities_of

Answered: TypeAlias = tuple[list[int], Generation]
"""A prompt and what was generated."""
SWAPS = 6
SOON_S = 1.0
"""A server may take this many seconds to read the order that ends a request."""
REQUESTS = 8
"""Number of requests that run while weights are swapped."""


async def check_logprobs(subject: Subject) -> str:
    """Check that log-probabilities are those of a plain forward pass, by the engine's convention."""
    gaps, tokens = [], 0
    for number, temperature in enumerate((1.0, 1.0, 0.6, 0.0)):
        prompt = subject.draw_prompt(number)
        made = await subject.generate(prompt, Sampling(max_tokens=32, temperature=temperature), number)
        if not len(made.ids):
            raise Broken(f"a request for 32 tokens at temperature {temperature:g} returned none")
        gaps.append(subject.compare(prompt, made, temperature))
        tokens += len(made.ids)
    own, other = (float(np.mean(one)) for one in zip(*((gap.own, gap.other) for gap in gaps), strict=True))
    if other < SURE_GAP * subject.tolerance:
        raise Broken(
            f"the checks swap two sets of weights, whose log-probabilities differ by only {other:.2g} in the mean. To "
            f"tell the sets apart, the checks need {SURE_GAP * subject.tolerance:.2g} ({SURE_GAP} times --tolerance): "
            "lower --tolerance"
        )
    convention = subject.engine.logprob_convention
    return (
        f"log-probabilities of {tokens} tokens at temperatures 1, 0.6 and 0 ({convention}) differ from a plain forward "
        f"pass by {own:.1e} in the mean"
    )


async def check_seeds(subject: Subject) -> str:
    """Check that the same seed gives the same tokens, and another seed gives other tokens."""
    if not capabilities_of(subject.engine).is_seeded:
        raise Skipped("the engine has capabilities.is_seeded = False")
    prompt, sampling = subject.draw_prompt(0), Sampling(max_tokens=32)
    one, same, other = [(await subject.generate(prompt, sampling, seed)).ids.tolist() for seed in (1, 1, 2)]
    if one != same:
        raise Broken(
            "seed 1 gave other tokens the second time; if the engine cannot repeat tokens, set capabilities.is_seeded "
            "to False"
        )
    if one == other:
        raise Broken(f"seeds 1 and 2 gave the same {len(one)} tokens at temperature 1")
    return f"seed 1 gave the same {len(one)} tokens twice, seed 2 gave other tokens"


async def check_ends(subject: Subject) -> str:
    """Check that a generation ends at max_tokens, and at a stop id, which is its last token."""
    prompt, greedy = subject.draw_prompt(1), Sampling(max_tokens=24, temperature=0.0)
    whole = await subject.generate(prompt, greedy)
    if whole.finish_reason != "length" or len(whole.ids) != greedy.max_tokens:
        raise Broken(
            "a request for 24 tokens without stop ids must return 24 tokens with finish_reason 'length'; it returned "
            f"{len(whole.ids)} with {whole.finish_reason!r}"
        )
    stop = int(whole.ids[5])
    expected = whole.ids[: whole.ids.tolist().index(stop) + 1].tolist()
    cut = await subject.generate(prompt, replace(greedy, stop_ids=(stop,)))
    if (cut.ids.tolist(), cut.finish_reason) != (expected, "stop"):
        raise Broken(
            f"a request with stop id {stop} must return the tokens {expected} with finish_reason 'stop'; it returned "
            f"{cut.ids.tolist()} with {cut.finish_reason!r}"
        )
    return "ended at 24 tokens with finish_reason 'length', and at a stop id with 'stop'"


async def check_refusals(subject: Subject) -> str:
    """Check that a request that cannot run is refused alone, with EngineError."""
    vocabulary, context = subject.weights.vocabulary, subject.weights.context
    few, prompt = Sampling(max_tokens=8), subject.draw_prompt(2)
    wrong: dict[str, tuple[str, list[int]]] = {
        f"token id {vocabulary}, outside the vocabulary": (subject.policy, [*prompt, vocabulary]),
        "an empty prompt": (subject.policy, []),
        "an unknown policy": (f"not-{subject.policy}", prompt),
    }
    if context is not None:
        wrong[f"a prompt of the whole context, {context} tokens"] = (subject.policy, subject.draw_prompt(3, context))
    good, answered = asyncio.create_task(subject.generate(prompt, few)), []
    for what, (policy, ids) in wrong.items():
        try:
            await subject.engine.generate(policy, ids, few, seed=0)
        except EngineError:
            continue
        answered.append(what)
    await good
    if answered:
        raise Broken(f"a request must raise EngineError for each of these, but was answered: {'; '.join(answered)}")
    return f"{len(wrong)} wrong requests raised EngineError; a correct request at the same time was answered"


async def check_context(subject: Subject) -> str:
    """Check that a generation ends at the end of the context."""
    context = subject.weights.context
    if context is None:
        raise Skipped("the model's config gives no context length")
    if context > LONGEST:
        raise Skipped(f"this check fills contexts of at most {LONGEST} tokens, but the model's context has {context}")
    made = await subject.generate(subject.draw_prompt(4, context - 3), Sampling(max_tokens=100))
    if len(made.ids) > 3:
        raise Broken(
            f"after a prompt of {context - 3} tokens the context of {context} has room for 3, but "
            f"{len(made.ids)} were made"
        )
    return f"{len(made.ids)} tokens were made where the context of {context} had room for 3"


async def check_deadline(subject: Subject) -> str:
    """Check that a request whose deadline passes ends as cancelled, with the tokens made so far."""
    most = Sampling(max_tokens=subject.most_generated_tokens)
    prompt = subject.draw_prompt(5)
    began = time.monotonic()
    made = await subject.generate(prompt, most, deadline_s=0.0)
    took = time.monotonic() - began
    if made.finish_reason != "cancelled" and took < SOON_S:
        raise Skipped(
            f"all {len(made.ids)} tokens were made within {took:.1f} s, but a server may need {SOON_S:g} s to cancel a "
            "request: the model is too fast for this check"
        )
    if made.finish_reason != "cancelled":
        raise Broken(
            f"a request with deadline_s = 0 must end within {SOON_S:g} s, with finish_reason 'cancelled'; it returned "
            f"{len(made.ids)} tokens after {took:.1f} s with {made.finish_reason!r}"
        )
    if len(made.ids):
        subject.compare(prompt, made)
    return f"ended with finish_reason 'cancelled' after {len(made.ids)} tokens"


async def check_cancelling(subject: Subject) -> str:
    """Check that a request whose task is cancelled frees its slot."""
    before = subject.engine.stats()
    most = Sampling(max_tokens=subject.most_generated_tokens)
    task = asyncio.create_task(subject.generate(subject.draw_prompt(6), most))
    await subject.wait_until(lambda now: now.running + now.waiting > before.running + before.waiting or task.done())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await subject.wait_until(lambda now: now.running + now.waiting <= before.running + before.waiting)
    return "no request was running afterwards"


async def check_swaps(subject: Subject) -> str:
    """Check that every token names the version that made it, while weights are swapped."""
    begin = subject.version
    swapping = asyncio.create_task(_swap_and_ask(subject))
    playing = (_ask_until(subject, number, swapping.done) for number in range(REQUESTS))
    ended = await asyncio.gather(swapping, *playing, return_exceptions=True)
    found: list[Answered] = []
    for one in ended:
        if isinstance(one, BaseException):
            raise one
        found += one
    served = set(range(begin, subject.version + 1))
    for prompt, made in found:
        names = [version for version, _ in made.version_runs]
        if names != sorted(names) or not set(names) <= served:
            raise Broken(
                f"version_runs must name versions from {begin} to {subject.version} in rising order; they are "
                f"{made.version_runs}"
            )
        if names:
            subject.compare(prompt, made)
    if subject.engine.versions().get(subject.policy) != subject.version:
        raise Broken(
            f"versions() must give {subject.version} for {subject.policy}, the version that was loaded last; it gives "
            f"{subject.engine.versions()}"
        )
    tokens = sum(len(made.ids) for _, made in found)
    mixed = sum(len(made.version_runs) > 1 for _, made in found)
    what = f"{SWAPS} weight swaps during {REQUESTS} requests"
    return f"{what}: {tokens:,} tokens, {mixed} answers by more than one version"


async def _swap_and_ask(subject: Subject) -> list[Answered]:
    """Load versions one by one, and check that a request after a load is answered by that version alone."""
    found = []
    for number in range(SWAPS):
        await subject.load()
        prompt = subject.draw_prompt(10 + number)
        made = await subject.generate(prompt, Sampling(max_tokens=16), number)
        if {version for version, _ in made.version_runs} != {subject.version}:
            raise Broken(
                f"a request after the load of version {subject.version} must be answered by that version alone; its "
                f"version_runs are {made.version_runs}"
            )
        found.append((prompt, made))
    return found


async def _ask_until(subject: Subject, number: int, is_over: Callable[[], bool]) -> list[Answered]:
    found, sampling = [], Sampling(max_tokens=min(200, subject.most_generated_tokens))
    while not is_over():
        prompt = subject.draw_prompt(20 + number)
        found.append((prompt, await subject.generate(prompt, sampling, number)))
    return found


async def check_prefix_cache_after_swap(subject: Subject) -> str:
    """Check that the cache of a prompt is not used after a swap."""
    prompt, sampling = subject.draw_prompt(7) * 2, Sampling(max_tokens=16)
    for _ in range(2):
        for seed in range(2):
            subject.compare(prompt, await subject.generate(prompt, sampling, seed))
        await subject.load()
    subject.compare(prompt, await subject.generate(prompt, sampling))
    return f"a prompt of {len(prompt)} tokens gave correct answers before and after each of 2 weight swaps"


async def check_held_versions(subject: Subject) -> str:
    """Check that a held version answers beside the served version until it is released."""
    if not capabilities_of(subject.engine).held_versions:
        raise Skipped("the engine has capabilities.held_versions = 0, so evaluations go to other workers")
    held, prompt, sampling = subject.version, subject.draw_prompt(8), Sampling(max_tokens=24)
    await call_in_thread(subject.engine.hold, subject.policy, held)
    await subject.load()
    for version, expected in ((held, held), (None, subject.version)):
        more = {} if version is None else {"version": version}
        made = await subject.generate(prompt, sampling, **more)
        if {named for named, _ in made.version_runs} != {expected}:
            asked = "without a version" if version is None else f"for version {version}"
            raise Broken(
                f"a request {asked} must be answered by version {expected} alone; its version_runs are "
                f"{made.version_runs}"
            )
        subject.compare(prompt, made)
    await call_in_thread(subject.engine.release, subject.policy, held)
    try:
        await subject.generate(prompt, sampling, version=held)
    except VersionGone:
        return f"version {held} answered beside version {subject.version}, and raised VersionGone after its release"
    raise Broken(f"a request for version {held} after its release must raise VersionGone; it was answered")


async def check_counters(subject: Subject) -> str:
    """Check that the counters count all generated tokens."""
    stats = subject.engine.stats()
    if stats.generated_tokens < subject.returned:
        raise Broken(
            f"stats().generated_tokens must be {subject.returned} or more, the number of returned tokens; it is "
            f"{stats.generated_tokens}"
        )
    return f"{stats.generated_tokens:,} tokens were generated, {subject.returned:,} of them returned"


async def check_closing(subject: Subject) -> str:
    """Check that closing ends open requests and refuses later ones, with EngineError."""
    most = Sampling(max_tokens=subject.most_generated_tokens)
    task = asyncio.create_task(subject.generate(subject.draw_prompt(9), most))
    await asyncio.sleep(0)
    await call_in_thread(subject.engine.close)
    [open_one] = await asyncio.gather(task, return_exceptions=True)
    if isinstance(open_one, BaseException) and not isinstance(open_one, EngineError):
        raise Broken(f"close() must end an open request with EngineError or an answer; it ended with {open_one!r}")
    try:
        await subject.generate(subject.draw_prompt(9), most)
    except EngineError:
        is_refused = isinstance(open_one, EngineError)
        later = "a request after close() raised EngineError"
        return f"an open request and {later}" if is_refused else later
    raise Broken("a request after close() must raise EngineError; it was answered")


Check = Callable[[Subject], Awaitable[str]]
CHECKS: dict[str, Check] = {
    "log-probabilities": check_logprobs,
    "seeds": check_seeds,
    "ends": check_ends,
    "refusals": check_refusals,
    "context": check_context,
    "deadline": check_deadline,
    "cancelling": check_cancelling,
    "swaps": check_swaps,
    "prefix cache": check_prefix_cache_after_swap,
    "held versions": check_held_versions,
    "counters": check_counters,
    "closing": check_closing,
}
"""The checks by name, in the order in which they run; the last one closes the engine."""
