"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One protection taken out."""

    name: str
    protection: str
    file: str
    old: str
    """Text that stands in the file exactly once."""
    new: str
    caught_by: tuple[str, ...]
    """Tests that must fail, each."""
