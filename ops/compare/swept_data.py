"""Which data the runs of a sweep go by: as it was when the first of them began, against what each run would read."""

from __future__ import annotations

import threading
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from headrace.infra.atomic_files import write_atomically
from headrace.infra.errors import UsageError
from headrace.infra.run.recorded_data import OtherData, find_data_differences
from headrace.ops.compare.sweep_file import SweepRun
from headrace.ops.recipe_check import check_names
from headrace.schemas.records import UsedEnvironment

SWEPT_DATA = "swept-data.json"
_FILE = TypeAdapter(dict[str, tuple[UsedEnvironment, ...]])


class SweptData:
    """The environments of each variant and their data, in a file. Safe to use from several threads.

    Args:
        folder: The sweep's data folder.
        has_begun: Whether a run of the sweep has begun there; else what the file says counts no more.

    Raises UsageError for a file that cannot be read. A sweep that began before these records has none.
    """

    def __init__(self, folder: Path, *, has_begun: bool) -> None:
        self._path, self._checking = folder / SWEPT_DATA, threading.Lock()
        try:
            self._known = _FILE.validate_json(self._path.read_bytes()) if has_begun and self._path.exists() else {}
        except (OSError, ValidationError) as error:
            raise UsageError(
                f"{self._path} cannot be read ({type(error).__name__}): remove it if the sweep's data is unchanged, or "
                "give the sweep another folder by --data"
            ) from error

    def has_data(self, variant: str) -> bool:
        """Return whether a variant reads data; others make their problems."""
        return any(environment.data for environment in self._known.get(variant, ()))

    def check(self, run: SweepRun) -> None:
        """Find all that a run's recipe names, and its data as other runs of the variant have it; the first tells which.

        Raises UsageError for what is not there, OtherData for data that has another content.
        """
        with self._checking:
            try:
                here = check_names(run.recipe)
            except UsageError as error:
                raise UsageError(f"variant {run.variant}: {error}") from error
            if run.variant not in self._known:
                self._known[run.variant] = here
                write_atomically(self._path, _FILE.dump_json(self._known))
            if differing := find_data_differences(self._known[run.variant], here):
                raise OtherData(
                    f"variant {run.variant}: its data has changed since the sweep began:\n"
                    + "\n".join(f"  {line}" for line in differing)
                    + "\nIts runs could not be compared. Restore the data, or give the sweep another folder by --data; "
                    f"it has {self._path.parent} now"
                )
