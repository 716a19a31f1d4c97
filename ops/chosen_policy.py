"""Which policy a command is about, if it is about one."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.infra.errors import UsageError


def choose_policy(asked: str | None, known: Sequence[str], owner: str) -> str:
    """Return the policy that `--policy` names, or the only one there is.

    Args:
        asked: Value of `--policy`; None or empty if it was not given.
        known: The policies to choose from.
        owner: Whose policies they are, for messages: "run" or "recipe".

    Raises UsageError if there is no such policy, or if none is asked for and there are several.
    """
    if not asked and len(known) == 1:
        return known[0]
    if not asked or asked not in known:
        wrong = f"the {owner} has no policy {asked}" if asked else f"the {owner} has several policies"
        raise UsageError(f"{wrong}: give --policy with one of {', '.join(known)}")
    return asked
