"""What a worker records of its servers' versions."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest
from answering_server import answering_server
from structlog.testing import capture_logs

from headrace.producers.engines.served.server_build import describe_build
from headrace.producers.engines.served.server_settings import read_settings
from headrace.producers.engines.served.sglang import SGLANG


def build_of(body: bytes, status: int = 200) -> str:
    with answering_server(status, body, "application/json") as port:
        return describe_build(SGLANG, read_settings(SGLANG, {"urls": [f"http://127.0.0.1:{port}"]}))


def test_started_servers_have_the_versions_of_the_packages_beside_their_python() -> None:
    installed = replace(SGLANG, engine="numpy")
    built = describe_build(installed, read_settings(SGLANG, {"python": sys.executable}))
    packages = (f"{name} {version(name)}" for name in ("numpy", "torch", "transformers"))
    assert built.startswith(f"{' '.join(packages)} ServerSettings(python=")


def test_a_server_given_by_url_says_its_version() -> None:
    assert build_of(b'{"version": "0.5.19", "tp_size": 1}').startswith("sglang 0.5.19 ServerSettings(")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"python": "/no/python"}, "No such file"),
        ({"python": sys.executable}, f"sglang is not installed in the environment of {sys.executable}"),
        ({"urls": ["http://127.0.0.1:1"]}, "127.0.0.1:1"),
    ],
)
def test_a_version_that_cannot_be_found_is_said_to_be_unknown_and_ends_nobody(settings: Any, why: str) -> None:
    with capture_logs() as said:
        assert describe_build(SGLANG, read_settings(SGLANG, settings)).startswith("sglang of unknown version Server")
    [event] = said
    assert event["event"] == "engine.version_unknown"
    assert why in event["why"]


@pytest.mark.parametrize(("status", "body"), [(404, b""), (200, b"[]"), (200, b"oops"), (200, json.dumps({}).encode())])
def test_an_answer_without_a_version_ends_nobody(status: int, body: bytes) -> None:
    assert build_of(body, status).startswith("sglang of unknown version Server")
