"""Probes servers repeatedly with a time-out, because a frozen server accepts connections but does not answer."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaException

from headrace.infra.kafka.clients import Connection, forget_admins, get_admin
from headrace.infra.store.store_address import StoreAddress
from headrace.schemas.ids import now_ms

EVERY_S = 3.0
ANSWER_TIMEOUT_S = 5.0
MISSED = 2
"""Unanswered probes in a row after which a server counts as silent. Probes are counted, not seconds, because the
probing process may have been frozen itself."""

Ask = Callable[[], bool]
"""Returns whether a server answers, within some seconds."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A server that does not answer."""

    server: str
    """Kind and address of the server."""
    since_ms: int
    """When it last answered, or was first probed; wall time in ms since the epoch. 0 if unknown."""
    remedy: str
    """Advice for people."""

    @property
    def sentence(self) -> str:
        """Sentence for people."""
        return f"{self.server} does not answer: the run waits until it does. What you can do: {self.remedy}"


class ServerProbe:
    """Probes one server every few seconds in a separate thread, which ends with `close` or with the process."""

    def __init__(self, ask: Ask, every_s: float = EVERY_S) -> None:
        self._ask, self._every_s = ask, every_s
        self._stop = threading.Event()
        self._answered_ms, self._missed = now_ms(), 0
        self._thread = threading.Thread(target=self._watch, name="server-probe", daemon=True)

    def start(self) -> None:
        """Begin: from now on the server is expected to answer."""
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            if self._ask():
                self._answered_ms, self._missed = now_ms(), 0
            else:
                self._missed += 1

    def silent_since_ms(self) -> int | None:
        """Return when a silent server last answered, in ms since the epoch; None while it answers."""
        return self._answered_ms if self._missed >= MISSED else None

    def close(self) -> None:
        """Stop probing; a running probe ends by itself."""
        self._stop.set()


def is_kafka_answering(connection: Connection, timeout_s: float = ANSWER_TIMEOUT_S) -> bool:
    """Return whether a broker answers."""
    try:
        return bool(get_admin(connection).list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        forget_admins()
        return False


def is_store_answering(address: StoreAddress, timeout_s: float = ANSWER_TIMEOUT_S) -> bool:
    """Return whether the store answers at all, even with a refusal; requests are unsigned and need no S3 client."""
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    asked = kind(address.endpoint, timeout=timeout_s)
    try:
        asked.request("HEAD", "/")
        asked.getresponse()
    except (ssl.SSLError, http.client.HTTPException):
        return True  # an answer of unknown form
    except OSError:
        return False
    finally:
        asked.close()
    return True
