"""The check of an engine: the shipped one keeps every promise, and every broken promise is named."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops.engine_check import checks, engine_check
from headrace.ops.engine_check.checks import CHECKS
from headrace.ops.engine_check.engine_check import Checked, EngineCheckRequest, open_subject, run_check
from headrace.ops.engine_check.subject import Subject
from headrace.producers.engines.contract import Capabilities, Engine, Generation, Sampling


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    with open_subject(EngineCheckRequest(load_recipe("arithmetic", ()), None, 1e-4)) as opened:
        yield opened


def check(subject: Subject, what: str, engine: Engine | None = None, limit_s: float = 120.0) -> Checked:
    """Check one promise; the versions that it loads are known to the next check."""
    under_check = replace(subject, engine=engine or subject.engine, returned=0)
    try:
        return asyncio.run(run_check(what, CHECKS[what], under_check, limit_s))
    finally:
        subject.version = under_check.version


SAMPLED_OTHERWISE: dict[str, dict[str, Any]] = {
    "its own temperature": {"temperature": 0.9},
    "no stop": {"stop_ids": ()},
}
ASKED_OTHERWISE: dict[str, dict[str, Any]] = {"no deadline": {"deadline_s": None}, "newest for held": {"version": None}}
LOGPROBS_OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "a token too few": lambda logprobs: logprobs[1:],
    "double": lambda logprobs: logprobs.astype(np.float64),
}


@dataclass
class Wrong:
    """The shipped engine with one thing wrong."""

    inner: Any
    fault: str
    loaded: Mapping[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(
        self, policy: str, ids: Sequence[int], sampling: Sampling, *, seed: int, **more: Any
    ) -> Generation:
        if self.fault == "silent":
            await asyncio.sleep(60)
        if self.fault == "crashes":
            raise KeyError("no such request")
        sampling = replace(sampling, **SAMPLED_OTHERWISE.get(self.fault, {}))
        more |= ASKED_OTHERWISE.get(self.fault, {})
        if self.fault == "no seed":
            seed = time.monotonic_ns() % 2**31
        if self.fault == "any policy":
            policy = next(iter(self.inner.versions()))
        made: Generation = await self.inner.generate(policy, ids, sampling, seed=seed, **more)
        if self.fault == "names the newest":
            return replace(made, version_runs=((self.inner.versions()[policy], len(made.ids)),))
        return replace(made, logprobs=LOGPROBS_OTHERWISE.get(self.fault, lambda same: same)(made.logprobs))

    def release(self, policy: str, version: int) -> None:
        if self.fault != "never releases":
            self.inner.release(policy, version)

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:
        self.inner.load(policy, version, self.loaded if self.fault == "keeps its weights" else weights)


@pytest.mark.numerics
def test_the_shipped_engine_keeps_every_promise(subject: Subject) -> None:
    found = [check(subject, what) for what in CHECKS if what != "closing"]
    assert [one.verdict for one in found] == ["kept"] * len(found), found
    swaps = next(one for one in found if one.what == "swaps")
    assert "6 weight swaps during 8 requests" in swaps.detail


@pytest.mark.parametrize(
    ("what", "fault", "words"),
    [
        ("log-probabilities", "its own temperature", "differ by"),
        ("log-probabilities", "crashes", "no such request"),
        ("seeds", "no seed", "seed 1 gave other tokens the second time"),
        ("ends", "no stop", "] with 'length'"),
        ("refusals", "any policy", "was answered: an unknown policy"),
        ("deadline", "no deadline", "a request with deadline_s = 0 must end"),
        ("swaps", "names the newest", "tokens were not made by the weights"),
        ("prefix cache", "keeps its weights", "tokens were not made by the weights"),
        ("held versions", "newest for held", "alone; its version_runs are"),
        ("held versions", "never releases", "after its release must raise VersionGone"),
    ],
)
def test_a_promise_that_an_engine_breaks_is_named(
    subject: Subject, what: str, fault: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "SOON_S", 0.0)
    wrong = Wrong(subject.engine, fault, subject.weights.weights_of(subject.version))
    found = check(subject, what, wrong, 0.1 if fault == "silent" else 120.0)
    assert found.verdict == "broken"
    assert words in found.detail


def test_tokens_are_not_said_to_be_right_where_other_weights_could_not_be_told_apart(subject: Subject) -> None:
    found = check(replace(subject, tolerance=10.0), "log-probabilities")
    assert found.verdict == "broken"
    assert "lower --tolerance" in found.detail


def test_an_engine_that_holds_no_version_is_not_asked_for_one(subject: Subject) -> None:
    class HoldsNone(Wrong):
        @property
        def capabilities(self) -> Any:
            return Capabilities(held_versions=0)

    found = check(subject, "held versions", HoldsNone(subject.engine, ""))
    assert (found.verdict, "evaluations go to other workers" in found.detail) == ("skipped", True)


def test_the_command_prints_a_line_for_each_promise_and_needs_an_engine_with_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {what: CHECKS[what] for what in ("seeds", "closing")}
    monkeypatch.setattr(engine_check, "CHECKS", few)
    done = CliRunner().invoke(app, ["check-engine", "arithmetic"])
    assert done.exit_code == 0, done.output
    assert [line.split()[:2] for line in done.output.splitlines()] == [["kept", "seeds"], ["kept", "closing"]]
    for words, why in (
        (["--set", 'rollout.engine="scripted"'], 'rollout.engine = "scripted" has no model'),
        (["--policy", "nobody"], "the recipe has no policy nobody: give --policy with one of solver"),
    ):
        refused = CliRunner().invoke(app, ["check-engine", "arithmetic", *words])
        assert isinstance(refused.exception, UsageError)
        assert why in str(refused.exception)
