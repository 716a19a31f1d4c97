"""What librdkafka says beside its calls is in our log, and a fault that lasts does not flood it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from headrace.infra.kafka.client_reports import REPEAT_S, ClientReports
from headrace.infra.kafka.clients import Connection, open_producer


def test_lines_that_librdkafka_writes_to_standard_error_are_events(capfd: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as logged:
        open_producer(Connection(""), "check", debug="conf").poll(0)

    assert capfd.readouterr().err == ""
    assert [one["event"] for one in logged if one["code"] == "CONF"] == ["kafka.error"]


def test_a_report_that_repeats_is_one_line_in_a_while_that_says_how_many_it_stands_for() -> None:
    now = [0.0]
    reports = ClientReports(lambda: now[0])
    with capture_logs() as logged:
        for now[0] in (0, 1, REPEAT_S - 1, REPEAT_S, REPEAT_S + 1):
            reports.take("_SSL", "handshake failed")
        reports.take("_AUTHENTICATION", "wrong password")

    assert [(one["code"], one["times"]) for one in logged] == [("_SSL", 1), ("_SSL", 3), ("_AUTHENTICATION", 1)]
