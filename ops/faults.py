"""What is wrong with a recipe: collected by checks, and told in one list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.own_frames import describe_with_location, read_error_text
from headrace.infra.unreachable import is_unreachable


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, or may be."""

    sentence: str
    """What is wrong, where, and what to do."""
    is_doubt: bool = False
    """Whether it may still go well: it is said, and refuses nothing."""
    cause: BaseException | None = None


class RecipeUnfit(UsageError):
    """The recipe cannot run here, for every reason that the checks found."""


@contextmanager
def catching(faults: list[Fault], where: str = "") -> Iterator[None]:
    """Add what the block refuses to `faults`, and go on after the block; `where` begins the sentence.

    What the user's own code raises is a fault with its line. An environment that is out of reach is a doubt: a run
    waits for it.
    """
    try:
        yield
    except (HeadraceError, ValueError) as error:
        faults.append(Fault(f"{where}{read_error_text(error)}", cause=error))
    except Exception as error:
        said = describe_with_location(error)
        if is_unreachable(error):
            faults.append(Fault(f"{where}{said}: it cannot be reached now", is_doubt=True, cause=error))
        elif said != read_error_text(error):
            faults.append(Fault(f"{where}{said}", cause=error))
        else:
            raise


def refuse(faults: Sequence[Fault]) -> None:
    """Raise RecipeUnfit with all that is wrong, each once; doubts refuse nothing."""
    wrong = {fault.sentence: fault for fault in faults if not fault.is_doubt}
    if not wrong:
        return
    cause = next((fault.cause for fault in wrong.values() if fault.cause is not None), None)
    if len(wrong) == 1:
        raise RecipeUnfit(next(iter(wrong))) from cause
    lines = "\n".join(f"  {sentence}" for sentence in wrong)
    raise RecipeUnfit(f"{len(wrong)} things are wrong with this recipe:\n{lines}") from cause


def list_doubts(faults: Sequence[Fault]) -> list[str]:
    """Return what may go wrong, each once."""
    return list(dict.fromkeys(fault.sentence for fault in faults if fault.is_doubt))
