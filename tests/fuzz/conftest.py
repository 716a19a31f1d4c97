from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from mutations import Fuzz

FEW, MANY = 5_000, 100_000
"""Inputs of all tests together, a tenth more: of the gate, and of `make test-fuzz`."""
SEED = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-count", type=int, help="inputs in all, instead of FEW and MANY")
    parser.addoption("--fuzz-seed", type=int, default=SEED, help="what they follow from")


@pytest.fixture(params=[pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.fuzz)])
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Return the source of altered inputs; the options are not there when another folder's tests are run."""
    count: int = request.config.getoption("--fuzz-count", None) or request.param
    return Fuzz(request.config.getoption("--fuzz-seed", SEED), count)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A line per dead letter would be most of the time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()
