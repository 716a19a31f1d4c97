"""`headrace servers`: an embedded Kafka and an object store for any number of runs, until stopped."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.environment import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from headrace.infra.process.signals import STOP_WITHIN_S, ignore_signals, interrupt_on_signals
from headrace.infra.recipe.server_settings import Kafka, Store
from headrace.infra.store.store_address import StoreAddress

HOLDER = "`headrace servers`"
KEYS = "keys.sh"
SERVERS_TURN_S = 0.5


def run_servers_until_signal(folder: DataFolder, say: Callable[[str], None], show: Callable[[str], None]) -> None:
    """Start both servers on a folder, print what a recipe and a terminal need, and keep them running until a signal.

    Args:
        folder: Folder of data, ports and keys; these stay the same over restarts.
        say: Reports what happens.
        show: Prints lines to be copied.

    Raises FolderInUse, and ServerError if a server does not start.
    """
    servers = Servers(Kafka(), Store(), folder, say)
    with folder.hold(HOLDER), interrupt_on_signals():
        try:
            servers.claim()
            servers.fetch_jars()
            say("starting Kafka and the object store")
            servers.start()
            show(format_recipe_lines(servers, write_keys(folder.root / KEYS, servers.store_address)))
            while True:
                time.sleep(SERVERS_TURN_S)
                servers.revive()
                servers.watch()
        except KeyboardInterrupt:
            say("stopping; the same command starts Kafka and the store again, with their data")
        finally:
            with ignore_signals():
                servers.stop(STOP_WITHIN_S)


def format_recipe_lines(servers: Servers, keys: Path) -> str:
    """Return the lines of a recipe, and the command for each terminal that starts a part of its run."""
    return "\n".join((
        "",
        "# lines for the recipe of a run",
        "[kafka]",
        f'bootstrap = "{servers.connection.bootstrap}"',
        "",
        "[store]",
        f'endpoint = "http://{servers.store_address.endpoint}"',
        "",
        "# command for each terminal: it sets the keys of the store",
        f"source {shlex.quote(str(keys))}",
        "",
    ))  # fmt: skip


def write_keys(path: Path, address: StoreAddress) -> Path:
    """Write a shell script that sets the keys of a store, for its owner only; return its path."""
    values = {ACCESS_KEY_VARIABLE: address.access_key, SECRET_KEY_VARIABLE: address.secret_key}
    lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
    write_atomically(path, lines.encode(), mode=0o600)
    return path
