"""How fast offline curation is: `OMP_NUM_THREADS=1 python -m benchmarks.archive [--groups N] [--json FILE]`.

The archive has N groups of 8 trajectories of 512 tokens. The default chain keeps all of them, so each one is written
again. Three sides take turns, and the best round of each counts:

- `headrace offline curate` over this archive;
- `files`: a loop that only decodes and encodes the same records with fastavro, from these files into files of the same
  codec;
- `memory`: the same loop over messages in memory, with no file, compression or hash.

Each speed is measured by the CPU time of this process and by wall time. On a busy machine, compare only the speeds by
CPU time.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
from rich.console import Console

from headrace.infra.archive.container import CODEC, LEVEL
from headrace.infra.archive.reading import Archive
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.environment import LOG_LEVEL_VARIABLE
from headrace.infra.kafka.clients import Message
from headrace.infra.log import configure_logging
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import build_revision
from headrace.ops.offline.offline_curator import curate_offline
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import Sampling, Sequence, Span, Trajectory, TrajectoryGroup

ROUNDS = 3
SAMPLES, PROMPT, TOKENS = 8, 64, 512
PARTITIONS = 4
RUN, RUN_ID, POLICY = "made", "run-1", "solver"
TOPIC = f"{RUN}.trajectories.{POLICY}"


def recipe() -> Recipe:
    return Recipe.model_validate({
        "name": RUN,
        "policies": {POLICY: {"path": "none"}},
        "workflows": {"sums": {"env": {"use": "arithmetic"}, "policies": {POLICY: POLICY}}},
        "kafka": {"partitions": PARTITIONS},
    })  # fmt: skip


def message(number: int, draws: np.random.Generator) -> Message:
    def sequence() -> Sequence:
        # Token ids as a vocabulary of words is used: few often, most hardly ever.
        ids = np.minimum(draws.zipf(1.3, TOKENS), 150_000).astype(np.int32)
        spans = (Span("prompt", PROMPT), Span("generated", TOKENS - PROMPT, finish_reason="stop", sampling=Sampling()))
        logprobs = np.where(np.arange(TOKENS) < PROMPT, 0, -draws.exponential(0.5, TOKENS)).astype(np.float32)
        return Sequence(ids, logprobs, np.array([-1, PROMPT, 3, TOKENS - PROMPT], np.int32), spans=spans)

    members = tuple(Trajectory(f"sums:{number}:{i}", float(i % 2), {}, (sequence(),)) for i in range(SAMPLES))
    group = TrajectoryGroup(
        RUN_ID, "sums", number, policy=POLICY, n_asked=SAMPLES, trajectories=members, head_version=3
    )
    stamp = Stamp(RUN_ID, "sums", number, policy=POLICY, min_version=3, max_version=3, head_version=3)
    return Message(
        TOPIC, number % PARTITIONS, number // PARTITIONS, stamp.key, codec.encode(group), stamp.to_headers(), number
    )


def make(root: Path, groups: int) -> list[Message]:
    """Write the archive; return the messages of its trajectories."""
    draws = np.random.default_rng(0)
    made = [message(number, draws) for number in range(groups)]
    revision = codec.encode(build_revision(RUN_ID, 0, recipe(), "{}"))
    with ArchiveWriter(root, RUN, RUN_ID, _no_object, lambda *_: []) as writer:
        writer.add_topic(f"{RUN}.recipe", 1, {})
        writer.add_topic(TOPIC, PARTITIONS, {})
        writer.write(Message(f"{RUN}.recipe", 0, 0, b"0", revision))
        for one in made:
            writer.write(one)
        writer.save()
    return made


def _no_object(*_: object) -> None:
    raise AssertionError


# --------------------------------------------------------------------------------------------------------- three sides


def recode_in_memory(made: list[Message]) -> None:
    schema = codec.FORMS[TrajectoryGroup].schema
    for one in made:
        body = io.BytesIO(one.value)
        body.seek(codec.AVRO_HEADER_BYTES)
        record: Any = fastavro.schemaless_reader(body, schema, None)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, record)


def recode_files(root: Path, out: Path) -> None:
    out.mkdir()
    for number, path in enumerate(sorted((root / "topics" / TOPIC).rglob("*.avro"))):
        with path.open("rb") as source, (out / f"{number}.avro").open("wb") as target:
            rows = fastavro.reader(source)
            schema = rows.writer_schema
            fastavro.writer(target, schema, iter(rows), CODEC, sync_interval=1 << 20, codec_compression_level=LEVEL)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one pass."""

    wall: float
    cpu: float


def timed(work: Callable[[], object]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def measure(folder: Path, groups: int, rounds: int) -> dict[str, Any]:
    root, out = folder / "archive", folder / "out"
    made = make(root, groups)
    sides: dict[str, Callable[[], object]] = {
        "memory": lambda: recode_in_memory(made),
        "files": lambda: recode_files(root, out),
        "curate": lambda: curate_offline(root, None, None, out),
    }
    costs: dict[str, list[Cost]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, work in sides.items():
            shutil.rmtree(out, ignore_errors=True)
            costs[side].append(timed(work))
    assert len(list(Archive(out).messages((f"{RUN}.curated.{POLICY}", 0)))) == len(made) // PARTITIONS  # noqa: S101
    wall = {side: round(groups / min(cost.wall for cost in some)) for side, some in costs.items()}
    cpu = {side: round(groups / min(cost.cpu for cost in some)) for side, some in costs.items()}
    stored = sum(path.stat().st_size for path in (root / "topics" / TOPIC).rglob("*.avro"))
    return {
        "groups": groups,
        "bytes_per_group": len(made[0].value),
        "stored_share": round(stored / sum(len(one.value) for one in made), 3),
        "groups_per_s": wall,
        "groups_per_cpu_s": cpu,
        "of_files": round(wall["curate"] / wall["files"], 2),
        "of_memory": round(wall["curate"] / wall["memory"], 2),
        "cpu_of_files": round(cpu["curate"] / cpu["files"], 2),
        "cpu_of_memory": round(cpu["curate"] / cpu["memory"], 2),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "fastavro": fastavro.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=4_000, help="number of groups in the archive")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, of which the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "warning")
    configure_logging("archive")
    with tempfile.TemporaryDirectory(prefix="headrace-archive-") as folder:
        figures = measure(Path(folder), arguments.groups, arguments.rounds)
    Console().print_json(data=figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
