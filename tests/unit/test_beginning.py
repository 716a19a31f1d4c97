"""What begins a run without `headrace up`: the words for its parts, the lines of its servers, and what is refused."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.app.launcher.beginning import begin
from headrace.app.launcher.components import components_of, parts_of
from headrace.app.launcher.standing_servers import lines_for, write_keys
from headrace.app.launcher.watch import servers_of
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.environment import FOR_USERS
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Kafka, Store
from headrace.infra.run.run import Run
from headrace.infra.store.store_address import StoreAddress

PAGE = Path(__file__).parents[2] / "docs" / "processes.md"
BY_SUPERVISORS = re.compile(r"--(slot|name) \S+")


def words(recipe: str, *sets: str) -> set[str]:
    """What `up` starts, without what it adds for its supervisor."""
    children = components_of(load_recipe(recipe, sets), "ADDRESS", Path("logs"))
    said = (" ".join(child.command).partition(" -m headrace ")[2].removesuffix(" --run ADDRESS") for child in children)
    return {" ".join(BY_SUPERVISORS.sub("", one).split()) for one in said}


def test_the_parts_of_a_run_are_those_that_up_starts() -> None:
    for recipe in ("arithmetic", "arithmetic-shadow", "efficient-data/fifo"):
        assert {" ".join(part) for part in parts_of(load_recipe(recipe))} == words(recipe)
    left = ("launch.workers=0", "launch.curators=0", "launch.feeder=false", "trainer.processes=0")
    assert words("arithmetic", *left) == {"evaluate"}, "none that the recipe leaves to others"


def test_a_run_does_not_begin_on_servers_that_would_end_with_the_command() -> None:
    for sets, named in (
        ((), "lacks kafka.bootstrap and store.endpoint"),
        (('kafka.bootstrap="k:1"',), "lacks store.endpoint"),
        (('store.endpoint="s:1"',), "lacks kafka.bootstrap"),
    ):
        with pytest.raises(UsageError, match=f"(?s){named}.*`headrace servers` starts"):
            begin(load_recipe("arithmetic", sets), lambda _: None, new_recipe=False)


def test_the_lines_of_servers_are_of_a_recipe_and_the_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    servers = Servers(Kafka(bootstrap="k:1"), Store(endpoint="s:2"), DataFolder(tmp_path), lambda _: None)
    keys = write_keys(tmp_path / "it's.sh", StoreAddress("s:2", "headrace", "an access", "a'secret"))

    said = lines_for(servers, keys)
    lines = [line for line in said.splitlines() if " = " in line]
    assert lines == ['bootstrap = "k:1"', 'endpoint = "http://s:2"']
    assert "secret" not in said
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    source = next(line for line in said.splitlines() if line.startswith("source "))
    asked = f"{source} && printenv HEADRACE_S3_ACCESS_KEY HEADRACE_S3_SECRET_KEY"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["an access", "a'secret"]


def test_who_watches_asks_the_servers_of_the_run_and_starts_none() -> None:
    address = RunAddress(Connection("k:1"), "demo")
    run = Run(address, "demo-1", (load_recipe("arithmetic"),), StoreAddress("s:2", "b", "k", "s", secure=True))

    servers = servers_of(run, lambda _: None)
    assert (servers.has_embedded_kafka, servers.has_embedded_store) == (False, False)
    assert servers.connection.bootstrap == "k:1"
    assert (servers.store_address.endpoint, servers.store_address.secure) == ("s:2", True)


def test_doctor_and_docs_name_every_variable_and_show_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(re.findall(r"^\| `([A-Z0-9_]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows == FOR_USERS

    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", "hush")
    monkeypatch.setenv("COLUMNS", "200")
    said = CliRunner().invoke(app, ["doctor"]).output
    assert not [name for name in FOR_USERS if name not in said]
    assert re.search(r"HEADRACE_S3_SECRET_KEY\W+set\b", said)
    assert "hush" not in said
