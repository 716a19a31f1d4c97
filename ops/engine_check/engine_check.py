"""`headrace check-engine`: whether the engine that a recipe names keeps an engine's promises, on the recipe's model."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.infra.errors import UsageError
from headrace.infra.own_frames import describe_with_location
from headrace.infra.recipe.settings import Recipe
from headrace.infra.weights.policy_files import Tokenizer
from headrace.ops.chosen_policy import choose_policy
from headrace.ops.engine_check.checks import CHECKS, REQUESTS, Check
from headrace.ops.engine_check.subject import Broken, Skipped, Subject
from headrace.ops.engine_check.weight_pair import WeightPair
from headrace.ops.offline.archived_start import start_from_model
from headrace.producers.engines.registry import open_engine

LIMIT_S = 300.0
"""Default for a check. Loading a large model takes minutes, so the limit only ends a check that hangs."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of the check of one promise."""

    what: str
    verdict: Literal["kept", "broken", "skipped"]
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineCheckRequest:
    """The options of `headrace check-engine`."""

    recipe: Recipe
    policy: str | None
    """Policy to check; None for the only one."""
    tolerance: float
    """Largest mean difference of log-probabilities."""
    limit_s: float = LIMIT_S
    """Seconds after which a check counts as broken."""


def check_engine(request: EngineCheckRequest) -> Iterator[Checked]:
    """Open the engine with version 0 of a policy, and yield the result of each check as soon as it is known.

    Raises UsageError for an engine without a model, and errors from opening the engine and loading version 0.
    """
    with open_subject(request) as subject:
        loop = asyncio.new_event_loop()
        for what, check in CHECKS.items():
            yield loop.run_until_complete(run_check(what, check, subject, request.limit_s))
        loop.close()


@contextmanager
def open_subject(request: EngineCheckRequest) -> Iterator[Subject]:
    """Yield the engine with version 0 loaded; see `check_engine`."""
    recipe, policy = request.recipe, choose_policy(request.policy, tuple(request.recipe.policies), "recipe")
    if recipe.rollout.engine.use == "scripted":
        raise UsageError(
            'rollout.engine = "scripted" has no model, so its log-probabilities cannot be checked: use another engine'
        )
    alone = {"processes": 1, "tensor_parallel": 1}
    start = start_from_model(recipe, policy, recipe.trainer_of(policy).model_copy(update=alone))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / policy
        folder.mkdir()
        for name, content in start.files.items():
            (folder / name).write_bytes(content)
        stop_ids = Tokenizer(folder).stop_ids
        engine, _ = open_engine({policy: folder}, recipe.rollout, 4 * REQUESTS)
    subject = Subject(engine, policy, WeightPair(start, recipe.seed), stop_ids, request.tolerance)
    try:
        engine.load(policy, 0, subject.weights.weights_of(0))
        yield subject
    finally:
        engine.close()


async def run_check(what: str, check: Check, subject: Subject, limit_s: float) -> Checked:
    """Run the check of one promise, and return its result."""
    began = time.monotonic()
    verdict: Literal["kept", "broken", "skipped"] = "broken"
    try:
        detail = await asyncio.wait_for(check(subject), limit_s)
        verdict = "kept"
    except Skipped as why:
        verdict, detail = "skipped", str(why)
    except Broken as why:
        detail = str(why)
    except TimeoutError:
        detail = f"no result within {limit_s:g} s; if the engine loads a large model meanwhile, give more with --limit"
    except Exception as error:  # noqa: BLE001 - an engine may raise any error, and the error is the result
        detail = describe_with_location(error)
    return Checked(what, verdict, detail, time.monotonic() - began)
