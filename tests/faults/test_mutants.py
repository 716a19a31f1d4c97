"""Every protection is one that something tests: taken out, the tests turn red."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from mutants import MUTANTS
from mutants.mutant import Mutant
from mutation import AT_ONCE, LIMIT_S, ROOT, MutantUnfit, Verdict, judges, mutate, servers

Judged = Callable[[Mutant], Future[Verdict]]


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest) -> Iterator[Judged]:
    """Judge the mutants that were asked for, two at a time; each test waits for its own."""
    items = [item for item in request.session.items if item.get_closest_marker("mutants")]
    asked = [item.callspec.params["mutant"] for item in items if isinstance(item, pytest.Function)]
    with servers() as named, judges(named) as judge, ThreadPoolExecutor(AT_ONCE) as pool:
        running = {one.name: pool.submit(judge, one) for one in asked}
        yield lambda mutant: running[mutant.name]
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_as_it_is(mutant: Mutant, tmp_path: Path) -> None:
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutant.file).read_text())
    mutate(tmp_path, mutant)
    for test in mutant.caught_by:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), f"there is no {test}"


@pytest.mark.mutants
@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_protection_that_is_taken_out_turns_the_tests_red(mutant: Mutant, judged: Judged) -> None:
    assert not judged(mutant).result().wrong


def test_every_mutant_of_every_room_is_on_the_list_under_a_name_of_its_own() -> None:
    files = [path.read_text() for path in (ROOT / "tests" / "faults" / "mutants").glob("*.py")]

    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len(MUTANTS) == sum(text.count("    Mutant(\n") for text in files)


def test_a_mutant_that_does_not_fit_the_code_is_told(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a = 1\na = 1\n")
    with pytest.raises(MutantUnfit, match=r"holds 'a = 1' 2 times, not once"):
        mutate(tmp_path, Mutant("twice", "", "one.py", "a = 1", "a = 2", ()))
    with pytest.raises(SyntaxError):
        mutate(tmp_path, Mutant("broken", "", "one.py", "a = 1\na = 1", "a = (", ()))
