"""What goes into a trainer and what comes out of it, as tests write and read it; and trainers that start at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from forked import process as forked
from patience import PATIENCE_S

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import Aborted, TransactionalWriter
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    Outcome,
    Sampling,
    Sequence,
    Span,
    Trajectory,
    TrajectoryGroup,
    WeightsPublished,
)


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


def start_trainer(
    run: Run, failpoints: Path | None = None, threads: int = 1, variant: str | None = None
) -> BaseProcess:
    """Start a trainer in a process of its own, forked from one that has imported torch already."""
    return forked(_train, str(run.address), str(failpoints or ""), threads, variant)


def _train(address: str, failpoints: str, threads: int, variant: str | None) -> None:
    import torch

    from headrace.infra import failpoints as points
    from headrace.trainers.train import main

    points._folder = failpoints
    torch.set_num_threads(threads)
    main(address, "solver", variant)


def command(folder: Path, *words: str, failpoints: Path | None = None) -> Answer:
    """Run the command line in such a process, which computes with two threads unless the command sees to it."""
    out, err = folder / "out.txt", folder / "err.txt"
    process = forked(_command, words, str(out), str(err), str(failpoints or ""))
    process.join(240)
    assert process.exitcode is not None, f"{words} still runs"
    return Answer(process.exitcode, out.read_text(), err.read_text())


def _command(words: tuple[str, ...], out: str, err: str, failpoints: str) -> None:
    import torch

    from headrace.app.cli import main as cli
    from headrace.infra import failpoints as points

    points._folder = failpoints
    torch.set_num_threads(2)
    with open(out, "w", buffering=1) as sys.stdout, open(err, "w", buffering=1) as sys.stderr:  # noqa: PTH123
        cli.main(words)


def until(condition: Callable[[], bool], process: BaseProcess, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition, as long as the process lives."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert process.is_alive(), f"the trainer ended with {process.exitcode}"
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.1)


def train_to(run: Run, version: int) -> None:
    """Let one trainer make all versions up to this one, and end it."""
    process = start_trainer(run)
    until(lambda: len(batches(run)) == version, process)
    process.kill()
    process.join()


def curated(number: int, version: int = 0, stale: int = 1, lengths: tuple[int, int] = (4, 12)) -> CuratedGroup:
    """A group of four random sequences; what the engine would have said does not matter to these tests."""
    draw = np.random.default_rng(number)
    trajectories = []
    for i in range(4):
        length = int(draw.integers(*lengths))
        ids = draw.integers(2, 50, length).astype(np.int32)
        logprobs = np.concatenate([np.zeros(2), -draw.random(length - 2) * 4]).astype(np.float32)
        spans = (Span("prompt", 2), Span("generated", length - 2, finish_reason="length", sampling=Sampling()))
        runs = np.array([-1, 2, version, length - 2], np.int32)
        sequence = Sequence(ids, logprobs, runs, spans=spans)
        trajectories.append(Trajectory(f"sums:{number}:{i}", float(i % 2), {}, (sequence,)))
    group = TrajectoryGroup(
        run_id="run-1", stream="sums", number=number, policy="solver", n_asked=4, trajectories=tuple(trajectories)
    )
    return CuratedGroup(
        run_id="run-1",
        stream="sums",
        number=number,
        group=codec.encode(group),
        deadline_version=version + stale,
        min_version=version,
        kept=(0, 1, 2, 3),
        rewards=tuple(t.reward for t in trajectories),
    )


def feed(run: Run, groups: list[CuratedGroup], writer: TransactionalWriter | None = None, line: str = "solver") -> None:
    """Write curated groups as a curator does."""
    own = writer or TransactionalWriter(run.connection, f"{run.address.run}.curate.test")
    while True:
        try:
            own.begin()
            own.produce([curated_message(run, group, line) for group in groups])
            own.commit()
        except Aborted:  # a record without an offset may be lost, as when its leader has just begun: a curator's turn
            continue  # is undone and done again, too
        return


def curated_message(run: Run, group: CuratedGroup, line: str = "solver") -> Outgoing:
    """A curated record with its key and headers, on the partition of its number."""
    stamp = Stamp(group.run_id, group.stream, group.number, use=group.use, policy="solver")
    partition = group.number % run.recipe.kafka.partitions
    return Outgoing(run.topics.curated(line), codec.encode(group), stamp.key, stamp.to_headers(), partition)


def replay(first: CuratedGroup, use: int, back: int = 0, weight: float = 1.0) -> CuratedGroup:
    """A further use of a group, as a curator writes it."""
    return replace(first, use=use, group=b"", kept=(), rewards=(), first_back=back, weight=weight)


def batches(run: Run, line: str = "solver") -> list[BatchTrained]:
    found = [codec.decode(m.value, BatchTrained) for m in read_all(run.connection, [run.topics.batches(line)])]
    return [batch for batch in found if batch.version >= 0]


def published(run: Run, line: str = "solver") -> list[WeightsPublished]:
    return [codec.decode(m.value, WeightsPublished) for m in read_all(run.connection, [run.topics.weights(line)])]


def has_made(run: Run, version: int, line: str = "solver") -> bool:
    """Whether batch and weights of a last version can be read: one commit reaches the partitions one by one."""
    newest: list[BatchTrained | WeightsPublished] = [*batches(run, line)[-1:], *published(run, line)[-1:]]
    return [one.version for one in newest] == [version, version]


def outcomes(run: Run, line: str = "solver") -> list[Outcome]:
    return [codec.decode(m.value, Outcome) for m in read_all(run.connection, [run.topics.outcomes(line)])]
