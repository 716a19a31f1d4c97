"""What begins a run without `headrace up`: the words for its parts, the lines of its servers, and what is refused."""

from __future__ import annotations

import re
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.app.launcher import beginning
from headrace.app.launcher.beginning import RunOfAnother, begin
from headrace.app.launcher.components import list_components, list_parts
from headrace.app.launcher.standing_servers import format_recipe_lines, write_keys
from headrace.app.launcher.watch import make_servers
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.environment import FOR_USERS
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.server_settings import Kafka, Store
from headrace.infra.run.run import Run
from headrace.infra.run.up_lease import Holder
from headrace.infra.store.store_address import StoreAddress
from headrace.ops.preflight.cluster import ClusterUnfit, Wanted, find_needs
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import RecipeRevision, WorkerStatus

BY_SUPERVISORS = re.compile(r"--(slot|name) \S+")
ADDRESS = RunAddress(Connection("k:1"), "arithmetic")


def stand_in_servers(*, has_embedded_kafka: bool = False) -> Any:
    return SimpleNamespace(
        connection=ADDRESS.connection,
        has_embedded_kafka=has_embedded_kafka,
        has_embedded_store=True,
        store_address=None,
    )


def words(recipe: str, *sets: str) -> set[str]:
    """What `up` starts, without what it adds for its supervisor."""
    children = list_components(load_recipe(recipe, sets), "ADDRESS", Path("logs"))
    said = (" ".join(child.command).partition(" -m headrace ")[2].removesuffix(" --run ADDRESS") for child in children)
    return {" ".join(BY_SUPERVISORS.sub("", one).split()) for one in said}


def test_a_run_does_not_begin_on_servers_that_would_end_with_the_command() -> None:
    for sets, named in (
        ((), "must set kafka.bootstrap and store.endpoint"),
        (('kafka.bootstrap="k:1"',), "must set store.endpoint"),
        (('store.endpoint="s:1"',), "must set kafka.bootstrap"),
    ):
        with pytest.raises(UsageError, match=f"(?s){named}.*`headrace servers` starts"):
            begin(load_recipe("arithmetic", sets), lambda _: None, new_recipe=False)


def test_begin_names_the_parts_what_looks_at_them_and_the_variables_that_each_terminal_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in FOR_USERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_S3_SECRET_KEY", "hush")
    monkeypatch.setenv("HEADRACE_KAFKA_CLIENT", "{}")
    monkeypatch.setenv("COLUMNS", "200")
    run = SimpleNamespace(ended="", address=ADDRESS, recipe=load_recipe("arithmetic"), regions={})
    monkeypatch.setattr(beginning, "begin", lambda *_, **__: run)
    monkeypatch.setattr("sys.argv", ["/venv/bin/headrace"])
    monkeypatch.setattr("shutil.which", lambda name: f"/venv/bin/{name}")
    done = CliRunner().invoke(app, ["begin", "arithmetic"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    commands = [line.split()[1] for line in lines if line.startswith("  headrace ")]
    assert commands == ["feed", "curate", "evaluate", "train", "rollout", "watch", "status", "audit"]
    assert "hush" not in done.output
    assert any(line.endswith("are set here: HEADRACE_KAFKA_CLIENT, HEADRACE_S3_SECRET_KEY") for line in lines)
    assert lines.index(next(line for line in lines if "only show the run" in line)) == len(lines) - 4

    monkeypatch.setattr("shutil.which", lambda _: None)
    elsewhere = CliRunner().invoke(app, ["begin", "arithmetic"]).output
    assert "  /venv/bin/headrace feed --run" in elsewhere
    assert "here or on another machine (there the program may be called `headrace`)" in elsewhere


def test_the_parts_of_a_region_are_named_and_its_servers_must_be_named() -> None:
    example = str(Path(__file__).parents[2] / "examples" / "two-regions.toml")
    recipe = load_recipe(example)
    parts = {words[0]: words[1:] for words in list_parts(recipe, "HOME", {"west": "WEST"})}
    assert parts["mirror"] == parts["relay"] == ("--region", "west", "--run", "HOME")
    assert parts["rollout"] == ("--workflow", "sums", "--region", "west", "--run", "WEST")
    homes = ('kafka.bootstrap="k:1"', 'store.endpoint="s:1"', 'regions.west.kafka.bootstrap="w:1"')
    with pytest.raises(UsageError, match=r"must set regions\.west\.store\.endpoint\. "):
        begin(load_recipe(example, homes), lambda _: None, new_recipe=False)


def test_nothing_is_made_on_a_cluster_that_cannot_carry_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, asked = load_recipe("arithmetic"), []

    def refuse(_connection: Connection, wanted: Wanted, _warn: object) -> None:
        asked.append(wanted)
        raise ClusterUnfit("it lacks topics")

    for name, stand_in in {
        "read_first_revision": lambda _: None,
        "refuse_unfit": refuse,
        "plan_revision": lambda *_, **__: pytest.fail("it was planned"),
        "ensure_topics": lambda *_: pytest.fail("topics were made"),
    }.items():
        monkeypatch.setattr(beginning, name, stand_in)
    with pytest.raises(ClusterUnfit):
        beginning.begin_or_join(stand_in_servers(), recipe, lambda _: None, new_recipe=False)
    assert asked == [find_needs(recipe, beginning.read_topic_specs(None, recipe))]


def test_a_run_that_another_up_has_taken_is_refused_before_anything_of_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = load_recipe("arithmetic")
    for name, stand_in in {
        "read_first_revision": lambda _: None,
        "refuse_unfit": lambda *_: None,
        "plan_revision": lambda *_, **__: pytest.fail("it was planned"),
        "ensure_topics": lambda *_: pytest.fail("topics were made"),
    }.items():
        monkeypatch.setattr(beginning, name, stand_in)
    hers = Holder("her-host", "/her/folder", 1_700_000_000_000)
    with pytest.raises(RunOfAnother, match="on her-host, in /her/folder, since 2023-11-14 22:13:20 UTC") as told:
        beginning.begin_or_join(stand_in_servers(), recipe, lambda _: None, new_recipe=False, hold=lambda _: [hers])
    assert told.value.exit_code == 2


def test_a_run_that_another_data_folder_began_is_refused_before_anything_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe, hers = load_recipe("arithmetic"), codec.encode(RecipeRevision(run_id="hers"))
    run: Any = SimpleNamespace(run_id="hers", topics=recipe.topics, address=ADDRESS)
    for name, stand_in in {
        "read_first_revision": lambda _: hers,
        "refuse_unfit": lambda *_: None,
        "join": lambda _: run,
        "_read_statuses": lambda *_: [],
        "read_known_revisions": lambda _: [RecipeRevision(run_id="hers", created_ms=1_700_000_000_000)],
        "plan_revision": lambda *_, **__: pytest.fail("it was planned"),
    }.items():
        monkeypatch.setattr(beginning, name, stand_in)
    for own_run_id in (None, "his"):
        with pytest.raises(RunOfAnother, match="begun 2023-11-14 22:13:20 UTC, but not from this data folder"):
            beginning.begin_or_join(stand_in_servers(), recipe, lambda _: None, new_recipe=False, own_run_id=own_run_id)


def test_of_two_that_begin_a_run_at_the_same_moment_the_later_one_is_refused_and_rights_on_new_topics_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe, order = load_recipe("arithmetic"), list[object]()
    specs = beginning.read_topic_specs(None, recipe)
    runs = [SimpleNamespace(run_id=one, topics=recipe.topics, address=ADDRESS) for one in ("his", "hers")]

    def make_topics(*_: object) -> bool:
        order.append("topics are made")
        return True

    for name, stand_in in {
        "read_first_revision": lambda _: None,
        "refuse_unfit": lambda _connection, wanted, *_: order.append(wanted),
        "plan_revision": lambda *_, **__: RecipeRevision(run_id="his"),
        "ensure_topics": make_topics,
        "write_revision": lambda *_: order.append("it is written"),
        "join": lambda _: runs.pop(0),
        "_read_statuses": lambda *_: [],
        "read_known_revisions": lambda _: [RecipeRevision(run_id="hers", created_ms=1_700_000_000_000)],
    }.items():
        monkeypatch.setattr(beginning, name, stand_in)

    def begin() -> Run:
        return beginning.begin_or_join(
            stand_in_servers(), recipe, lambda _: None, new_recipe=False, remember=order.append
        )

    assert begin().run_id == "his"
    assert order == [find_needs(recipe, specs), "topics are made", Wanted(specs), "his", "it is written"]
    with pytest.raises(RunOfAnother, match=r"not from this data folder\. It is not running"):
        begin()


def test_of_a_run_on_a_broker_of_ours_what_became_of_its_topics_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, mine = load_recipe("arithmetic"), codec.encode(RecipeRevision(run_id="mine", state_partitions=3))
    asked = list[Wanted]()

    def refuse(_connection: Connection, wanted: Wanted) -> None:
        asked.append(wanted)
        raise ClusterUnfit("a topic has another size")

    monkeypatch.setattr(beginning, "read_first_revision", lambda _: mine)
    monkeypatch.setattr(beginning, "refuse_unfit", refuse)
    servers = stand_in_servers(has_embedded_kafka=True)
    with pytest.raises(ClusterUnfit):
        beginning.begin_or_join(servers, recipe, lambda _: None, new_recipe=False, own_run_id="mine")
    assert asked == [Wanted(recipe.build_topic_specs(3))]


def test_a_run_from_another_data_folder_is_refused_with_who_runs_it_since_when_and_from_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe, alive = load_recipe("arithmetic"), list[WorkerStatus]()
    run: Any = SimpleNamespace(run_id="hers", topics=recipe.topics, address=ADDRESS)
    monkeypatch.setattr(beginning, "_read_statuses", lambda *_: alive)
    monkeypatch.setattr(beginning, "read_known_revisions", lambda _: [RecipeRevision(created_ms=1_700_000_000_000)])

    def refuse(own_run_id: str | None, *, embedded_store: bool) -> None:
        beginning.refuse_run_of_another(run, recipe, own_run_id, embedded_store=embedded_store)

    refuse("hers", embedded_store=True)
    refuse(None, embedded_store=False)
    with pytest.raises(RunOfAnother, match=r"begun 2023-11-14 22:13:20 UTC, .* not in the embedded store") as told:
        refuse("his", embedded_store=True)
    assert told.value.exit_code == 2
    before_the_clock_was_set_back = now_ms() + 3_600_000
    alive.append(WorkerStatus(worker="rollout-sums-0", state="rolling", updated_ms=before_the_clock_was_set_back))
    refuse(None, embedded_store=False)
    alive.append(WorkerStatus(worker="rollout-sums-0", state="rolling", pid=7, host="hers", updated_ms=now_ms()))
    with pytest.raises(RunOfAnother, match="running now: rollout-sums-0 is process 7 on hers"):
        refuse(None, embedded_store=False)


def test_begin_goes_on_with_a_run_whose_parts_run_by_hand_whatever_its_trainer_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = load_recipe("arithmetic", ('kafka.bootstrap="k:1"', 'store.endpoint="s:1"'))
    trainer = WorkerStatus(worker="train-solver", state="resuming", pid=7, host="hers", updated_ms=now_ms())
    by_hand = replace(trainer, worker="host-17", state="rolling")
    alive = [trainer, by_hand]
    run: Any = SimpleNamespace(run_id="mine", topics=recipe.topics, address=ADDRESS)
    for name, stand_in in {
        "Servers": lambda *_: SimpleNamespace(**{**vars(stand_in_servers()), "has_embedded_store": False}, start=list),
        "check_names": lambda _: (),
        "read_first_revision": lambda _: codec.encode(RecipeRevision(run_id="mine")),
        "refuse_unfit": lambda *_: None,
        "join": lambda _: run,
        "_read_statuses": lambda *_: alive,
        "read_known_revisions": lambda _: [RecipeRevision(run_id="mine", created_ms=1_700_000_000_000)],
        "plan_revision": lambda *_, **__: None,
        "ensure_topics": lambda *_: False,
    }.items():
        monkeypatch.setattr(beginning, name, stand_in)
    assert begin(recipe, lambda _: None, new_recipe=True) is run
    with pytest.raises(RunOfAnother, match="train-solver is process 7"):
        beginning.refuse_run_of_another(run, recipe, None, embedded_store=False)

    alive.append(replace(trainer, worker="rollout-sums-0", state="rolling"))
    with pytest.raises(RunOfAnother, match="It is running now: rollout-sums-0 is process 7 on hers"):
        begin(recipe, lambda _: None, new_recipe=True)


def test_the_lines_of_servers_are_of_a_recipe_and_the_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    servers = Servers(Kafka(bootstrap="k:1"), Store(endpoint="s:2"), DataFolder(tmp_path), lambda _: None)
    keys = write_keys(tmp_path / "it's.sh", StoreAddress("s:2", "headrace", "an access", "a'secret"))

    said = format_recipe_lines(servers, keys)
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

    servers = make_servers(run, lambda _: None)
    assert (servers.has_embedded_kafka, servers.has_embedded_store) == (False, False)
    assert servers.connection.bootstrap == "k:1"
    assert (servers.store_address.endpoint, servers.store_address.secure) == ("s:2", True)
