"""What a process of several reports of its end, for the supervisor that only sees torchrun's."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.app.cli import main as cli
from headrace.infra.environment import END_REPORT_VARIABLE
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Fenced
from headrace.infra.own_frames import find_own_location
from headrace.infra.process.end_report import EndReport, read_end, report_end, report_failure


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(END_REPORT_VARIABLE, str(tmp_path / "train.end"))
    return tmp_path / "train.end"


@pytest.mark.parametrize(
    ("error", "code", "last"),
    [
        (UsageError("no such policy:\nname another"), 2, "name another"),
        (Fenced("replaced"), 76, "error: replaced"),
        (ValueError("bad shape"), 1, "ValueError: bad shape"),
        (SystemExit(75), 75, "SystemExit: 75"),
        (SystemExit("no spoon"), 1, "SystemExit: no spoon"),
    ],
)
def test_a_failure_is_reported_with_its_exit_code_and_error_and_goes_on_its_way(
    report: Path, error: BaseException, code: int, last: str
) -> None:
    with pytest.raises(type(error)) as caught, report_failure():
        raise error

    told = read_end(report)
    assert caught.value is error
    assert told is not None
    assert (told.exit_code, told.lines[-1]) == (code, last)


def test_the_location_of_an_error_in_the_users_own_code_is_in_its_report(report: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def loss():\n    raise ValueError('bad shape')\n")
    own: dict[str, object] = {}
    exec(compile((tmp_path / "own.py").read_text(), str(tmp_path / "own.py"), "exec"), own)  # noqa: S102
    with pytest.raises(ValueError, match="bad shape"), report_failure():
        own["loss"]()  # type: ignore[operator]

    told = read_end(report)
    assert told is not None
    assert find_own_location(told.lines).endswith("own.py:2 in loss")


def test_who_fails_first_is_heard_as_the_others_fail_because_of_it(report: Path) -> None:
    report_end(76, "error: replaced")
    report_end(1, "RuntimeError: connection closed by peer")

    assert read_end(report) == EndReport(76, ["error: replaced"])


def test_nothing_is_reported_of_a_process_that_is_done_or_that_nobody_asks(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit), report_failure():
        raise SystemExit(0)
    monkeypatch.delenv(END_REPORT_VARIABLE)
    report_end(1, "error: no")

    assert read_end(report) is None


def test_a_report_that_could_not_be_written_is_none(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report.write_text("")
    assert read_end(report) is None
    monkeypatch.setenv(END_REPORT_VARIABLE, str(report / "no" / "folder"))
    report_end(1, "error: no")


def test_a_trainer_reports_how_it_failed(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise UsageError("no such policy")

    monkeypatch.setattr("headrace.trainers.train.main", fail)
    with pytest.raises(SystemExit):
        cli.main(["train", "--run", "kafka://nowhere:1/none"])

    assert read_end(report) == EndReport(2, ["error: no such policy"])
