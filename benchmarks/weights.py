"""What weight updates cost: `python -m benchmarks.weights [--parameters 1.7e9] [--json FILE]`.

There are five parts; `--parts` chooses some of them.

* `formats`: updates between two made-up sets of weights in the shape of Qwen3-1.7B, in every format of
  `benchmarks/weight_formats.py`. A given share of the values differs. The table shows the size, the bytes for each
  changed value, the size as a multiple of the floor (`x floor`, see below), how many times smaller than the whole set
  it is (`1/full`), and the speeds of encoding and applying. In brackets, each speed is shown as a share of the speed of
  a plain copy of the weights: first into new memory, which the system must clear, then into memory that was written
  before. All speeds are in bytes of one set, from memory to memory; the best round counts. With Headrace's format
  the time includes all checks: encoding hashes the new weights, and applying checks the object, and the weights before
  and after. What every format applies is compared with the new weights, bit by bit.
* `memory`: the memory that encoding and applying need in addition to the two sets; it includes the update itself. It is
  the peak resident memory (VmHWM) of a process that does nothing else, minus what was resident at its start. Linux
  only.
* `pauses`: how long the learner waits while a version is copied, compared with a plain copy of the same values; and how
  long the engine stands still while a version is swapped in, compared with writing 1 % of the values in place. The best
  round counts; for the swap, the worst.
* `joining`: 250 versions, each of which changes 1 % of the values, are published to a broker and a store on this
  machine. What does a worker fetch that is 200 versions behind? And how often is each object fetched when 16 workers of
  one machine go to the newest version at once?
* `training`: a small policy is trained at three learning rates (`benchmarks/real_updates.py`). The tables show the last
  version in every format, and how size and share of changed values grow when a delta covers 10 or 50 versions.

The floor is the entropy of which values changed (each tensor at its own share of changed values) and of the size of the
changes. Updates of real training can be smaller: if only a few rows of an embedding change, the positions are not
independent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.weight_costs import PeakMemory, Row, Tell, measure_formats, measure_memory, sizes
from benchmarks.weight_sets import pack_weights
from headrace.infra.environment import LOG_LEVEL_VARIABLE
from headrace.infra.log import configure_logging
from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.weights.delta import count_threads, encode_delta, read_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.tensors import Tensor

if TYPE_CHECKING:
    from benchmarks.weight_joining import Joining
    from benchmarks.weight_pauses import EnginePause, LearnerPause

SPANS = (1, 10, 50)
ROUNDS = 3
WIDTH = 120
"""Characters of a table, also where there is no terminal."""
PARTS = ("formats", "memory", "pauses", "joining", "training")
JOINING_PARAMETERS = 2e7
"""Of the weights of which 250 versions are published: only their proportions count."""


# ------------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class Version:
    """What a training published, as a delta on the version before."""

    density: float
    bytes: int
    bytes_per_value: float
    reward: float
    """Mean of the groups that made it."""


@dataclass(frozen=True, slots=True)
class Span:
    """The first so many versions as one delta."""

    versions: int
    density: float
    bytes: int
    bytes_per_value: float
    times_smaller: float
    """Than the whole set."""
    share_of_singles: float
    """Of the bytes of all their deltas."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One training."""

    learning_rate: float
    versions: tuple[Version, ...]
    last: tuple[Row, ...]
    """The last version in every format."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Trainings:
    """All of them, from one start."""

    parameters: int
    start_reward: float
    trainings: tuple[Trained, ...]


def measure_training(hidden: int, count: int, tell: Tell) -> Trainings:
    """Train from one start at every learning rate, so many versions each."""
    from benchmarks.real_updates import LEARNING_RATES, Training, make_start, versions

    training = Training(hidden=hidden)
    start = make_start(training, tell)
    tell(f"{start.parameters:,} parameters, reward {start.reward:.2f}")
    found = []
    for rate in LEARNING_RATES:
        made = versions(start, training, TrainerSettings(learning_rate=rate))
        found.append(trained(made, rate, count, tell))
    return Trainings(start.parameters, start.reward, tuple(found))


def trained(published: Iterator[tuple[dict[str, Tensor], float]], rate: float, count: int, tell: Tell) -> Trained:
    first, _ = next(published)
    before, deltas, told, rows, spans = first, [], [], [], []
    for number, (weights, reward) in enumerate(islice(published, count), 1):
        deltas.append(encode_delta(before, weights, Label("policy", 0, number - 1, number)))
        header = read_delta(deltas[-1]).header
        told.append(Version(header.density, len(deltas[-1]), len(deltas[-1]) / max(1, header.changed_items), reward))
        tell(f"learning rate {rate:g}, version {number}: {header.density:.2%} changed, reward {reward:.2f}")
        if number == count:
            rows = sizes(pack_weights(before), pack_weights(weights))
        if number in SPANS:
            spans.append(span_of(first, weights, deltas))
        before = weights
    return Trained(rate, tuple(told), tuple(rows), tuple(spans))


def span_of(first: dict[str, Tensor], last: dict[str, Tensor], deltas: list[bytes]) -> Span:
    """Compare the deltas from the first weights to the last with one delta between these two."""
    data = encode_delta(first, last, Label("policy", 0, 0, len(deltas)))
    header, whole = read_delta(data).header, sum(tensor.data.nbytes for tensor in first.values())
    return Span(
        len(deltas),
        header.density,
        len(data),
        len(data) / max(1, header.changed_items),
        whole / len(data),
        len(data) / sum(map(len, deltas)),
    )


# -------------------------------------------------------------------------------------------------------------- tables


def table_of(title: str, *names: str) -> Table:
    table = Table(title=title)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def show_formats(console: Console, rows: Sequence[Row], title: str) -> None:
    table = table_of(title, "format", "changed", "MB", "bytes/value", "x floor", "1/full")
    if rows[0].speed:
        for what in ("encode GB/s (of copies)", "apply GB/s (of copies)"):
            table.add_column(what, justify="right", no_wrap=True)
    for row, after in zip_longest(rows, rows[1:]):
        # What is sent whole has no bytes of a changed value.
        each = ("", "") if row.times_smaller == 1 else (f"{row.bytes_per_value:.2f}", f"{row.times_floor:.2f}")
        cells = [f"{row.density:.2%}", f"{row.bytes / 1e6:,.2f}", *each, f"{row.times_smaller:.1f}"]
        if row.speed is not None:
            speeds = (row.speed.encode, row.speed.apply)
            copies = (row.speed.new_copy, row.speed.copy)
            cells += [f"{speed:.2f} ({', '.join(f'{speed / copy:.2f}' for copy in copies)})" for speed in speeds]
        table.add_row(row.format, *cells, end_section=after is None or after.density != row.density)
    console.print(table)


def show_memory(console: Console, found: list[PeakMemory]) -> None:
    table = table_of("Most memory beyond the two sets, MB", "changed", "encode", "apply", "update itself")
    for one in found:
        table.add_row(f"{one.density:.0%}", *(f"{size / 1e6:,.0f}" for size in (one.encode, one.apply, one.update)))
    console.print(table)


def show_pauses(console: Console, learner: LearnerPause, engine: EnginePause) -> None:
    table = table_of("Waits for a new version, ms", "who", "parameters", "waits", "takes", "compared with")
    beside = {"a copy": learner.copy_s, "a copy into new memory": learner.new_copy_s}
    for name, seconds in beside.items():
        waits = f"{learner.snapshot_s * 1e3:,.1f}"
        table.add_row("learner", f"{learner.parameters:,}", waits, f"{seconds * 1e3:,.1f}", name)
    waits, scatter = (f"{seconds * 1e3:,.1f}" for seconds in (engine.swap_s, engine.scatter_s))
    table.add_row("engine", f"{engine.parameters:,}", waits, scatter, "writing 1 % of the values")
    console.print(table)


def show_joining(console: Console, found: Joining) -> None:
    one = found.joined
    console.print(
        f"a worker {one.behind} versions behind fetches {one.objects} objects, {one.bytes / 1e6:,.1f} MB: "
        f"{one.of_anchor:.2f} times an anchor"
    )
    most = max(found.fetches.values())
    objects = len(found.fetches)
    console.print(f"{found.followers} workers of one machine fetched each of {objects} objects at most {most} times")


def show_training(console: Console, found: Trainings) -> None:
    title = f"Training {found.parameters:,} parameters, several versions in one delta"
    names = ("learning rate", "versions in a delta", "changed", "kB", "bytes/value", "1/full", "of single deltas")
    table = table_of(title, *names)
    for one in found.trainings:
        for span in one.spans:
            cells = [
                f"{span.versions}",
                f"{span.density:.2%}",
                f"{span.bytes / 1e3:,.1f}",
                f"{span.bytes_per_value:.2f}",
            ]
            table.add_row(f"{one.learning_rate:g}", *cells, f"{span.times_smaller:.1f}", f"{span.share_of_singles:.0%}")
        table.add_section()
    console.print(table)
    for one in found.trainings:
        show_formats(console, one.last, f"Version {len(one.versions)} at learning rate {one.learning_rate:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=1.7e9, help="parameters of the made-up sets of weights")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, of which the best counts")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model that is trained")
    parser.add_argument("--versions", type=int, default=max(SPANS), help="versions of each training")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "warning")
    configure_logging("weights")
    console, began = Console(), time.monotonic()
    console.width = max(console.width, WIDTH)

    def tell(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s  {text}[/]", highlight=False)

    figures: dict[str, Any] = {
        "parameters": arguments.parameters,
        "threads": count_threads(),
        "cores": os.cpu_count(),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    if "formats" in arguments.parts:
        rows = measure_formats(arguments.parameters, arguments.rounds, tell)
        show_formats(console, rows, f"Updates of {arguments.parameters:g} parameters, best of {arguments.rounds}")
        figures["formats"] = [asdict(row) for row in rows]
    if "memory" in arguments.parts:
        peaks = measure_memory(arguments.parameters, tell)
        show_memory(console, peaks)
        figures["memory"] = [asdict(peak) for peak in peaks]
    if "pauses" in arguments.parts:
        from benchmarks.weight_pauses import measure_engine, measure_learner

        learner = measure_learner(arguments.parameters, arguments.rounds, tell)
        engine = measure_engine(arguments.parameters, arguments.rounds, tell)
        show_pauses(console, learner, engine)
        figures["pauses"] = {"learner": asdict(learner), "engine": asdict(engine)}
    if "joining" in arguments.parts:
        from benchmarks.weight_joining import measure_joining

        joining = measure_joining(min(arguments.parameters, JOINING_PARAMETERS), tell)
        show_joining(console, joining)
        figures["joining"] = asdict(joining)
    if "training" in arguments.parts:
        found = measure_training(arguments.hidden, arguments.versions, tell)
        show_training(console, found)
        figures["training"] = asdict(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
