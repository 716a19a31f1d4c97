"""What every kind of test uses."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePath

import hypothesis
import hypothesis.configuration
import pytest
import structlog
from subjects import GATE, SUBJECTS, subject_of
from xdist.scheduler import LoadScopeScheduling

from headrace.infra import plug_ins
from headrace.infra.recipe import plug_in_sources
from headrace.schemas import codec

ROOT = Path(__file__).parents[1]

hypothesis.configuration.set_hypothesis_home_dir(ROOT / ".hypothesis")  # not where a test happens to be
hypothesis.settings.register_profile(
    "headrace", deadline=None
)  # how long an example takes says how busy the machine is
hypothesis.settings.load_profile("headrace")

ORDER = (
    "containers",
    "engines",
    "faults",
    "sandbox",
    "worlds",
    "e2e",
    "integration",
    "fuzz",
    "model",
    "conformance",
    "unit",
)
"""What takes a lane longest first, so that the short ones fill the lanes at the end."""
TOGETHER = {"containers"}
"""Folders whose files share servers that one lane must have for itself."""


@pytest.fixture(autouse=True, scope="session")
def _in_a_folder_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave the clone: a data folder that `make demo` left there would answer a command that names none.

    Temporary folders are there too: those of processes that tests kill go with pytest's own.
    """
    with contextlib.chdir(tmp_path_factory.mktemp("here")), pytest.MonkeyPatch.context() as patch:
        scratch = tmp_path_factory.mktemp("tmp")
        patch.setenv("TMPDIR", str(scratch))
        patch.setattr(tempfile, "tempdir", str(scratch))
        yield


@pytest.fixture(autouse=True)
def _log_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a command that was called in this process did to logging: its stream is closed when it returns.

    A logger that a module has cached would keep the command's level for all later tests.
    """
    configure = structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **given: configure(**given | {"cache_logger_on_first_use": False})
    )
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _places_as_before() -> Iterator[None]:
    """Forget where the recipes of a test lay, and what their plug-ins were: another test's may be called the same."""
    path, beside, loaded = sys.path[:], plug_ins._beside[:], plug_in_sources._loaded.copy()
    yield
    sys.path[:], plug_ins._beside[:], plug_in_sources._loaded = path, beside, loaded


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--subject", choices=[GATE, *SUBJECTS], help="the gate's tests alone, or those of one subject")
    parser.addoption(
        "--servers",
        default="embedded",
        help="where tests/integration has Kafka and store: embedded, containers, or a file that names running ones",
    )


def folder(path: PurePath) -> str:
    """Return the folder of tests/ that a file is in."""
    return path.relative_to("tests").parts[0]


def pytest_configure(config: pytest.Config) -> None:
    for name, what in SUBJECTS.items():
        config.addinivalue_line("markers", f"{name}: not in the gate but in `make test-{name}`: {what}")


@pytest.hookimpl(tryfirst=True)  # before fixtures are grouped
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if wanted := config.getoption("--subject"):
        config.hook.pytest_deselected(items=[item for item in items if subject_of(item) != wanted])
        items[:] = [item for item in items if subject_of(item) == wanted]
    items.sort(key=lambda item: ORDER.index(folder(item.path.relative_to(config.rootpath))))


class Lanes(LoadScopeScheduling):
    """A lane of `make test` takes one file after the other: their fixtures are made once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        found = folder(PurePath(file))
        return found if found in TOGETHER else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    return Lanes(config, log)


@pytest.fixture(autouse=True, scope="module")
def no_run_to_ask() -> None:
    """Forget the run that an earlier file joined: its broker is gone, and a schema that is unknown here stays so."""
    codec.set_unknown_hook(None)


@pytest.fixture
def run_name(request: pytest.FixtureRequest) -> str:
    """A name that says which test it belongs to and that no other run has."""
    words = re.sub(r"[^a-z0-9]+", "-", str(request.node.name).lower().removeprefix("test_"))
    return f"{words[:31].strip('-')}-{uuid.uuid4().hex[:8]}"
