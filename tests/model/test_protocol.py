"""The promises hold whatever the order of steps, and whatever goes wrong once. `protocol/__init__.py` says how."""

from __future__ import annotations

import pytest
from protocol import faults
from protocol.commands import Changed, Race
from protocol.explore import Explorer
from protocol.run import recipe
from protocol.seams import in_place
from protocol.world import Fault, Part, State, World

FAULTS: tuple[Fault, ...] = (
    faults.crash,
    faults.crash_in_a_transaction,
    faults.sleep,
    faults.sleep_in_a_transaction,
    faults.pause_the_curators,
    faults.lose_an_object,
    faults.freeze_the_store,
    faults.lose_a_tail,
    faults.forge_versions,
)

EXHAUSTED = (
    faults.crash,
    faults.crash_in_a_transaction,
    faults.sleep,
    faults.sleep_in_a_transaction,
    faults.lose_an_object,
    faults.forge_versions,
)
"""With these at any point, all orders of steps of a run of one version are looked at, to the last."""

MOST = 80_000
"""States that are looked at of the world of another fault: those that the fewest steps lead to, in some 40 s of a core.

While curators or store are held up time goes on without end, and so do the states; after a lost tail there are more
than 400,000. Beyond the bound there are only sketches: one fair order of steps, with the fault at each point of it.
"""


def explored(steps: int, max_staleness: int, *may_go_wrong: Fault, of: type[World] = World) -> Explorer:
    """Look at all orders of steps, with each fault at each point of them; at the first MOST states of those."""
    with in_place():
        explorer = Explorer(of(recipe(steps, max_staleness), may_go_wrong), MOST if may_go_wrong else 1_000_000)
        found = explorer.explore(faults=len(may_go_wrong))
    assert found is None, found
    assert explorer.is_complete or may_go_wrong
    return explorer


def sketched(steps: int, max_staleness: int, *may_go_wrong: Fault, of: type[World] = World) -> Explorer:
    """Look at one fair order of steps, with each fault at each point of it."""
    with in_place():
        explorer = Explorer(of(recipe(steps, max_staleness), may_go_wrong))
        found = explorer.sketch()
    assert found is None, found
    return explorer


def test_the_promises_hold_in_all_orders_of_steps() -> None:
    assert len(explored(steps=1, max_staleness=0).came) > 100


@pytest.mark.model
def test_the_promises_hold_when_something_goes_wrong_at_any_point() -> None:
    assert len(sketched(2, 0, *FAULTS).came) > 300


@pytest.mark.model
def test_a_revision_has_one_content_in_all_orders_of_two_commands() -> None:
    for fault in (None, faults.crash, faults.sleep):
        assert len(explored(1, 0, *([fault] if fault else []), of=Race).came) > 60


@pytest.mark.model
def test_a_worker_that_is_slow_to_read_a_revision_loses_no_task() -> None:
    assert len(sketched(1, 0, faults.fall_behind, of=Changed).came) > 40


@pytest.mark.model
def test_the_audit_names_a_loss_while_the_run_goes_on() -> None:
    assert len(sketched(11, 1, faults.forget_a_group).came) > 100


@pytest.mark.model
def test_a_curated_record_that_is_written_twice_is_named_and_stops_nobody() -> None:
    assert len(sketched(2, 1, faults.double_a_curated_record).came) > 40


@pytest.mark.model
@pytest.mark.parametrize(("steps", "max_staleness"), [(2, 0), (1, 1)])
def test_the_promises_hold_in_all_orders_of_more_steps(steps: int, max_staleness: int) -> None:
    assert len(explored(steps, max_staleness).came) > 1_000


@pytest.mark.model
@pytest.mark.parametrize("fault", [*FAULTS, faults.fall_behind], ids=lambda fault: fault.__name__)
def test_the_promises_hold_while_two_commands_change_the_recipe(fault: Fault) -> None:
    assert len(sketched(2, 0, fault, of=Changed).came) > 40


@pytest.mark.model
@pytest.mark.parametrize(("steps", "max_staleness"), [(2, 1), (3, 0), (4, 1)])
def test_the_promises_hold_when_something_goes_wrong_in_a_longer_run(steps: int, max_staleness: int) -> None:
    assert len(sketched(steps, max_staleness, *FAULTS).came) > 300


@pytest.mark.model
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_promises_hold_in_all_orders_of_steps_when_something_goes_wrong(fault: Fault) -> None:
    explorer = explored(1, 0, fault)
    assert len(explorer.came) > 100
    assert explorer.is_complete or fault not in EXHAUSTED


class Again(World):
    """Works out again what it knows."""

    def step(self, state: State, part: Part, action: str) -> State | None:
        known = super().step(state, part, action)
        found = self.apply(state, part, lambda process: process.act(action))
        anew = None if found is None or found == (state.broker, part) else self.after(state, found)
        assert anew == known, f"{part.name} {action}: the key leaves out what decides"
        return known


@pytest.mark.model
def test_a_state_is_known_by_all_that_decides_what_follows() -> None:
    with in_place():
        assert Explorer(Again(recipe(2, 1), FAULTS), most=1_000).explore(faults=1) is None
