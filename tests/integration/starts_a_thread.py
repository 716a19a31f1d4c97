"""Imports that start a thread: a process that has imported this must not be forked."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, name="lingers", daemon=True).start()
