"""A hub with one data set, as far as the library `datasets` asks for it: files, their list and the newest commit."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

NAME = "own/sums"
COMMIT = "b" * 40
API = f"/api/datasets/{NAME}"
RESOLVED = f"/datasets/{NAME}/resolve/"


@cache
def make_files() -> dict[str, bytes]:
    """Return the content of each file of the data set: 50 rows in `train` and 10 in `test`."""
    return {"data/train-0.parquet": _pack(0, 50), "data/test-0.parquet": _pack(50, 10), "README.md": b"# Sums"}


def _pack(first: int, count: int) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    packed = io.BytesIO()
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(first, first + count)]
    parquet.write_table(pa.Table.from_pylist(rows), packed)
    return packed.getvalue()


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:40]


def _list_folder(folder: str) -> bytes:
    files = [
        {"type": "file", "path": path, "size": len(content), "oid": _hash(content)}
        for path, content in make_files().items()
        if path.rpartition("/")[0] == folder
    ]
    folders = [] if folder else [{"type": "directory", "path": "data", "size": 0, "oid": "c" * 40}]
    return json.dumps([*files, *folders]).encode()


class Hub(BaseHTTPRequestHandler):
    def _answer_request(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(RESOLVED):
            content = make_files().get(path.removeprefix(RESOLVED).partition("/")[2])
            if content is None:
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self._answer(200, content, {"ETag": f'"{_hash(content)}"'})
        elif path.startswith(f"{API}/tree/"):
            self._answer(200, _list_folder(path.removeprefix(f"{API}/tree/").partition("/")[2]))
        elif path == API or path.startswith(f"{API}/revision"):
            siblings = [{"rfilename": file} for file in make_files()]
            self._answer(200, json.dumps({"id": NAME, "sha": COMMIT, "private": False, "siblings": siblings}).encode())
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_GET = do_HEAD = _answer_request  # noqa: N815 - names of http.server

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT, **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_hub() -> Iterator[str]:
    """Serve the data set; yield the hub's address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
