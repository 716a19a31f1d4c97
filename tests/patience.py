"""How long tests wait for what must come: a guard against hanging, never a measure."""

from __future__ import annotations

import os

PATIENCE_S = float(os.environ.get("HEADRACE_TEST_PATIENCE", "120"))
"""Shorter for mutants, which may make a test wait in vain."""
