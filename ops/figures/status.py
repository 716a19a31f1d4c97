"""`headrace status`: a run's figures as JSON."""

from __future__ import annotations

import time
from typing import Any

from headrace.infra.run.run import Run
from headrace.ops.figures.figures import figures
from headrace.ops.figures.weights_figures import FRESH_MS, is_there


def status(run: Run, *, rests: bool) -> dict[str, Any]:
    """Return the figures of a run, and of every worker whether it is `gone`. Raises KafkaAway or KafkaRefused.

    `wasted_tokens` are all that were for nothing where `wasted_is_all` says so, else those that are known.

    Args:
        run: The run.
        rests: Whether it is known that nobody runs it; its topics alone show that only after some seconds.
    """
    figures_now = figures(run)
    found = figures_now.to_json()
    if rests and found["state"] == "running":
        found["state"] = "stopped"
    now_ms = time.time_ns() // 1_000_000
    for worker in found["workers"]:
        silent = rests or now_ms - worker["updated_ms"] > FRESH_MS
        worker["gone"] = silent and worker["state"] != "stopped"
    at_work = not rests and any(is_there(worker, now_ms) for worker in figures_now.workers)
    found["wasted_is_all"] = figures_now.drained and not at_work  # until then an evaluation may be under way
    if found["wasted_is_all"]:
        found["wasted_tokens"] = figures_now.wasted()
    for counts in (*found["policies"].values(), *(shadow["groups"] for shadow in found["shadows"].values())):
        del counts["duplicates"]  # only the audit reads what was delivered twice
    return found
