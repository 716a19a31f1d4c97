"""What every kind of test uses."""

from __future__ import annotations

import re
import uuid

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Containers last: their images may still be being built beside the other tests."""
    items.sort(key=lambda item: "containers" in item.path.parts)


@pytest.fixture
def run_name(request: pytest.FixtureRequest) -> str:
    """A name that says which test it belongs to and that no other run has."""
    words = re.sub(r"[^a-z0-9]+", "-", str(request.node.name).lower().removeprefix("test_"))
    return f"{words[:31].strip('-')}-{uuid.uuid4().hex[:8]}"
