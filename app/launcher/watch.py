"""`headrace watch`: the page of `headrace up`, for a run started elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from headrace.app.launcher.drained import AllFailed, Drain
from headrace.app.views.live import LivePage
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.kafka.topic_admin import fetch_session_timeout_s
from headrace.infra.run.run import Run
from headrace.ops.figures.standstill import Surroundings

WATCH_TURN_S = 0.25


def watch(
    run: Run,
    console: Console,
    say: Callable[[str], None],
    *,
    plain: bool,
    began_ms: int = 0,
    ledger: Path | None = None,
) -> str:
    """Show a run until it has drained; return why it has ended. Raises AllFailed where nothing ever succeeds.

    Watching writes nothing, and the run does not wait for it, so any number of pages may watch. If it is not known when
    `up` started the run, failures from before may have been mended. Then AllFailed is raised only if nothing succeeds
    during the limit `launch.all_failed_limit_s` either.

    Args:
        run: The run, joined.
        console: Where to show it.
        say: Reports servers that do not answer.
        plain: Lines even on a terminal.
        began_ms: When it was started last, in ms since the epoch; 0 if unknown.
        ledger: File of its ledger.
    """
    servers = make_servers(run, say)
    gives_up_at = time.monotonic() + (0.0 if began_ms else run.recipe.launch.all_failed_limit_s)
    around = lambda: Surroundings(began_ms, servers.watch())  # noqa: E731
    page = LivePage(run, console, plain=plain, around=around, opening="so far", ledger=ledger)
    try:
        drain = Drain(page, lambda: fetch_session_timeout_s(run.connection), run.recipe.rollout.episode_limit_s)
        while not drain.is_over():
            page.turn(WATCH_TURN_S)
            if page.hopeless and time.monotonic() >= gives_up_at:
                raise AllFailed(page.hopeless)
            if servers.watch():  # not asked at the end too: `up` stops them when it gives the run up
                drain.restart_clocks()
        return page.ended
    finally:
        page.close()
        servers.stop()


def make_servers(run: Run, say: Callable[[str], None]) -> Servers:
    """Return the servers of a joined run, to check whether they answer; nothing is started or stopped."""
    store = run.store_address
    kafka = run.recipe.kafka.model_copy(update={"bootstrap": run.connection.bootstrap})
    named = run.recipe.store.model_copy(update={"endpoint": store.endpoint, "secure": store.secure})
    return Servers(kafka, named, DataFolder(Path()), say)
