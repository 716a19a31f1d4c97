"""As test_tamperings, over two runs with more in them.

One replays, its chain is swapped, its groups are in the store, its deltas are merged, and a shadow learns beside it.
The other has two policies.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_run import Runs
from tampered_command import done, interrupted, suspended_trainer, wait_for_version
from tamperings import FINISHED, LIVE, STOPPED, Tampering, check, named
from tamperings_of_variants import OTHER, PAIR, RICH

HERE = Path(__file__).parent
TWO_POLICIES = (
    HERE.parent / "e2e" / "two_policies.toml",
    *("--set", "policies.solver.trainer.steps=10"),
    *("--set", "policies.verifier.trainer.steps=5"),
    *("--set", "evaluate.every=2"),
    *("--set", "evaluate.problems=8"),
)
pytestmark = [pytest.mark.audit, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("replaying") / "data")
    words = ("up", HERE / "replaying_run.toml", "--plain", "--data", made.data)
    with interrupted(*words) as up:
        wait_for_version(made.data, up, 4)
        done("swap", "--data", made.data, HERE / "replaying_chain.toml")
        wait_for_version(made.data, up, 5, OTHER)
        with suspended_trainer(made.data):
            done("compact", "--data", made.data, "--once", "--every", "2")
            made.look(LIVE)
    done(*words)
    made.look(FINISHED)
    return made


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("of-two") / "data")
    words = ("up", *TWO_POLICIES, "--plain", "--data", made.data)
    with interrupted(*words) as up:
        wait_for_version(made.data, up, 3)
        with suspended_trainer(made.data):
            made.look(LIVE)
    done(*words)
    made.look(FINISHED)
    return made


def cases(catalogue: list[Tampering]) -> list[tuple[Tampering, str]]:
    return [(one, run) for one in catalogue for run in one.on if run != STOPPED]


@pytest.mark.parametrize("run", [LIVE, FINISHED])
def test_runs_in_which_all_is_well_are_green(replaying: Runs, of_two: Runs, run: str) -> None:
    for runs in (replaying, of_two):
        assert runs.said[run].problems == ()
        assert runs.records[run].audit().problems == ()
    assert replaying.said[run].policies["solver"].replayed
    assert replaying.said[run].shadows[OTHER].replayed
    assert len(replaying.said[run].revisions["sums"]) == 2


@pytest.mark.parametrize("case", cases(RICH), ids=named)
def test_a_tampering_with_replays_swaps_claims_merged_deltas_or_a_shadow_is_named(
    replaying: Runs, case: tuple[Tampering, str]
) -> None:
    check(replaying, *case)


@pytest.mark.parametrize("case", cases(PAIR), ids=named)
def test_a_tampering_with_one_of_two_policies_is_named(of_two: Runs, case: tuple[Tampering, str]) -> None:
    check(of_two, *case)
