"""A box with a list of hosts reaches these, and nothing else of the machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from users import ROOT, skip_without

from headrace.envs.sandbox.hosts import MOST_CONNECTIONS
from headrace.envs.sandbox.kinds import make_box
from headrace.envs.sandbox.namespace_box import NamespaceBox
from headrace.envs.sandbox.namespaces import PROGRAMS

pytestmark = pytest.mark.sandbox
ABSTRACT = "\0headrace-test-hosts"
TRY = """
import json, socket, sys
W = json.loads(sys.stdin.read())
def reach(host, port, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        try:
            one.connect((host, port) if port else host)
            one.sendall(b"a" * W["size"])
            one.shutdown(socket.SHUT_WR) if kind == socket.SOCK_STREAM else None
            got = b""
            while (more := one.recv(1 << 16)) and kind == socket.SOCK_STREAM:
                got += more
            return len(got or more)
        except OSError as error:
            return type(error).__name__
"""


class Machine:
    """Servers of the machine: two of TCP on 127.0.0.1, which send back what they get, one of UDP, one abstract."""

    def __init__(self, stack: ExitStack) -> None:
        self.listed, self.other = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        self.abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.abstract.bind(ABSTRACT + str(os.getpid()))
        self.abstract.listen()
        self.udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", self.port))
        for silent in (self.other, self.abstract, self.udp):
            silent.setblocking(False)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.listed.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self.listed.accept()
            except OSError:
                return
            threading.Thread(target=self._send_back, args=(one,), daemon=True).start()

    def _send_back(self, one: socket.socket) -> None:
        with one, one.makefile("rb") as file:
            one.sendall(file.read())


@pytest.fixture
def machine() -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(stack)


def ask(backend: str, hosts: list[str], code: str, **words: Any) -> Any:
    """Return what code in a box prints."""

    async def run() -> Any:
        async with NamespaceBox(backend=backend, hosts=hosts) as box:
            done = await box.exec(["python3", "-c", TRY + code], stdin=json.dumps({"size": 1000, **words}))
            assert done.return_code == 0, done
            return json.loads(done.stdout)

    return asyncio.run(run())


@pytest.mark.parametrize("backend", PROGRAMS)
def test_a_listed_port_is_reached_and_nothing_else_of_the_machine(backend: str, machine: Machine) -> None:
    skip_without(backend)
    port, other, abstract = machine.port, machine.other.getsockname()[1], ABSTRACT + str(os.getpid())
    code = """
tried = [reach("127.0.0.1", W["port"]), reach("localhost", W["port"])]
tried += [reach("127.0.0.1", W["other"]), reach("127.0.0.1", W["port"], kind=socket.SOCK_DGRAM)]
tried += [reach(W["abstract"], 0, socket.AF_UNIX), reach("8.8.8.8", 53), reach("::1", W["port"], socket.AF_INET6)]
tried += [reach("example.com", 80), reach("169.254.169.254", 80)]
print(json.dumps(tried))
"""
    size = 5_000_000
    found = ask(backend, [f"127.0.0.1:{port}"], code, port=port, other=other, abstract=abstract, size=size)
    assert found == [
        size, size, "ConnectionRefusedError", "OSError", "ConnectionRefusedError", "OSError",
        "ConnectionRefusedError", "gaierror", "OSError",
    ]  # fmt: skip
    for silent in (machine.other, machine.abstract):
        with pytest.raises(BlockingIOError):
            silent.accept()
    with pytest.raises(BlockingIOError):
        machine.udp.recv(1)


def test_names_lead_to_their_hosts_and_a_host_that_is_away_closes(machine: Machine) -> None:
    skip_without("unshare")
    port, away = machine.port, machine.other.getsockname()[1]
    machine.other.close()
    hosts = [f"localhost:{port}", f"127.0.0.1:{away}", "no-such-host.invalid", "10.1.2.3:9"]
    code = """
print(json.dumps([reach("localhost", W["port"]), reach("127.0.0.1", W["away"]), reach("no-such-host.invalid", 80)]))
"""
    reached, *closed = ask("unshare", hosts, code, port=port, away=away)
    assert reached == 1000
    assert set(closed) <= {0, "ConnectionResetError", "BrokenPipeError"}


def test_a_box_cannot_take_all_descriptors_of_its_owner(machine: Machine) -> None:
    skip_without("unshare")
    code = """
held = [socket.create_connection(("127.0.0.1", W["port"])) for _ in range(200)]
alive = 0
for one in held:
    one.settimeout(10)
    try:
        one.sendall(b"x")
        one.shutdown(socket.SHUT_WR)
        alive += one.recv(1) == b"x"
    except OSError:
        pass
print(json.dumps([alive, reach("127.0.0.1", W["port"])]))
"""
    before = len(list(Path("/proc/self/fd").iterdir()))
    alive, again = ask("unshare", [f"127.0.0.1:{machine.port}"], code, port=machine.port)
    assert 0 < alive <= MOST_CONNECTIONS
    assert again == 1000
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_the_lines_of_the_page_reach_a_listed_host(capsys: pytest.CaptureFixture[str]) -> None:
    skip_without("unshare")
    page = (ROOT / "docs" / "sandbox.md").read_text()
    [lines] = re.findall(r"^```python\n(box = make_box\(hosts.*?)^```", page, re.DOTALL | re.MULTILINE)
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made: dict[str, Any] = {"make_box": make_box}
        code = "async def act():\n" + indent(lines.replace("8080", str(server.server_port)), " ")
        exec(code, made)  # noqa: S102 - it is our page
        asyncio.run(made["act"]())
        server.shutdown()
    assert "Directory listing" in capsys.readouterr().out
