"""What the audit says of the offsets from which a trainer resumes at a checkpoint."""

from __future__ import annotations

from headrace.ops.audit.resume_points import ResumePoints
from headrace.schemas.records import CheckpointPointer, Position

READ_TO = {0: 9, 1: 9}


def run(
    *pointers: CheckpointPointer, waiting: tuple[tuple[int, int], ...] = (), read_to: dict[int, int] = READ_TO
) -> list[str]:
    """Four versions, each with a record at twice its number on `batches`; version 3 took its groups late."""
    made = ResumePoints("solver", "t.curated.solver")
    made.fold_batch(1, 2, [(0, 0), (0, 1), (1, 0)])
    made.fold_batch(-1, 3, [(1, 1)])
    made.fold_batch(2, 4, [(0, 4), (1, 3)])
    made.fold_batch(3, 6, [(0, 2), (1, 2), (0, -1)])
    made.fold_batch(4, 8, [(0, 5), (1, 4)])
    for position in waiting:
        made.note_waiting(*position)
    for pointer in pointers:
        made.fold_pointer(pointer, f"state@{pointer.version}")
    return list(made.problems(read_to))


def pointer(version: int, batches_offset: int = -1, *offsets: int) -> CheckpointPointer:
    positions = tuple(Position(partition, offset) for partition, offset in enumerate(offsets))
    return CheckpointPointer("r", "solver", version=version, positions=positions, batches_offset=batches_offset)


def test_a_checkpoint_may_let_a_trainer_read_too_much_but_nothing_too_little() -> None:
    assert run(pointer(0), pointer(1), pointer(2, 3, 2, 2), pointer(4, 8, 6, 5)) == []
    assert run(pointer(2, 0, 0, 0), pointer(4, 3, 2, 1)) == []
    assert run(pointer(0, 0), pointer(1, 2)) == []


def test_a_checkpoint_past_a_group_that_a_later_record_concludes_is_named() -> None:
    [problem] = run(pointer(2, 3, 3, 2))
    assert (
        "the checkpoint of version 2 of solver, state@2, says that a trainer must read t.curated.solver[0] from"
        in problem
    )
    assert "offset 3, but the group at offset 2 was concluded later, by the record at offset 6 of `batches`" in problem
    assert len(run(pointer(0, -1, 1, 1))) == 2
    assert len(run(pointer(1, 1, 2, 2))) == 1  # the group at 1 on partition 1 was evicted after it


def test_a_checkpoint_past_a_group_that_waits_is_named() -> None:
    assert run(pointer(4, 8, 6, 5), waiting=((0, 6), (0, 8), (1, 5))) == []
    [problem] = run(pointer(4, 8, 7, 5), waiting=((0, 8), (0, 6)))
    assert "t.curated.solver[0] from offset 7, but the group at offset 6 is neither trained nor evicted" in problem


def test_a_checkpoint_past_what_the_trainer_had_read_is_named() -> None:
    [problem] = run(pointer(4, 8, 10, 5))
    assert "t.curated.solver[0] from offset 10, but the trainer has read it only to offset 9" in problem
    assert run(pointer(4, 8, 10, 5), read_to={}) == []


def test_a_checkpoint_that_leaves_out_records_of_batches_is_named() -> None:
    [problem] = run(pointer(2, 5, 2, 2))
    assert "must read `batches` from offset 5, but its own record is at offset 4" in problem
    [problem] = run(pointer(0, 2))
    assert problem.endswith("must read `batches` from offset 2, but no record there is older than it")
    [problem] = run(pointer(2, 4, 2, 1))
    assert "from offset 4, but the record at offset 3 names the group at t.curated.solver[1]@1" in problem
    assert run(pointer(2, 4, 2, 2)) == []
    assert len(run(pointer(4, 8, 2, 2))) == 2


def test_a_checkpoint_of_a_version_that_is_newer_than_the_batches_read_is_not_judged() -> None:
    assert run(pointer(5, 1000, 1000, 1000)) == []


def test_of_checkpoints_with_one_fault_the_newest_is_named_and_the_others_are_counted() -> None:
    unread, later = run(*(pointer(version, 0, 10, 0) for version in (1, 2, 3, 4)))
    assert unread.startswith("the checkpoint of version 4 of solver, state@4, says")
    assert unread.endswith("the trainer has read it only to offset 9")
    assert later.startswith("the checkpoint of version 3 of solver, state@3, says")
    assert later.endswith("(and 2 older checkpoints likewise)")
    _, later = run(*(pointer(version, 0, 10, 0) for version in (2, 3, 4)))
    assert later.endswith("(and 1 older checkpoint likewise)")


def test_the_newest_pointer_of_a_version_counts() -> None:
    assert run(pointer(2, 5, 2, 2), pointer(2, 3, 2, 2)) == []
