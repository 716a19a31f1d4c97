"""A component stops in good order when its terminal is closed, unless it was started to survive this."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from headrace.infra.process.signals import STOPPING, stop_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_closed_terminal_stops_a_component_as_sigterm_does_also_if_it_is_told_twice() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop = stop_on_signals()
    assert signal.getsignal(signal.SIGHUP) == signal.getsignal(signal.SIGTERM), "else the next line ends this process"
    signal.raise_signal(signal.SIGHUP)
    assert stop.is_set()
    signal.raise_signal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_a_component_that_was_started_by_nohup_goes_on_when_its_terminal_is_closed() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = stop_on_signals()
    signal.raise_signal(signal.SIGHUP)
    assert not stop.is_set()
