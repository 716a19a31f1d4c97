"""When curators, selectors and trainers treat rewards as equal."""

EQUAL = 1e-8
"""Rewards that differ by at most this are equal: seven rewards of 0.1 must give 0, not a rounding error."""
