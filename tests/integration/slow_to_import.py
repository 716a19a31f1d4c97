"""Takes longer to import than anybody waits."""

from __future__ import annotations

import time

time.sleep(120)
