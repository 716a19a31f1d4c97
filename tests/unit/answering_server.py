"""A server on 127.0.0.1 that gives one answer to everything, over TLS or not."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CERTIFICATES = Path(__file__).parents[1] / "certificates"


@contextmanager
def answering_server(
    status: int = 200,
    body: bytes = b"",
    content_type: str = "application/xml",
    *,
    tls: bool = False,
    ahead_s: float = 0.0,
) -> Iterator[int]:
    """Serve until the end of the block, by a clock that is so far ahead; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + ahead_s if timestamp is None else timestamp)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that refuses the certificate

    with Quiet(("127.0.0.1", 0), Handler) as http:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATES / "public.crt", CERTIFICATES / "private.key")
            http.socket = context.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        yield http.server_port
        http.shutdown()
