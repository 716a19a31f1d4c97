from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from mutations import Fuzz

COUNT = 100_000
"""All inputs together, a tenth more."""
SEED = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-count", type=int, default=COUNT, help="inputs in all")
    parser.addoption("--fuzz-seed", type=int, default=SEED, help="what they follow from")


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    return Fuzz(request.config.getoption("--fuzz-seed", SEED), request.config.getoption("--fuzz-count", COUNT))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A line per dead letter would be most of the time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()
