"""The demo, killed as a whole: `kill -9` of every process at once, servers included, then the same command again.

Before each, somebody writes what nobody can read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Launched, until

from headrace.infra.kafka.clients import open_producer

STEPS, GROUPS = 16, 16
PATIENCE_S = 600.0
KILLS = (5, 10)
"""Versions at which all is killed."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Launched]:
    sets = ["policies.solver.warm_start.reward_low=0.05", "policies.solver.warm_start.held_out=64"]  # learnt or not
    sets += [f"trainer.steps={STEPS}", f"trainer.groups_per_batch={GROUPS}", "trainer.checkpoint_every=4"]
    launched = Launched(tmp_path / "demo", sets, "arithmetic")
    yield launched
    launched.leave_nothing()


def trained(demo: Launched) -> int:
    """The newest version that the trainer's log tells of."""
    return demo.count_events("train-solver", "version.trained")


def say_garbage(demo: Launched) -> None:
    run = demo.joined()
    vandal = open_producer(run.connection, "vandal")
    vandal.produce(run.topics.trajectories("solver"), b"garbage", b"sums:0", 0)
    assert vandal.flush(120) == 0


@pytest.mark.faults
def test_the_demo_vandalised_and_killed_as_a_whole_is_gone_on_with_to_its_end_and_its_audit_closes(
    demo: Launched,
) -> None:
    for version in KILLS:
        demo.start()
        until(lambda wanted=version: trained(demo) >= wanted or demo.ended() is not None, "some versions", PATIENCE_S)
        assert demo.ended() is None, "it was killed at work"
        say_garbage(demo)
        victims = demo.kill_all()
        assert victims.keys() >= {"broker", "store", "up", "feed", "train-solver", "rollout-sums-0", "evaluate"}
    demo.start()
    demo.await_end(PATIENCE_S)

    assert demo.ended() == 0
    audit, status = demo.asked("audit"), demo.asked("status")
    assert audit.said["ok"], audit
    assert (audit.said["lost"], audit.said["doubled"]) == (0, 0)
    assert audit.said["unnumbered_letters"] == {"undecodable": len(KILLS)}, "it stopped nobody, and has not disappeared"
    assert status.said["versions"] == {"solver": STEPS}
    assert status.said["groups"]["trained"] == STEPS * GROUPS
