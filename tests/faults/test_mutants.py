"""Every promise is one that something tests: its protection taken out, a test turns red."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from mutation import (
    AT_ONCE,
    LIMIT_S,
    MUTANTS,
    ROOT,
    Mutant,
    MutantUnfit,
    judges,
    mutate,
    mutated,
    servers,
    short_folder,
)

Judged = Callable[[Mutant], Future[str]]


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest) -> Iterator[Judged]:
    """Judge the mutants that were asked for, some at a time; each test waits for its own."""
    items = [item for item in request.session.items if item.get_closest_marker("mutants")]
    asked: list[Mutant] = [item.callspec.params["mutant"] for item in items if isinstance(item, pytest.Function)]
    with servers() as named, judges(named) as judge, ThreadPoolExecutor(AT_ONCE) as pool:
        running = {one.name: pool.submit(judge, one) for one in asked}
        yield lambda mutant: running[mutant.name]
        pool.shutdown(cancel_futures=True)


@pytest.mark.mutants
@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_protection_that_is_taken_out_turns_a_test_red(mutant: Mutant, judged: Judged) -> None:
    assert not judged(mutant).result()


def test_every_mutant_on_the_list_fits_the_code_and_has_a_name_of_its_own() -> None:
    misfits = []
    for mutant in MUTANTS:
        file, _, test = mutant.caught_by.partition("::")
        try:
            mutate((ROOT / mutant.file).read_text(), mutant)
            name, _, case = test.rstrip("]").partition("[")
            text = (ROOT / file).read_text()
            if f"def {name}(" not in text or (case and f'"{case}"' not in text):
                misfits.append(f"{mutant.name}: there is no {mutant.caught_by}")
        except (MutantUnfit, SyntaxError, OSError) as error:
            misfits.append(f"{mutant.name}: {error}")
    assert not misfits
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_that_does_not_fit_the_code_is_told() -> None:
    with pytest.raises(MutantUnfit, match=r"holds 'a = 1' 2 times, not once"):
        mutate("a = 1\na = 1\n", Mutant("twice", "", "one.py", "a = 1", "a = 2", ""))
    with pytest.raises(SyntaxError):
        mutate("a = 1\na = 1\n", Mutant("broken", "", "one.py", "a = 1\na = 1", "a = (", ""))


def test_a_copy_of_the_tree_is_as_it_was_after_a_mutant(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a = 1\n")
    with mutated(tmp_path, Mutant("other", "", "one.py", "1", "2", "")):
        assert (tmp_path / "one.py").read_text() == "a = 2\n"
    assert (tmp_path / "one.py").read_text() == "a = 1\n"


def test_a_judged_pytest_has_room_for_sockets_however_deep_the_list_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("deep" * 20) / ("deep" * 20)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with short_folder() as folder:
        # The listener of multiprocessing, in the temporary folder that tests/conftest.py gives a judged pytest.
        temporary = folder / "t" / "tmp0" / "pymp-12345678"
        temporary.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(temporary / "listener-12345678"))
        assert len(str(temporary)) < 60, "and as much again for folders of its tests' own"
    assert not folder.exists()
