"""The sha256 of curated records that `headrace audit` and `headrace offline curate` report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headrace.schemas.headers import Headers

FRESH = b"0"


class CuratedDigest:
    """sha256 over the concatenated values of a policy's curated records: partition 0 in order, then 1, and so on.

    Keys, headers, offsets and times are not part of it. So the live topic, a replayed topic and an archive give the
    same hash if they hold the same records.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.kept = 0
        """Groups that are to be trained on for the first time."""
        self.again = 0
        """Further uses of such groups."""

    def add_record(self, value: bytes, headers: Headers | Sequence[tuple[str, bytes]]) -> None:
        """Take in the next record."""
        self._hash.update(value)
        if dict(headers).get("use", FRESH) == FRESH:
            self.kept += 1
        else:
            self.again += 1

    @property
    def sha256(self) -> str:
        """Hash of all records taken in, in hex."""
        return self._hash.hexdigest()
