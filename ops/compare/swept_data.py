"""Checks that all runs of a sweep read the same data as its first run."""

from __future__ import annotations

import threading
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from headrace.infra.atomic_files import write_atomically
from headrace.infra.errors import UsageError
from headrace.infra.run.recorded_data import OtherData, find_data_differences
from headrace.ops.compare.sweep_file import SweepRun
from headrace.ops.preflight.table import check_names
from headrace.schemas.records import UsedEnvironment

SWEPT_DATA = "swept-data.json"
_FILE = TypeAdapter(dict[str, tuple[UsedEnvironment, ...]])


class SweptData:
    """The environments of each variant and their data, in a file. Safe to use from several threads.

    Args:
        folder: The sweep's data folder.
        has_begun: Whether a run of the sweep has begun there; if not, an existing file is ignored.

    Raises UsageError for a file that cannot be read. A sweep of an older release has no such file.
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
        """Return whether a variant reads data; other variants generate their problems."""
        return any(environment.data for environment in self._known.get(variant, ()))

    def check(self, run: SweepRun) -> None:
        """Check that all names of a run's recipe exist, and that its data is that of the variant's first run.

        Raises UsageError for a missing name, OtherData if the data has other content.
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
                    + "\nRuns on other data cannot be compared. Restore the data, or give the sweep a folder other "
                    f"than {self._path.parent} by --data"
                )
