"""What is one reward for curators, selectors and trainers alike."""

EQUAL = 1e-8
"""Rewards no farther apart than this are equal: seven rewards of 0.1 must give 0, not the noise of their mean."""
