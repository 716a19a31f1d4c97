"""Over which batch a trainer's processes died, and how often."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.infra.environment import CACHE_VARIABLE
from headrace.infra.errors import UsageError
from headrace.schemas.ids import UseId
from headrace.trainers.versions.step_note import StepNote, open_step_note

RUN = cast(
    "Any",
    SimpleNamespace(
        run_id="r-1", address=SimpleNamespace(run="r"), connection=SimpleNamespace(bootstrap="broker:9092")
    ),
)
BATCH = [UseId("math", number, 0) for number in (9, 4, 5, 6)]


class Killed(BaseException):
    """Ends a step without any code that runs after it, as a signal ends a process."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path


def live(*steps: int, dies: BaseException | None = None) -> StepNote:
    """Play a trainer's process that takes these steps, and dies in the last."""
    note = open_step_note(RUN, "solver")
    for step in steps:
        with suppress(Killed, ArithmeticError), note.hold(step, BATCH):
            if step == steps[-1]:
                raise dies or Killed
    return note


def test_three_deaths_in_a_step_end_the_run_with_the_batch_and_the_way_to_leave_it_out() -> None:
    for _ in range(3):
        live(2)
    with pytest.raises(UsageError) as ended:
        live()
    said = str(ended.value)
    assert "solver died 3 times while it trained version 2 on this batch of groups: math:4 to 6, 9. Remove" in said
    assert "`headrace up RECIPE --set name=r-2 --branch kafka://broker:9092/r@1`" in said


def test_after_the_end_the_step_may_be_tried_three_times_more() -> None:
    for _ in range(3):
        live(2)
    with pytest.raises(UsageError):
        live()
    assert live().found.deaths == 0


def test_a_version_that_is_made_again_first_does_not_lower_the_count() -> None:
    live(1, 2)
    live(1, 2)
    assert live().found.deaths == 2


def test_deaths_in_other_steps_are_counted_apart() -> None:
    live(2)
    live(2, 3)
    assert (live().found.version, live().found.deaths) == (3, 1)


def test_a_step_that_ends_or_a_process_that_is_stopped_leaves_no_note(cache: Path) -> None:
    with open_step_note(RUN, "solver").hold(1, BATCH):
        pass
    live(2).clear()
    assert list(cache.rglob("*.json")) == []


def test_an_error_of_the_step_is_in_the_sentence_with_its_line() -> None:
    for _ in range(3):
        live(2, dies=ArithmeticError("the loss of mine"))
    with pytest.raises(UsageError, match=r"The last error: ArithmeticError: the loss of mine at .*test_step_note\.py:"):
        live()


def test_where_no_note_can_be_written_training_goes_on(cache: Path) -> None:
    (cache / "steps").write_text("a file where the folder should be")
    assert live(2).found.deaths == 0
    assert live().found.deaths == 0
