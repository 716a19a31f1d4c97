"""What `headrace audit` and `headrace offline curate` call the sha256 of curated records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headrace.schemas.headers import Headers

FRESH = b"0"


class CuratedDigest:
    """sha256 over the values of a policy's curated records, back to back: partition 0 in order, then 1, and so on.

    Keys, headers, offsets and times are not part of it, so the live topic, a replayed one and an archive that hold the
    same records give the same.
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
