"""As test_tamperings, over a run with more in it.

It replays, its chain is swapped, its groups are in the store, and a shadow learns beside it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_run import Runs
from stoppable import until
from tampered_command import done, interrupted, suspended_trainer, wait_for_version
from tamperings import FINISHED, LIVE, STOPPED, Tampering, check, named
from tamperings_new_of_variants import rich
from tamperings_of_variants import OTHER
from trained_run import batches

from headrace.infra.kafka.topic_reader import read_all
from headrace.ops.opened_run import open_run

HERE = Path(__file__).parent
pytestmark = [pytest.mark.audit, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("replaying") / "data")
    words = ("up", HERE / "replaying_run.toml", "--plain", "--data", made.data)
    with interrupted(*words) as up:
        wait_for_version(made.data, up, 4)
        done("swap", "--data", made.data, HERE / "replaying_chain.toml")
        wait_for_version(made.data, up, 5, OTHER)
        wait_for_a_group_of_the_later_chain(made.data)
        with suspended_trainer(made.data):
            made.look(LIVE)
    done(*words)
    made.look(FINISHED)
    return made


def wait_for_a_group_of_the_later_chain(data: Path) -> None:
    """Wait until a group that was issued after the swap is trained for the first time: tamperings change such a one."""
    with open_run(None, data) as opened:
        run = opened.run

        def is_trained() -> bool:
            curated = (dict(message.headers) for message in read_all(run.connection, [run.topics.curated("solver")]))
            later = {int(one["number"]) for one in curated if int(one["revision"]) == 1 and int(one["use"]) == 0}
            return any(not use.use and use.number in later for batch in batches(run) for use in batch.groups)

        until(is_trained, "a group that was issued after the swap is trained")


CASES = [(one, run) for one in rich.all for run in one.on if run != STOPPED]


@pytest.mark.parametrize("run", [LIVE, FINISHED])
def test_a_run_in_which_all_is_well_is_green(replaying: Runs, run: str) -> None:
    assert replaying.said[run].problems == ()
    assert replaying.records[run].audit().problems == ()
    assert replaying.said[run].policies["solver"].replayed
    assert replaying.said[run].shadows[OTHER].replayed
    assert len(replaying.said[run].revisions["sums"]) == 2


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_tampering_with_replays_swaps_or_a_shadow_is_named(replaying: Runs, case: tuple[Tampering, str]) -> None:
    check(replaying, *case)
