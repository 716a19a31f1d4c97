"""Playing a sweep, with a script instead of `headrace up` and no servers."""

from __future__ import annotations

import json
import os
import string
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from headrace.infra.embedded.data_folder import DataFolder, FolderInUse, RunNotes
from headrace.infra.environment import (
    ACCESS_KEY_VARIABLE,
    KAFKA_CLIENT_VARIABLE,
    KEYS_FILE_VARIABLE,
    SECRET_KEY_VARIABLE,
)
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection
from headrace.infra.run.recorded_data import OtherData
from headrace.infra.store.object_store import ListedObject, StoreAddress
from headrace.ops import opened_run as opened_runs
from headrace.ops.compare import sweep as sweeps
from headrace.ops.compare.comparison import PlayedRun
from headrace.ops.compare.run_result import read_result
from headrace.ops.compare.sweep import RunFolder, build_up_command, find_run_folder, play
from headrace.ops.compare.sweep_file import Sweep, SweepRun, load_sweep

SWEEP = """
name = "s"
seeds = [1]
[[variants]]
recipe = "arithmetic"
name = "a"
[[variants]]
recipe = "arithmetic"
name = "b"
"""
SUMMARY: dict[str, Any] = {
    "run_id": "of-it", "wall_s": 3.0, "reward_first": 0.25, "reward_last": 0.5, "eval_first": None, "eval_last": None,
    "audit": {"ok": True, "lost": 0, "doubled": 0}, "selection": {},
    "policies": {
        "solver": {
            "versions": 2, "reward_first": 0.25, "reward_last": 0.5, "eval_last": None, "trajectories": 1200,
            "progress": [],
            "reward_curve": [], "eval_curve": [], "lengths": {"trained": None, "discarded": None, "bias": None},
            "groups": {"trained": 75, "discarded": {}, "dead": 0, "replayed": 0},
        }
    },
}  # fmt: skip
RESULT = read_result(json.dumps(SUMMARY).encode())
PLAYED = f"import json, sys; open(sys.argv[1] + '/summary.json', 'w').write({json.dumps(SUMMARY)!r})"
WAITS = "open(sys.argv[1] + '/began', 'w').close()\nwhile not {}: time.sleep(0.01)\n"


@dataclass
class Scene:
    """What stands in for the outside."""

    sweep: Sweep
    runs: list[SweepRun]
    data: Path
    scripts: dict[str, str]
    said: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    """What runs are told of their servers on their command lines."""
    servers: list[FakeServers] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def play(self) -> dict[str, dict[str, Any]]:
        return play(self.sweep, self.runs, self.data, self.said.append)


class FakeServers:
    connection = Connection("127.0.0.1:9")
    client: ClassVar = {"security.protocol": "SSL"}
    store_address = StoreAddress("127.0.0.1:8", "bucket", "key", "secret", keys_file="/data/store.json")
    has_embedded_kafka = True
    until: ClassVar[list[Path]] = []
    """Files that are waited for; then somebody presses Ctrl-C."""

    def __init__(self, *_: object) -> None:
        self.calls: list[str] = []

    def claim(self) -> None:
        self.calls.append("claim")

    def fetch_jars(self) -> None:
        pass

    def start(self) -> None:
        self.calls.append("start")

    def revive(self) -> None:
        if self.until and all(path.exists() for path in self.until):
            raise KeyboardInterrupt

    def stop(self) -> None:
        self.calls.append("stop")


class FakeStore:
    deleted: ClassVar[list[str]] = []

    def __init__(self, address: StoreAddress) -> None:
        self._prefix = address.prefix

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_objects(self) -> list[ListedObject]:
        return [ListedObject(f"{self._prefix}weights", 1, None)]  # type: ignore[arg-type]  # nobody asks when

    def delete(self, key: str) -> None:
        self.deleted.append(key)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    (tmp_path / "s.toml").write_text(SWEEP)
    made = Scene(*load_sweep(str(tmp_path / "s.toml")), tmp_path / "data", {"a": PLAYED, "b": PLAYED})

    def servers(*words: object) -> FakeServers:
        made.servers.append(FakeServers(*words))
        return made.servers[-1]

    def scripted(run: SweepRun, run_folder: RunFolder, settings: Sequence[str], archive: str = "") -> list[str]:
        made.begun.append(run.name)
        made.settings += settings
        code = f"import os, signal, sys, time\n{made.scripts[run.variant]}"
        return [sys.executable, "-c", code, str(run_folder.folder)]

    def deleting(_connection: Connection, names: Iterable[str]) -> None:
        made.deleted += names

    monkeypatch.setattr(sweeps, "Servers", servers)
    monkeypatch.setattr(sweeps, "build_up_command", scripted)
    monkeypatch.setattr(sweeps, "delete_topics", deleting)
    monkeypatch.setattr(sweeps, "ObjectStore", FakeStore)
    monkeypatch.setattr(FakeStore, "deleted", made.deleted)
    return made


def test_runs_are_played_in_order_and_a_line_tells_of_each(scene: Scene) -> None:
    found = scene.play()
    assert scene.begun == ["s-a-1", "s-b-1"]
    assert found["s-b-1"] == PlayedRun("b", 1, RESULT, "")
    assert scene.said == [
        "[1/2] a, seed 1: reward 0.25 → 0.50, 1,200 trajectories, 3 s",
        "[2/2] b, seed 1: reward 0.25 → 0.50, 1,200 trajectories, 3 s",
    ]
    assert scene.servers[0].calls == ["claim", "start", "stop"]


def test_a_run_that_fails_is_told_with_its_last_lines_and_the_others_go_on(scene: Scene) -> None:
    scene.scripts["a"] = "print('all is well')\nsys.exit('error: no room on the disk')"
    found = scene.play()
    assert found["s-a-1"].summary is None
    assert found["s-a-1"].failed.endswith("error: no room on the disk")
    assert found["s-b-1"].summary == RESULT
    assert "[1/2] a, seed 1: failed with exit code 1" in scene.said[0]
    assert "error: no room on the disk" in scene.said[1]


def test_only_what_is_missing_is_played_again_and_nothing_is_started_for_nothing(scene: Scene) -> None:
    scene.scripts["a"] = "sys.exit(1)"
    scene.play()
    scene.scripts["a"] = PLAYED
    scene.play()
    assert scene.begun == ["s-a-1", "s-b-1", "s-a-1"]
    assert "1 of 2 runs are finished already" in scene.said[-2]
    assert scene.said[-1].startswith("[2/2] a, seed 1: reward")
    assert scene.play()["s-a-1"].summary == RESULT
    assert len(scene.begun) == 3
    assert len(scene.servers) == 2


def test_a_run_that_ended_with_groups_in_flight_is_gone_on_with_and_its_topics_stay(scene: Scene) -> None:
    rest = {**SUMMARY, "rest": "4 groups are still in flight [/]"}
    scene.scripts["a"] = PLAYED.replace(repr(json.dumps(SUMMARY)), repr(json.dumps(rest)))
    found = scene.play()
    assert (found["s-a-1"].summary, found["s-a-1"].failed) == (None, rest["rest"])
    assert scene.said[0] == "[1/2] a, seed 1: 4 groups are still in flight \\[/]"
    assert not [name for name in scene.deleted if name.startswith("s-a-1")]
    scene.scripts["a"] = "sys.exit('error: no room on the disk')"
    assert "no room" in scene.play()["s-a-1"].failed, "not what it said the time before"
    scene.scripts["a"] = PLAYED
    assert scene.play()["s-a-1"].summary == RESULT
    assert "s-a-1.recipe" in scene.deleted


def test_results_of_another_recipe_are_not_compared(scene: Scene, tmp_path: Path) -> None:
    scene.play()
    (tmp_path / "s.toml").write_text(SWEEP.replace('name = "b"', 'name = "b"\nset = ["trainer.steps=7"]'))
    scene.sweep, scene.runs = load_sweep(str(tmp_path / "s.toml"))
    with pytest.raises(
        UsageError, match=r"s-b-1 of another recipe:\n  trainer\.steps: 80 -> 7\n.*another folder by --data"
    ):
        scene.play()


def test_a_sweep_whose_data_changed_between_its_runs_goes_on_only_over_what_it_began_with(
    scene: Scene, tmp_path: Path
) -> None:
    file, row = tmp_path / "rows.jsonl", '{"problem": "1 + 1?", "answer": "2"}\n'
    began = "".join(row.replace("1 +", f"{number} +") for number in range(40))
    file.write_text(began)
    (tmp_path / "base.toml").write_text(
        f"""name = "base"
[policies.solver]
alphabet = {json.dumps(string.ascii_letters + string.digits + string.punctuation + " " + chr(10))}
model = {{ architecture = "qwen3", hidden_size = 64 }}
[workflows.sums]
env = {{ use = "dataset", path = "{file}" }}
policies = {{ solver = "solver" }}
[trainer]
steps = 10
[evaluate]
problems = 1
"""
    )
    (tmp_path / "s.toml").write_text(SWEEP.replace('"arithmetic"', f'"{tmp_path / "base.toml"}"'))
    scene.sweep, scene.runs = load_sweep(str(tmp_path / "s.toml"))
    scene.scripts["a"] += f"\nopen({str(file)!r}, 'a').write({row!r})"
    with pytest.raises(
        OtherData, match=r"(?s)variant b: .*rows\.jsonl: 40 rows, .* -> 41 rows.*a folder other than .* by --data"
    ):
        scene.play()
    with pytest.raises(OtherData, match="variant b"):
        scene.play()
    assert scene.begun == ["s-a-1"]
    file.write_text(began)
    scene.play()
    assert scene.begun == ["s-a-1", "s-b-1"]


def test_a_sweep_whose_archive_grows_between_its_runs_begins_no_other(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    archive.write_text("as it was")
    monkeypatch.setattr(sweeps, "_identify_archive", lambda sweep: Path(sweep.archive).read_text())
    scene.sweep = scene.sweep.model_copy(update={"archive": str(archive)})
    scene.scripts["a"] += f"\nopen({str(archive)!r}, 'a').write(' and more')"
    with pytest.raises(UsageError, match=r"archive has changed since the sweep began, so run s-b-1 is not played"):
        scene.play()
    assert scene.begun == ["s-a-1"]


def test_topics_and_objects_of_a_run_go_once_its_summary_is_there(scene: Scene) -> None:
    scene.scripts["b"] = "sys.exit(1)"
    scene.play()
    assert {"s-a-1.recipe", "s-a-1.curated.solver", "s-a-1.tasks.sums", "of-it/weights"} <= set(scene.deleted)
    assert not [name for name in scene.deleted if name.startswith("s-b-1")], "it is gone on with"
    scene.deleted.clear()
    scene.play()
    assert "s-a-1.recipe" in scene.deleted, "also where a sweep was killed before it deleted them"
    scene.deleted.clear()
    scene.sweep = scene.sweep.model_copy(update={"keep": True})
    scene.play()
    assert not scene.deleted


def test_what_cannot_be_compared_is_refused(scene: Scene) -> None:
    scene.play()
    run_folder = find_run_folder(scene.data, scene.runs[0])
    run_folder.summary.write_text(json.dumps({**SUMMARY, "wall_s": "long"}))
    with pytest.raises(UsageError, match=r"summary\.json cannot be read \(wall_s: .*valid number.*\): remove "):
        scene.play()
    run_folder.source.write_text("the hash of another")
    with pytest.raises(
        UsageError, match="its trajectories came from an archive, while the sweep file now has no `archive`"
    ):
        scene.play()
    scene.sweep = scene.sweep.model_copy(update={"name": "other"})
    with pytest.raises(UsageError, match="holds run s-a-1, but the names of this sweep's runs begin with other-"):
        scene.play()


def test_so_many_runs_as_are_asked_for_go_on_at_once(scene: Scene) -> None:
    scene.sweep = scene.sweep.model_copy(update={"side_by_side": 2})
    for variant, other in (("a", "b"), ("b", "a")):
        there = f"os.path.exists({str(scene.data / f's-{other}-1' / 'began')!r})"
        scene.scripts[variant] = WAITS.format(there) + PLAYED
    found = scene.play()
    assert all(run.summary for run in found.values())


def test_a_sweep_that_is_stopped_stops_its_run_in_order_and_begins_no_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = scene.data / "s-a-1"
    monkeypatch.setattr(FakeServers, "until", [folder / "began"])
    end = "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1] + '/stopped', 'w').close(), sys.exit(130)))\n"
    scene.scripts["a"] = end + WAITS.format(False)
    with pytest.raises(KeyboardInterrupt):
        scene.play()
    assert (folder / "stopped").exists()
    assert scene.begun == ["s-a-1"]
    assert scene.servers[0].calls[-1] == "stop"
    assert scene.said == []


def test_secrets_go_by_the_environment_and_on_no_command_line(scene: Scene) -> None:
    wanted = (KAFKA_CLIENT_VARIABLE, ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, KEYS_FILE_VARIABLE)
    scene.scripts["a"] = f"print(*[os.environ[name] for name in {wanted!r}])\nsys.exit(1)"
    assert scene.play()["s-a-1"].failed == '{"security.protocol": "SSL"} key secret /data/store.json'
    assert {setting.partition("=")[0] for setting in scene.settings} == {
        "kafka.bootstrap", "store.endpoint", "store.bucket", "store.secure", "store.region",
    }  # fmt: skip


def test_the_command_of_a_run_says_all_but_the_secrets(scene: Scene, tmp_path: Path) -> None:
    run = scene.runs[0]
    run_folder = find_run_folder(tmp_path, run)
    words = build_up_command(run, run_folder, ['kafka.bootstrap="h:1"'])
    folder = tmp_path / "s-a-1"
    assert words[1:6] == ["-P", "-m", "headrace", "up", "arithmetic"]
    sets = [value for word, value in pairwise(words) if word == "--set"]
    assert sets == ["seed=1", 'name="s-a-1"', 'kafka.bootstrap="h:1"']
    assert words[-5:] == ["--data", str(folder), "--summary", str(folder / "summary.json"), "--plain"]
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    assert build_up_command(run, run_folder, [])[-1] == "--new-recipe", "the servers of a running run may have moved"
    offline = build_up_command(run, run_folder, [], "a.archive")
    assert offline[4:9] == ["offline", "up", "arithmetic", "--from", "a.archive"]
    assert "--new-recipe" not in offline


def test_one_sweep_at_a_time_uses_a_folder(scene: Scene) -> None:
    owners: list[tuple[int, str] | None] = []
    play(scene.sweep, scene.runs, scene.data, lambda _: owners.append(DataFolder(scene.data).find_holder()))
    assert owners[0] == (os.getpid(), "`headrace compare`")
    told = r"runs `headrace compare` on .* now: wait until it ends, .* or give this run another folder"
    with DataFolder(scene.data).hold(owners[0][1]), pytest.raises(FolderInUse, match=told):
        scene.play()


def test_the_folder_of_a_sweep_tells_its_runs_and_theirs_tell_the_sweep(scene: Scene) -> None:
    assert DataFolder(scene.data).list_runs_of_sweep() == []
    scene.play()
    assert DataFolder(scene.data).list_runs_of_sweep() == ["s-a-1", "s-b-1"]
    one = DataFolder(scene.data / "s-a-1").sweep()
    assert one is not None
    assert (one.root, DataFolder(scene.data).sweep()) == (scene.data, None)
    assert refused(None, scene.data).endswith("is the folder of a sweep: add --run with one of s-a-1, s-b-1")
    DataFolder(scene.data / "s-a-1").write(RunNotes("s-a-1", "127.0.0.1:9", embedded_kafka=False))
    assert refused(None, scene.data / "s-a-1").endswith(f"give --data {scene.data} --run s-a-1")


def refused(run: str | None, data: Path) -> str:
    with pytest.raises(UsageError) as caught, opened_runs.open_run(run, data):
        pass
    return str(caught.value)
