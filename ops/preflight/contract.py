"""What the checks before a start get and give: a recipe, its faults, which one error lists, and lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.envs.contract import Environment
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.own_frames import describe_with_location, read_error_text
from headrace.infra.recipe.settings import Recipe
from headrace.infra.unreachable import is_unreachable


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of a recipe's checks."""

    recipe: Recipe
    folder: Path | None = None
    """Where embedded servers keep their data; None if none is started."""
    has_begun: bool = False
    """Whether the run has begun: version 0 exists, and the models' folders may be deleted."""
    environments: dict[str, Environment] = field(default_factory=dict)
    """Workflow to its environment with its data, as the checks have built it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a recipe, or a doubt about it."""

    sentence: str
    """A sentence that says what is wrong, where, and what to do."""
    is_doubt: bool = False
    """Whether the run may still work: a doubt is reported, but refuses nothing."""
    cause: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, as one line: its name, whether it is ok, and the finding or the remedy."""

    what: str
    ok: bool
    detail: str
    is_note: bool = False
    """Neither good nor lacking: it is not known, or a run works without it."""


class RecipeUnfit(UsageError):
    """The recipe cannot run here, for every reason that the checks found."""


class Doubt(ValueError):
    """What a check found may be wrong, but is no proof; `collect_faults` makes it a doubt."""


@contextmanager
def collect_faults(faults: list[Fault], where: str = "") -> Iterator[None]:
    """Turn an error of the block into a fault, and go on after the block; `where` begins the sentence.

    An error of the user's own code becomes a fault that names its line. An environment that cannot be reached is a
    doubt, because a run waits for it.
    """
    try:
        yield
    except (HeadraceError, ValueError) as error:
        faults.append(Fault(f"{where}{read_error_text(error)}", isinstance(error, Doubt), error))
    except Exception as error:
        said = describe_with_location(error)
        if is_unreachable(error):
            words = f"{where}a server cannot be reached now ({said}): a run waits until it answers"
            faults.append(Fault(words, is_doubt=True, cause=error))
        elif said != read_error_text(error):
            faults.append(Fault(f"{where}{said}", cause=error))
        else:
            raise


def find_faults(call: Callable[[], object], where: str = "") -> list[Fault]:
    """Return the fault that a call raises, if any, as `collect_faults` does."""
    faults: list[Fault] = []
    with collect_faults(faults, where):
        call()
    return faults


def refuse(faults: Sequence[Fault]) -> None:
    """Raise RecipeUnfit with all faults, each once; doubts raise nothing."""
    wrong = {fault.sentence: fault for fault in faults if not fault.is_doubt}
    if not wrong:
        return
    cause = next((fault.cause for fault in wrong.values() if fault.cause is not None), None)
    if len(wrong) == 1:
        raise RecipeUnfit(next(iter(wrong))) from cause
    lines = "\n".join(f"  {sentence}" for sentence in wrong)
    raise RecipeUnfit(f"{len(wrong)} things are wrong with this recipe:\n{lines}") from cause


def list_doubts(faults: Sequence[Fault]) -> list[str]:
    """Return the sentences of the doubts, each once."""
    return list(dict.fromkeys(fault.sentence for fault in faults if fault.is_doubt))
