"""The address of a run, and what is said of a text that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.infra.errors import UsageError
from headrace.infra.kafka.run_address import parse_run
from headrace.ops.opened_run import open_run


def test_an_address_names_brokers_and_a_run() -> None:
    found = parse_run("kafka://kafka-1:9092,kafka-2:9092/sums")

    assert (found.connection.bootstrap, found.run) == ("kafka-1:9092,kafka-2:9092", "sums")
    assert parse_run(" kafka://kafka-1:9092/sums \n").run == "sums"
    assert parse_run("kafka://[::1]:9092, kafka-2:9092/sums").connection.bootstrap == "[::1]:9092,kafka-2:9092"


def test_a_text_that_is_no_address_is_refused_with_the_one_that_it_may_mean() -> None:
    for text, meant in (
        ("127.0.0.1:9092", "127.0.0.1:9092/RUN"),
        ("kafka-1:9092,kafka-2:9092/sums", "kafka-1:9092,kafka-2:9092/sums"),
        ("kafka://127.0.0.1:9092/", "127.0.0.1:9092/RUN"),
        ("http://127.0.0.1:9092/sums", "HOST:PORT/RUN"),
        ("kafka://127.0.0.1:9092/sums/more", "HOST:PORT/RUN"),
        ("some/where", "HOST:PORT/RUN"),
        ("kafka://kafka-1/sums", "HOST:PORT/RUN"),
        ("kafka://[::1:9092/sums", "HOST:PORT/RUN"),
        ("kafka://127.0.0.1:9092/sums.tasks", "127.0.0.1:9092/RUN"),
    ):
        with pytest.raises(UsageError) as refused:
            parse_run(text)
        told = f"cannot read the run address {text!r}: give kafka://{meant}, as `headrace up` prints it"
        assert str(refused.value) == told


def test_an_address_without_its_scheme_is_not_taken_for_the_name_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=r"give kafka://127\.0\.0\.1:9092/RUN"), open_run("127.0.0.1:9092", None):
        pass
    with pytest.raises(UsageError, match="no run in "), open_run("sums", None):
        pass
