"""How many workers and curators a running `headrace up` has: what is asked by a command, and when it holds."""

from __future__ import annotations

import io
import socket
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from headrace.app.cli import main as cli
from headrace.app.launcher import launcher, scale
from headrace.app.launcher.components import list_components
from headrace.app.launcher.launcher import UpRequest
from headrace.app.launcher.scaling import Scaling
from headrace.infra.embedded.data_folder import COMPARING, UP, DataFolder, RunNotes
from headrace.infra.embedded.scale_files import AskedCount, ask_for, read_counts
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.recipe.pools import count_pools, describe_change, parse_numbers
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.run.up_lease import Holder
from headrace.ops.cleaning import clean_folder

RECIPE = load_recipe("arithmetic")
POOL = "rollout-sums"
NOTES = RunNotes("arithmetic", "127.0.0.1:9", embedded_kafka=True, run_id="run-1")
TWO = RECIPE.model_copy(
    update={
        "workflows": dict.fromkeys(("sums", "other"), RECIPE.workflows["sums"]),
        "policies": dict.fromkeys(("solver", "judge"), RECIPE.policies["solver"]),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path / "data")
    made.root.mkdir()
    made.write(NOTES)
    return made


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The run of the folder, as its topics would tell; a word in the list is why it has ended."""
    why: list[str] = []

    @contextmanager
    def opened(_address: object, _data: object) -> Any:
        address = SimpleNamespace(run="arithmetic")
        yield SimpleNamespace(run=SimpleNamespace(run_id="run-1", recipe=RECIPE, address=address, ended="".join(why)))

    monkeypatch.setattr(scale, "open_run", opened)
    return why


def test_numbers_are_read_for_every_workflow_or_one_and_for_every_policy() -> None:
    assert count_pools(TWO) == dict.fromkeys(("curate-solver", "curate-judge", POOL, "rollout-other"), 1)
    assert parse_numbers(TWO, ["rollout=4"]) == {POOL: 4, "rollout-other": 4}
    assert parse_numbers(TWO, ["rollout=0", "curate=2"], "other") == {
        "rollout-other": 0,
        "curate-solver": 2,
        "curate-judge": 2,
    }


@pytest.mark.parametrize(
    ("words", "workflow", "why"),
    [
        (["workers=4"], None, "cannot read 'workers=4': give rollout=N"),
        (["rollout=-1"], None, "cannot read 'rollout=-1'"),
        (["rollout=4097"], None, "N up to 4096"),
        (["curate=0"], None, "without a curator nothing is trained on"),
        (["rollout=2"], "sum", "the recipe has no workflow 'sum'; it has sums"),
    ],
)
def test_numbers_that_cannot_be_are_refused(words: list[str], workflow: str | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_numbers(RECIPE, words, workflow)


def test_too_many_workers_and_none_are_told_with_what_follows() -> None:
    assert describe_change(RECIPE, POOL, 2, 4) == "rollout-sums: 2 -> 4 workers"
    assert describe_change(RECIPE, "curate-solver", 2, 1) == "curate-solver: 2 -> 1 curator"
    assert describe_change(RECIPE, POOL, 1, 10).endswith("there are 8 (kafka.partitions, fixed for a run): 2 stay idle")
    many = load_recipe("arithmetic", ["kafka.task_partitions=9"])
    assert describe_change(many, POOL, 1, 10).endswith(
        "there are 9 (kafka.task_partitions, fixed for a run): 1 stays idle"
    )
    assert "the run pauses: give `headrace scale rollout=N`" in describe_change(RECIPE, POOL, 1, 0)


def test_the_highest_numbers_leave_and_a_shadow_keeps_its_one_curator() -> None:
    recipe = load_recipe("arithmetic-shadow")

    def named(counts: dict[str, int]) -> set[str]:
        return {child.name for child in list_components(recipe, "", Path(), count_pools(recipe) | counts)}

    as_in_recipe = {child.name for child in list_components(recipe, "", Path())}
    assert named({}) == as_in_recipe
    more = named({POOL: 3, "curate-solver": 2})
    assert more - as_in_recipe == {"rollout-sums-1", "rollout-sums-2", "curate-solver-1"}
    assert as_in_recipe - named({POOL: 0}) == {"rollout-sums-0"}


def test_what_was_asked_holds_after_a_restart_until_the_recipe_has_another_number(folder: DataFolder) -> None:
    first = Scaling(RECIPE, folder)
    assert (first.begin("run-1"), first.follow("run-1")) == ([], [])
    ask_for(folder, POOL, AskedCount("run-1", 4, 1))
    assert first.follow("run-1") == ["rollout-sums: 1 -> 4 workers"]
    assert first.follow("run-1") == []

    again = Scaling(RECIPE, folder)
    assert again.begin("run-1") == ["as `headrace scale` asked, rollout-sums: 1 -> 4 workers"]
    assert again.counts[POOL] == 4
    assert Scaling(RECIPE, folder).follow("run-2") == [], "another run in the same folder"

    changed = Scaling(load_recipe("arithmetic", ["launch.workers=2"]), folder)
    assert (changed.begin("run-1"), changed.counts[POOL]) == ([], 2)
    assert (Scaling(RECIPE, folder).begin("run-1"), list(folder.scale.iterdir())) == ([], []), "it is forgotten"


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"run_id": "run-1"}', b"\xff"])
def test_a_damaged_file_changes_nothing_and_is_replaced_by_the_next_command(
    folder: DataFolder, ended: list[str], damage: bytes
) -> None:
    running = Scaling(RECIPE, folder)
    ask_for(folder, POOL, AskedCount("run-1", 4, 1))
    running.follow("run-1")
    (folder.scale / f"{POOL}.json").write_bytes(damage)
    assert (running.follow("run-1"), running.counts[POOL]) == ([], 4)

    with folder.hold(UP):
        scale.scale(folder, ["rollout=5"], None)
    assert not ended
    assert running.follow("run-1") == ["rollout-sums: 4 -> 5 workers"]


def test_clean_removes_what_was_asked(folder: DataFolder) -> None:
    ask_for(folder, POOL, AskedCount("run-1", 4, 1))
    clean_folder(folder)
    assert not folder.root.exists()


def test_the_command_asks_the_up_that_holds_the_folder(folder: DataFolder, ended: list[str]) -> None:
    with folder.hold(UP):
        ask_for(folder, POOL, AskedCount("run-1", 2, 1))
        done = scale.scale(folder, ["rollout=4", "curate=2"], None)
        assert done.sentences == ("rollout-sums: 2 -> 4 workers", "curate-solver: 1 -> 2 curators")
        assert (done.before, done.counts) == ({POOL: 2, "curate-solver": 1}, {POOL: 4, "curate-solver": 2})
        assert read_counts(folder, "run-1", count_pools(RECIPE)) == done.counts
        ended.append("steps")
        with pytest.raises(HeadraceError, match=r"run arithmetic has ended \(steps\)"):
            scale.scale(folder, ["rollout=4"], None)


def test_a_server_given_by_url_is_not_asked_by_a_second_worker(
    folder: DataFolder, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(scale, "check_engine", lambda _, workers: asked.append(workers))
    with folder.hold(UP):
        for words in (["rollout=3"], ["rollout=0"], ["curate=2"]):
            scale.scale(folder, words, None)
    assert (asked, ended) == ([3], []), "the engine's own check sees the new number"


def test_without_a_running_up_the_error_says_where_it_looked_and_what_to_do(folder: DataFolder) -> None:
    with pytest.raises(scale.NotRunning) as raised:
        scale.scale(folder, ["rollout=4"], None)
    for words in (f"runs the run in {folder.root} now. Only", "`headrace up RECIPE`", f"--run {NOTES.address}"):
        assert words in str(raised.value)
    with folder.hold(COMPARING), pytest.raises(scale.NotRunning, match=r"process \d+ runs `headrace compare` on it"):
        scale.scale(folder, ["rollout=4"], None)


def test_an_address_is_looked_for_in_data_folders_here_and_then_among_the_members_of_the_runs_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    here = DataFolder(tmp_path / ".headrace" / "mine")
    here.root.mkdir(parents=True)
    here.write(NOTES)
    holders: list[Holder] = []
    monkeypatch.setattr(scale, "find_holders", lambda _: holders)
    with here.hold(UP):
        assert scale.find_folder(NOTES.address, None).root == here.root

    with pytest.raises(
        scale.NotRunning, match=r"nor on the cluster\. If it runs on this machine, name its data folder"
    ):
        scale.find_folder(NOTES.address, None)
    holders.append(Holder("far", "/data/x", 0))
    with pytest.raises(scale.NotRunning, match="on far, with the data folder /data/x: give the command on that"):
        scale.find_folder(NOTES.address, None)
    holders.append(Holder(socket.gethostname(), "/data/y", 0))
    assert scale.find_folder(NOTES.address, None).root == Path("/data/y")


def test_the_command_line_passes_errors_on_and_shows_what_was_asked(
    folder: DataFolder, ended: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.app.cli.scale.log_quietly", lambda: None)
    data = str(folder.root)
    for words, code, why in (
        (("--data", data), 1, "no `headrace up` runs the run in"),
        (("--data", data, "--run", NOTES.address), 2, "give either --run"),
    ):
        with pytest.raises(SystemExit) as raised:
            cli.main(["scale", "rollout=4", *words])
        assert (raised.value.code, why in capsys.readouterr().err) == (code, True)
    with folder.hold(UP), pytest.raises(SystemExit) as done:
        cli.main(["scale", "rollout=4", "--data", data])
    assert (done.value.code or 0, ended) == (0, [])
    assert capsys.readouterr().out.endswith("of run arithmetic:\nrollout-sums: 1 -> 4 workers\n")


def test_up_starts_and_ends_what_was_asked_and_says_so_until_the_run_is_over(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Page:
        hopeless, ended, in_flight, awaited_evaluations, progress = "", "", 0, (), 0
        turns = 0

        def turn(self, _timeout_s: float) -> None:
            self.turns += 1
            assert self.turns < 9, "it goes on"
            if self.turns in {2, 4}:
                ask_for(folder, POOL, AskedCount("run-1", self.turns, 1))
            self.ended = "steps" if self.turns == 4 else ""

    said = io.StringIO()
    console = Console(file=said, width=200)
    launch = launcher.Launcher(UpRequest(RECIPE, folder.root), folder, None, console)
    nothing = {
        "revive": lambda: False,
        "watch": lambda: False,
        "is_answering": None,
        "connection": SimpleNamespace(bootstrap="k:1"),
        "list_region_addresses": dict,
    }
    launch._all_servers = launch._servers = cast("Any", SimpleNamespace(**nothing))
    listed: list[set[str]] = []
    supervisor = SimpleNamespace(
        raise_failure=lambda: None,
        take_news=list,
        set_children=lambda children: listed.append({child.name for child in children if "rollout" in child.name}),
    )
    monkeypatch.setattr(launch, "_record_state", lambda _: None)
    monkeypatch.setattr(launcher, "fetch_session_timeout_s", lambda _: 8.0)
    run = SimpleNamespace(run_id="run-1", connection=None)
    launch._turn_until_drained(cast("Any", run), cast("Any", Page()), cast("Any", supervisor))

    assert listed == [{"rollout-sums-0", "rollout-sums-1"}]
    assert said.getvalue() == "headrace: rollout-sums: 1 -> 2 workers\n"
