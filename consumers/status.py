"""`headrace status`: a run's figures as JSON."""

from __future__ import annotations

import time
from typing import Any

from consumers.figures import figures
from consumers.weights_figures import FRESH_MS
from infra.run import Run


def status(run: Run, *, rests: bool) -> dict[str, Any]:
    """Return the figures of a run, and of every worker whether it is `gone`. Raises KafkaAway or KafkaRefused.

    Args:
        run: The run.
        rests: Whether it is known that nobody runs it; its topics alone show that only after some seconds.
    """
    found = figures(run).to_json()
    if rests and found["state"] == "running":
        found["state"] = "stopped"
    now_ms = time.time_ns() // 1_000_000
    for worker in found["workers"]:
        silent = rests or now_ms - worker["updated_ms"] > FRESH_MS
        worker["gone"] = silent and worker["state"] != "stopped"
    for policy in found["policies"].values():
        del policy["duplicates"]  # only the audit reads what was delivered twice
    return found
