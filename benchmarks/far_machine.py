"""The machine of a region, in a network namespace of its own: a Kafka, an object store and workers.

`FarMachine` starts it, and makes the ports of its servers appear here through a `ShapedLink`. This file is also what
runs there: `python -m benchmarks.far_machine FOLDER`. It obeys lines on its standard input, and ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from benchmarks.shaped_link import CHUNK_BYTES, HOST, ShapedLink
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.environment import ACCESS_KEY_VARIABLE, CACHE_VARIABLE, SECRET_KEY_VARIABLE
from headrace.infra.log import configure_logging
from headrace.infra.recipe.server_settings import Kafka, Store

IN_A_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net", "--kill-child", "--")
LOOPBACK_UP = 'ip link set lo up && exec "$@"'


class FarMachine:
    """The far machine's servers run while the context lasts, and their ports are forwarded by a link.

    Raises OSError with the reason if the machine does not start, such as no leave to make namespaces.
    """

    def __init__(self, folder: Path, link: ShapedLink) -> None:
        self._folder, self._link = folder, link
        self.bootstrap, self.endpoint = "", ""
        """Addresses of its Kafka and of its store, the same on both sides."""
        self.keys: dict[str, str] = {}
        """Environment variables with the keys of its store."""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = (*IN_A_NAMESPACE, "sh", "-c", LOOPBACK_UP, "sh", sys.executable, "-m", "benchmarks.far_machine")
        self._log = (self._folder / "machine.log").open("ab")
        self._process = subprocess.Popen(
            [*command, str(self._folder.absolute())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._orders, self._answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        told = self._answers.readline()
        if not told:
            raise OSError(f"the far machine does not start:\n{(self._folder / 'machine.log').read_text()[-2000:]}")
        found = json.loads(told)
        self.bootstrap, self.endpoint, self.keys = found["bootstrap"], found["endpoint"], found["keys"]
        for port in (self.kafka_port, self.store_port):
            self._link.forward(port, socket_of(self._folder, port))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()

    @property
    def kafka_port(self) -> int:
        """Port of its Kafka."""
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def store_port(self) -> int:
        """Port of its store."""
        return int(self.endpoint.rpartition(":")[2])

    def list_settings(self, region: str) -> tuple[str, ...]:
        """Return the settings, for `--set`, that make a region of a recipe this machine, without workers of `up`."""
        key = f"regions.{region}"
        return (
            f'{key}.kafka.bootstrap="{self.bootstrap}"',
            f'{key}.store.endpoint="{self.endpoint}"',
            f"{key}.workers=0",
        )

    def start_worker(self, run: str, region: str, workflow: str, name: str) -> None:
        """Start a rollout worker there; its log is `NAME.log` in the machine's folder."""
        address = f"kafka://{self.bootstrap}/{run}"
        words = ["rollout", "--run", address, "--region", region, "--workflow", workflow, "--name", name]
        self._orders.write(json.dumps({"name": name, "words": words}) + "\n")
        self._orders.flush()


def socket_of(folder: Path, port: int) -> Path:
    """Return the socket through which a far port is reached: a path crosses network namespaces, a port does not."""
    return folder / f"{port}.socket"


def serve(folder: Path) -> None:
    """Be the far machine until standard input ends."""
    configure_logging("far-machine")
    servers = Servers(Kafka(), Store(), DataFolder(folder), lambda words: print(words, file=sys.stderr))
    servers.claim()
    store, bootstrap = servers.store_address, servers.connection.bootstrap
    for address in (bootstrap, store.endpoint):
        threading.Thread(target=_tunnel, args=(folder, int(address.rpartition(":")[2])), daemon=True).start()
    keys = {ACCESS_KEY_VARIABLE: store.access_key, SECRET_KEY_VARIABLE: store.secret_key}
    own = {**keys, CACHE_VARIABLE: str(folder / "cache")}  # so that no weights come by the cache of the machine at home
    with ExitStack() as stack:
        stack.callback(servers.stop)
        servers.start()
        print(json.dumps({"bootstrap": bootstrap, "endpoint": store.endpoint, "keys": keys}), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            log = stack.enter_context((folder / f"{asked['name']}.log").open("ab"))
            command = [sys.executable, "-m", "headrace", *asked["words"]]
            worker = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **own})
            stack.callback(worker.wait)
            stack.callback(worker.terminate)


def _tunnel(folder: Path, port: int) -> None:
    """Lead from a socket to a port of this machine."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(HOST, port)
        except OSError:
            writer.close()
            return
        pumps = [asyncio.create_task(pump) for pump in (_pump(reader, there_writer), _pump(there_reader, writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, there_writer):
            end.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def run() -> None:
        server = await asyncio.start_unix_server(carry, socket_of(folder, port), limit=CHUNK_BYTES)
        await server.serve_forever()

    asyncio.run(run())


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
