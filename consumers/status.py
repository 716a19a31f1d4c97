"""`headrace status`: a run's figures as JSON."""

from __future__ import annotations

from typing import Any

from consumers.figures import figures
from infra.run import Run


def status(run: Run, *, rests: bool) -> dict[str, Any]:
    """Return the figures of a run. Raises KafkaAway or KafkaRefused.

    Args:
        run: The run.
        rests: Whether it is known that nobody runs it; its topics alone show that only after some seconds.
    """
    found = figures(run).to_json()
    if rests and found["state"] == "running":
        found["state"] = "stopped"
    return found
