"""`headrace doctor` looks at the object store of a recipe or a run before it begins."""

from __future__ import annotations

import re

import pytest
from answering_server import answering_server
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.infra.kafka.clients import KafkaAway
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.store.store_address import StoreAddress
from headrace.ops.preflight import cluster
from headrace.ops.preflight.contract import Finding
from headrace.ops.preflight.store import examine_store


def found_at(port: int, keys: str = "k") -> tuple[bool, str]:
    finding = examine_store(StoreAddress(f"127.0.0.1:{port}", "runs", keys, keys))
    assert finding.what == "store"
    return finding.ok, finding.detail


def test_a_store_that_answers_is_ok_and_a_bucket_that_is_not_there_is_said_to_be_made() -> None:
    with answering_server(200) as port:
        assert found_at(port) == (True, f"bucket runs at 127.0.0.1:{port} answers to access key k")
    with answering_server(404) as port:
        ok, detail = found_at(port)
    assert ok
    assert detail.endswith("the bucket does not exist yet, so access key k needs the right to create it")


def test_of_a_store_that_cannot_be_used_doctor_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering_server(403) as port:
        ok, detail = found_at(port)
        assert not ok
        assert "runs" in detail
    ok, detail = found_at(port)
    assert not ok
    assert str(port) in detail
    for name in ("HEADRACE_S3_ACCESS_KEY", "HEADRACE_S3_SECRET_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/not/there")
    ok, detail = found_at(port, "")
    assert not ok
    assert "no keys for the object store" in detail


def test_what_a_named_cluster_lacks_is_shown_though_its_runs_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [Finding("rights", ok=False, detail="Read is missing")]
    monkeypatch.setattr(cluster, "examine_cluster", lambda *_: lacking)
    monkeypatch.setattr(cluster, "list_runs", lambda *_: pytest.fail("it was asked further"))
    assert list(cluster.examine_servers(load_recipe("arithmetic", ('kafka.bootstrap="k:1"',)))) == lacking


def test_doctor_of_a_recipe_that_names_servers_looks_at_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise KafkaAway("no Kafka answers at k:1")

    monkeypatch.setattr(cluster, "look_at_cluster", away)
    monkeypatch.setenv("HEADRACE_S3_ACCESS_KEY", "k")
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", "k")
    with answering_server(404) as port:
        sets = ("--set", 'kafka.bootstrap="k:1"', "--set", f'store.endpoint="http://127.0.0.1:{port}"')
        done = CliRunner().invoke(app, ["doctor", "arithmetic", *sets])
    assert done.exit_code == 1
    assert re.search(r"^lack addresses +no Kafka answers at k:1$", done.output, re.MULTILINE)
    assert re.search(r"^note store +.*the bucket does not exist yet", done.output, re.MULTILINE)
