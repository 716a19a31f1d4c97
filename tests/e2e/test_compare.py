"""`headrace compare` as a user meets it: two variants, one seed, then once more with nothing left to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import UNLEARNED, headrace, processes_of

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka.clients import Connection, get_admin

SETS = [word for word in UNLEARNED if word != "--set"]
SWEEP = f"""
name = "tiny"
seeds = [3]
set = {json.dumps(["trainer.steps=3", "evaluate.problems=16", "kafka.partitions=2", *SETS])}

[[variants]]
recipe = "efficient-data/no-filter"

[[variants]]
recipe = "efficient-data/ds-greso-replay-0.5"
"""


@pytest.mark.runs
def test_variants_are_run_on_one_kafka_compared_and_not_run_again(tmp_path: Path) -> None:
    file, data, picture = tmp_path / "tiny.toml", tmp_path / "data", tmp_path / "tiny.png"
    file.write_text(SWEEP)
    words = ("compare", file, "--data", data, "--json")

    done = headrace(*words, "--plot", picture)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert list(found["variants"]) == ["no-filter", "ds-greso-replay-0.5"]
    for run in found["runs"].values():
        assert run["summary"]["audit"]["ok"]
        assert run["summary"]["versions"] == 3
        progress = run["summary"]["policies"]["solver"]["progress"]
        assert [version for version, *_ in progress] == [0, 1, 2, 3]
        assert 0 < progress[1][1] <= progress[3][1] <= run["summary"]["policies"]["solver"]["trajectories"]
        assert 0 < progress[0][2] < progress[1][2] < progress[3][2] < run["summary"]["wall_s"]
    plain, replayed = (variant["policies"]["solver"] for variant in found["variants"].values())
    assert "zero_variance" not in plain["discarded"]
    assert replayed["curves"]["held_out"]["version"]["x"] == [0, 1, 2, 3]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in picture.with_suffix(".html").read_text()
    assert "[2/2] ds-greso-replay-0.5, seed 3: reward" in done.stderr
    assert not processes_of(data)

    again = headrace(*words)

    assert (again.returncode, json.loads(again.stdout)) == (0, found)
    assert again.stderr.strip().startswith("2 of 2 runs are finished already")
    assert json.loads((data / "comparison.json").read_text()) == found
    with EmbeddedKafka(data / "kafka", for_a_look=True) as kafka:
        topics = get_admin(Connection(kafka.bootstrap)).list_topics(timeout=60).topics
    assert not [name for name in topics if name.startswith("tiny-")]
    objects = [path for path in (data / "store" / "data").rglob("*") if path.is_file()]
    assert not [path for path in objects if "tiny-" in str(path.relative_to(data))]
