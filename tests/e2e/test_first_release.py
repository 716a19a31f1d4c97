"""What release 0.1.0 wrote, this build reads, and goes on with: a run that it interrupted, and an archive of that run.

`first_release/README.md` says how they were made. They are not made anew: what stands in them is what users have.
"""

from __future__ import annotations

import json
import math
import tarfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest
from command import headrace, move_servers

HERE = Path(__file__).parent / "first_release"
RECIPE = HERE / "first.toml"
INTERRUPTED_AT, END = 4, 8
"""Versions."""
OF_THE_MOMENT = {
    "seconds",
    "cpu_seconds",
    "objects_seconds",
    "records",
    "records_per_s",
    "bytes",
    "archive",
    "out",
    "file",
    "start",
}
"""Keys of answers that tell of the machine, of paths, of a library's way to compress or of how much was read."""


@dataclass(frozen=True)
class Resumed:
    """The run, gone on with by this build until its end."""

    summary: dict[str, Any]
    audit: dict[str, Any]
    archive: Path
    """Of all of it, made by this build."""


def told(name: str) -> Any:
    """Return what release 0.1.0 answered."""
    return json.loads((HERE / "told" / f"{name}.json").read_text())


def asked(*words: str | Path, code: int = 0) -> Any:
    done = headrace(*words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def lacking(then: Any, now: Any, at: str = "") -> list[str]:
    """Return what was told then and is not now, or is otherwise; what is told beside it is no matter."""
    match then, now:
        case dict(), dict():
            keys = [key for key in then if key not in OF_THE_MOMENT]
            return [line for key in keys for line in lacking(then[key], now.get(key), f"{at}/{key}")]
        case list(), list() if len(then) == len(now):
            pairs = enumerate(zip(then, now, strict=True))
            return [line for index, (one, other) in pairs for line in lacking(one, other, f"{at}/{index}")]
        case float(), float() | int() if math.isclose(then, now, rel_tol=1e-6, abs_tol=1e-9):
            return []
    return [] if then == now else [f"{at}: {then!r} is now {now!r}"]


def unpacked_data(into: Path) -> Path:
    """Unpack the run, its servers at other ports: several lanes and checkouts may do this on one machine."""
    with tarfile.open(HERE / "data.tar.xz") as packed:
        packed.extractall(into, filter="data")
    move_servers(into / "data")
    return into / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interrupted run, to look at."""
    return unpacked_data(tmp_path_factory.mktemp("first-release"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first-release-archive")
    with tarfile.open(HERE / "archive.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    return folder / "archive"


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    folder = tmp_path_factory.mktemp("first-release-resumed")
    run, summary, made = unpacked_data(folder), folder / "summary.json", folder / "archive"
    done = headrace("up", RECIPE, "--data", run, "--plain", "--summary", summary)
    assert done.returncode == 0, done.stdout + done.stderr
    asked("archive", "--data", run, "--out", made)
    return Resumed(json.loads(summary.read_text()), asked("audit", "--data", run), made)


def records(archive: Path) -> dict[tuple[str, int], dict[int, tuple[Any, ...]]]:
    """Return an archive's records by topic and partition, and by offset, as any Avro tool reads them."""
    found: defaultdict[tuple[str, int], dict[int, tuple[Any, ...]]] = defaultdict(dict)
    for path in (archive / "topics").glob("*/*/*.avro"):
        with path.open("rb") as file:
            one: Any
            for one in fastavro.reader(file):
                key = path.parts[-3].partition(".")[2], int(path.parts[-2])
                found[key][one["offset"]] = one["key"], one["timestamp_ms"], one["value"]
    return found


def recorded_hashes(answer: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["version"], one["expected"]) for one in answer["versions"]]


def test_its_audit_is_the_same_down_to_the_digest_of_what_was_curated(data: Path) -> None:
    now = asked("audit", "--data", data, "--deep")
    assert now["ok"] is True
    assert lacking(told("audit"), now) == []


@pytest.mark.builds
def test_a_step_of_it_opens_with_its_texts_rewards_and_advantages(data: Path) -> None:
    step = asked("inspect", "--data", data, "--step", str(INTERRUPTED_AT), "--limit", "0")
    assert lacking(told("step"), step) == []
    rewards = [one["reward"] for group in step["groups"] for one in group["trajectories"]]
    assert (len(rewards), sum(rewards)) == (16, 4), "a quarter of the answers were right"


@pytest.mark.builds
def test_a_trajectory_of_it_opens_token_by_token(data: Path) -> None:
    then = told("trajectory")
    name = then["group"]["trajectories"][0]["id"]
    assert lacking(then, asked("inspect", "--data", data, "--trajectory", name)) == []


@pytest.mark.builds
def test_a_version_of_it_is_followed_back_to_its_groups_and_their_rewards(data: Path) -> None:
    assert lacking(told("version"), asked("lineage", "--data", data, "--version", str(INTERRUPTED_AT))) == []


@pytest.mark.builds
def test_trained_again_it_gives_every_hash_or_says_why_this_machine_cannot_tell(data: Path) -> None:
    then = told("retrain")
    done = headrace("retrain", "--data", data, "--json")
    assert done.stdout.startswith("{"), done.stderr
    now = json.loads(done.stdout)
    recorded = then["fingerprint"]["expected"]
    assert lacking(recorded, now["fingerprint"]["expected"]) == []
    alike = lacking(recorded, now["fingerprint"]["here"]) == []
    assert (now["comparable"], not now["differing"]) == (alike, alike), done.stdout
    assert (done.returncode, now["ok"]) == ((0, True) if alike else (3, False))
    assert recorded_hashes(now) == recorded_hashes(then)
    got = [one["expected"] if alike else None for one in then["versions"]]
    assert [one["got"] for one in now["versions"]] == got


@pytest.mark.builds
def test_it_goes_on_to_its_end_under_the_recipe_that_began_it(resumed: Resumed) -> None:
    assert resumed.summary["versions"] == END
    assert resumed.audit["ok"] is True
    groups = resumed.summary["groups"]
    assert groups["issued"] == groups["trained"] + sum(groups["discarded"].values()) + groups["dead"]
    assert groups["in_flight"] == 0
    assert groups["trained"] > told("audit")["groups"]["trained"]


@pytest.mark.builds
def test_going_on_leaves_every_record_that_was_there_as_it_was(resumed: Resumed, archive: Path) -> None:
    then, now = records(archive), records(resumed.archive)
    del then["state", 0]  # compacted
    for (topic, partition), old in then.items():
        new = now[topic, partition]
        first = min(new) if topic.startswith("tasks.") else 0  # the feeder deletes tasks that are done
        left = {offset: record for offset, record in old.items() if offset >= first}
        assert {offset: new.get(offset) for offset in left} == left, f"{topic}[{partition}]"
    old_versions = [value["weights_hash"] for _, _, value in then["weights.solver", 0].values()]
    versions = [value["weights_hash"] for _, _, value in now["weights.solver", 0].values()]
    assert len(old_versions) == INTERRUPTED_AT + 1
    assert (versions[: len(old_versions)], len(versions)) == (old_versions, END + 1)


@pytest.mark.builds
def test_what_both_builds_curated_is_curated_again_from_one_archive(resumed: Resumed, tmp_path: Path) -> None:
    again = asked("offline", "curate", "--from", resumed.archive, "--out", tmp_path / "again")
    assert again["sha256"] == resumed.audit["curated"]["solver"]["sha256"]


@pytest.mark.builds
def test_its_archive_is_curated_to_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    assert lacking(told("curate"), asked("offline", "curate", "--from", archive, "--out", tmp_path / "curated")) == []


@pytest.mark.builds
def test_its_archive_is_trained_over_in_the_batches_that_it_recorded(archive: Path, tmp_path: Path) -> None:
    then = told("train")
    done = headrace("offline", "train", "--from", archive, "--batches", "--out", tmp_path / "trained", "--json")
    assert done.stdout.startswith("{"), done.stderr
    now = json.loads(done.stdout)
    assert (recorded_hashes(now), now["trained"]) == (recorded_hashes(then), then["trained"])
    if lacking(then["fingerprint"], now["fingerprint"]) == []:
        assert lacking(then, now) == []
        assert done.returncode == 0, done.stderr


@pytest.mark.builds
def test_its_archive_is_exported_with_texts_and_what_became_of_each(archive: Path, tmp_path: Path) -> None:
    assert lacking(told("export"), asked("export", archive, "--to", tmp_path / "rows.parquet")) == []
