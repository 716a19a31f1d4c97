"""`headrace compare`: the runs of a sweep, one `headrace up` each, on one Kafka and one object store.

A run is finished when its summary exists and names nothing that is still missing. Other runs are played or resumed. If
a run fails, its error is shown, and the other runs continue.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from rich.markup import escape

from headrace.infra.archive.reading import Archive
from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.data_folder import COMPARING, SUMMARY, SWEPT, DataFolder, RunNotes
from headrace.infra.embedded.servers import ReportLine, Servers
from headrace.infra.environment import (
    ACCESS_KEY_VARIABLE,
    KAFKA_CLIENT_VARIABLE,
    KEYS_FILE_VARIABLE,
    SECRET_KEY_VARIABLE,
)
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.topic_admin import delete_topics
from headrace.infra.process.child_process import PYTHON, ChildCommand, end_all, spawn
from headrace.infra.process.log_lines import read_last_lines
from headrace.infra.process.signals import STOP_WITHIN_S, ignore_signals, interrupt_on_signals
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import find_differences
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.compare.comparison import PlayedRun
from headrace.ops.compare.run_result import RunResult, read_result
from headrace.ops.compare.sweep_file import Sweep, SweepRun, remove_addresses
from headrace.ops.compare.swept_data import SweptData
from headrace.ops.offline.offline_run import identify_archive

RUNS_POLL_S = 0.25
LAST_OUTPUT_LINES = 6
"""Largest number of lines that are shown of a failed run's output."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Files of a run of a sweep."""

    folder: Path
    """Its data folder."""

    @property
    def summary(self) -> Path:
        """Written by `headrace up` at the run's end."""
        return self.folder / SUMMARY

    @property
    def recipe(self) -> Path:
        """The recipe that the run was started with."""
        return self.folder / SWEPT

    @property
    def source(self) -> Path:
        """File that names the archive that the run was trained on."""
        return self.folder / "archive.txt"

    @property
    def output(self) -> Path:
        """File with the output of `headrace up`."""
        return self.folder / "output.txt"

    def result(self) -> RunResult | None:
        """Return the result of a finished run. Raises UsageError if it cannot be read."""
        found = self._read()
        return None if found is None or found.rest else found

    def _read(self) -> RunResult | None:
        try:
            return read_result(self.summary.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.summary} cannot be read ({error}): remove {self.folder} to play the run again"
            ) from error

    def tail_of_output(self) -> str:
        """Return the last lines of the run's output."""
        return "\n".join(read_last_lines(self.output, LAST_OUTPUT_LINES)) or "it printed nothing"

    def describe_failure(self) -> str:
        """Return why a run is not finished: what is still missing, or the end of its output."""
        return self.rest() or self.tail_of_output()

    def rest(self) -> str:
        """Return what is still missing of a run that has ended, in words; empty for any other run."""
        found = self._read()
        return "" if found is None else found.rest


def find_run_folder(data: Path, run: SweepRun) -> RunFolder:
    """Return the folder of a run below the sweep's data folder."""
    return RunFolder(DataFolder(data).root / run.name)


def play(sweep: Sweep, runs: Sequence[SweepRun], data: Path, say: ReportLine) -> dict[str, PlayedRun]:
    """Play the missing runs of a sweep; return all runs by name.

    Raises UsageError for recipes that cannot run, and if the folder holds results of other recipes; OtherData if the
    data of a variant has changed since the sweep began; KeyboardInterrupt if it was stopped. All runs are then stopped
    in order.
    """
    folder = DataFolder(data)
    run_folders = {run.name: find_run_folder(data, run) for run in runs}
    with folder.hold(COMPARING), interrupt_on_signals():
        _check_folder(sweep, folder)
        source = _identify_archive(sweep)
        _check_same(runs, run_folders, source)
        missing = [run for run in runs if run_folders[run.name].result() is None]
        if len(missing) < len(runs):
            say(escape(f"{len(runs) - len(missing)} of {len(runs)} runs are finished already, in {folder.root}"))
        if missing:
            data_read = _check_recipes_and_data(
                missing, folder, has_begun=any(one.recipe.exists() for one in run_folders.values())
            )
            _Playing(sweep, runs, folder, data_read, say).play(missing)
        results = {name: run_folder.result() for name, run_folder in run_folders.items()}
    return {
        run.name: PlayedRun(
            variant=run.variant,
            seed=run.seed,
            summary=results[run.name],
            failed="" if results[run.name] else run_folders[run.name].describe_failure(),
            over=run.over,
        )
        for run in runs
    }


def build_up_command(run: SweepRun, run_folder: RunFolder, shared: Sequence[str], archive: str = "") -> list[str]:
    """Return the words of the `headrace up` command that makes a run, on an archive if one is given.

    Args:
        run: The run to make.
        run_folder: Where its files go.
        shared: Settings of the servers, as `--set` takes them.
        archive: Archive to train on; empty to play.
    """
    sets = [word for setting in (*run.sets, *shared) for word in ("--set", setting)]
    where = ["--data", str(run_folder.folder), "--summary", str(run_folder.summary)]
    if archive:
        return [*PYTHON, "-m", "headrace", "offline", "up", run.source, "--from", archive, *sets, *where]
    where.append("--plain")
    # `play` has checked that only the servers' addresses differ from an existing run's recipe.
    where += ["--new-recipe"] if (run_folder.folder / "run.json").exists() else []
    return [*PYTHON, "-m", "headrace", "up", run.source, *sets, *where]


def _check_folder(sweep: Sweep, folder: DataFolder) -> None:
    """Refuse the data folder of a run, or of another sweep, because its servers hold other runs."""
    notes = folder.read()
    if notes is not None and not notes.run.startswith(f"{sweep.name}-"):
        raise UsageError(
            f"{folder.root} holds run {notes.run}, but the names of this sweep's runs begin with {sweep.name}-: give "
            "another folder by --data"
        )


def _identify_archive(sweep: Sweep) -> str:
    """Return the identity of the archive that a sweep trains on, as it is now; empty if runs are played."""
    return identify_archive(Archive(sweep.archive)) if sweep.archive else ""


def _check_same(runs: Sequence[SweepRun], run_folders: dict[str, RunFolder], source: str) -> None:
    """Refuse a folder that holds a run of the same name with another recipe: its result would be compared too."""
    for run in runs:
        path = run_folders[run.name].recipe
        source_file = run_folders[run.name].source
        source_before = source_file.read_text() if source_file.exists() else ""
        if path.exists() and source != source_before:
            raise UsageError(
                f"{path.parent} holds run {run.name}, but {_compare_sources(source_before, source)}: give the sweep "
                "another folder by --data, or remove that folder to make the run again"
            )
        if path.exists():
            before, now = Recipe.from_json(path.read_text()), remove_addresses(run.recipe)
            if changed := find_differences(before, now):
                raise UsageError(
                    f"{path.parent} holds run {run.name} of another recipe:\n"
                    + "\n".join(f"  {line}" for line in changed)
                    + "\nGive the sweep another folder by --data, or remove that folder to make the run again"
                )


def _compare_sources(before: str, now: str) -> str:
    """Return in words how the source of an existing run's trajectories differs from the sweep file."""
    if not before:
        return "it was a run with rollouts, while the sweep file now has an `archive`"
    if not now:
        return "its trajectories came from an archive, while the sweep file now has no `archive`"
    return "the sweep file now names another `archive`, or the archive has changed"


def _check_recipes_and_data(missing: Sequence[SweepRun], folder: DataFolder, *, has_begun: bool) -> SweptData:
    """Refuse recipes with missing names, and data that has changed, before the first of many runs."""
    found = SweptData(folder.root, has_begun=has_begun)
    for run in {run.variant: run for run in missing}.values():
        found.check(run)
    return found


class _Playing:
    """The runs of a sweep that are played now, and the servers that they share."""

    def __init__(
        self, sweep: Sweep, runs: Sequence[SweepRun], folder: DataFolder, data: SweptData, say: ReportLine
    ) -> None:
        self._sweep, self._folder, self._data, self._say = sweep, folder, data, say
        self._total, self._done, self._source = len(runs), 0, _identify_archive(sweep)
        self._runs = runs
        self._servers = None if sweep.archive else Servers(sweep.kafka, sweep.store, folder, say)
        """None if nothing is played."""
        self._stopping = threading.Event()
        self._telling = threading.Lock()

    def play(self, missing: Sequence[SweepRun]) -> None:
        """Play runs in order, several at once. Raises ServerError, KafkaAway, StoreError and KeyboardInterrupt."""
        self._done = self._total - len(missing)
        try:
            self._start()
            for run in self._runs:  # a sweep that was killed may have left them
                self._delete_topics_and_objects(run)
            # The threads live as long as their children, which the kernel ends with the thread that started them.
            with ThreadPoolExecutor(self._sweep.side_by_side) as threads:
                try:
                    open_runs = {threads.submit(self._play, run) for run in missing}
                    while open_runs:
                        done, open_runs = wait(open_runs, timeout=RUNS_POLL_S)
                        if self._servers is not None:
                            self._servers.revive()
                        for one in done:
                            one.result()
                finally:
                    with ignore_signals():
                        self._stopping.set()
                        threads.shutdown(cancel_futures=True)
        finally:
            with ignore_signals():
                if self._servers is not None:
                    self._servers.stop()

    def _start(self) -> None:
        if self._servers is None:
            return
        self._servers.claim()
        self._servers.fetch_jars()
        self._servers.start()
        notes = RunNotes(self._runs[0].name, self._servers.connection.bootstrap, self._servers.has_embedded_kafka)
        self._folder.write(notes)

    def _play(self, run: SweepRun) -> None:
        run_folder = find_run_folder(self._folder.root, run)
        if self._data.has_data(run.variant):
            self._data.check(run)
        if _identify_archive(self._sweep) != self._source:
            raise UsageError(
                f"the archive {self._sweep.archive} has changed since the sweep began, so run {run.name} is not "
                "played: it could not be compared with the earlier runs. Archive nothing into it during a sweep, and "
                "give the sweep another folder by --data"
            )
        run_folder.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(run_folder.recipe, remove_addresses(run.recipe).to_json().encode())
        write_atomically(run_folder.source, self._source.encode())
        run_folder.summary.unlink(missing_ok=True)  # an earlier summary of a run that was not finished
        child = spawn(ChildCommand(self._build_command(run, run_folder), self._build_environment(), run_folder.output))
        code = self._wait_for(child)
        if self._stopping.is_set():
            return
        self._report_run(run, run_folder, code)
        self._delete_topics_and_objects(run)

    def _report_run(self, run: SweepRun, run_folder: RunFolder, code: int) -> None:
        summary = run_folder.result()
        with self._telling:
            self._done += 1
            what = f"[{self._done}/{self._total}] {run.variant}, seed {run.seed}"
            if rest := run_folder.rest():
                self._say(f"{what}: {escape(rest)}")
            elif summary is None:
                others = "; the other runs continue" if self._done < self._total else ""
                self._say(f"{what}: failed with exit code {code}{others}. {escape(str(run_folder.output))} ends with")
                self._say(escape("\n".join(f"    {line}" for line in run_folder.tail_of_output().splitlines())))
            else:
                self._say(f"{what}: {describe_run_result(summary)}")

    def _wait_for(self, child: subprocess.Popen[bytes]) -> int:
        """Return a child's exit code; end the child if the sweep is stopped."""
        while True:
            try:
                return child.wait(RUNS_POLL_S)
            except subprocess.TimeoutExpired:
                if self._stopping.is_set():
                    end_all([child.pid], 2 * STOP_WITHIN_S)
                    return child.wait()

    def _build_command(self, run: SweepRun, run_folder: RunFolder) -> list[str]:
        return build_up_command(run, run_folder, self._build_server_settings(), self._sweep.archive)

    def _build_server_settings(self) -> list[str]:
        """Return the settings with the addresses of the servers."""
        if self._servers is None:
            return []
        store = self._servers.store_address
        kafka = self._servers.connection.bootstrap
        settings = {"endpoint": store.endpoint, "bucket": store.bucket, "secure": store.secure, "region": store.region}
        return [
            f"kafka.bootstrap={json.dumps(kafka)}",
            *(f"store.{key}={json.dumps(value)}" for key, value in settings.items()),
        ]

    def _build_environment(self) -> dict[str, str]:
        """Return a child's environment with the secrets: every user of the machine could read a command line."""
        environment = dict(os.environ)
        if self._servers is None:
            return environment
        if client := self._servers.client:
            environment[KAFKA_CLIENT_VARIABLE] = json.dumps(client)
        store = self._servers.store_address
        if store.access_key:
            environment |= {ACCESS_KEY_VARIABLE: store.access_key, SECRET_KEY_VARIABLE: store.secret_key}
        if store.keys_file:
            environment[KEYS_FILE_VARIABLE] = store.keys_file
        return environment

    def _delete_topics_and_objects(self, run: SweepRun) -> None:
        """Delete topics and objects of a finished run, because a broker gets slow with many partitions."""
        summary = find_run_folder(self._folder.root, run).result()
        if summary is None or self._sweep.keep or self._servers is None:
            return
        recipe = run.recipe
        try:
            delete_topics(self._servers.connection, [spec.name for spec in recipe.topic_specs])
            with ObjectStore(replace(self._servers.store_address, prefix=f"{summary.run_id}/")) as store:
                for listed in store.list_objects():
                    store.delete(listed.key)
        except HeadraceError as error:
            self._say(f"not all topics and objects of run {run.name} could be deleted: {escape(str(error))}")


def describe_run_result(summary: RunResult) -> str:
    """Return the result of a run in one line."""
    changes = []
    for policy, block in summary.policies.items():
        whose = f"{policy} " if len(summary.policies) > 1 else ""
        ends = {"reward": (block.reward_first, block.reward_last), "held-out": (block.eval_first, block.eval_last)}
        known = {what: [f"{value:.2f}" for value in both if value is not None] for what, both in ends.items()}
        changes += [f"{whose}{what} {' → '.join(both)}" for what, both in known.items() if both]
    trajectories = sum(block.trajectories for block in summary.policies.values())
    audit = "" if summary.audit is None or summary.audit.ok else "; its audit does not close"
    return ", ".join([*changes, f"{trajectories:,} trajectories, {summary.wall_s:.0f} s{audit}"])
