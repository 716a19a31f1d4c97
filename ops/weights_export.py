"""Writes one version of a run as a folder that other tools can load."""

from __future__ import annotations

from pathlib import Path

from headrace.infra.errors import UsageError
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.retired import WEIGHTS, describe_versions, read_retired
from headrace.infra.run.run import Run
from headrace.infra.weights.files import ADAPTER_WEIGHTS, choose_files_to_serve, is_adapter, write_files
from headrace.infra.weights.folder import write_adapter, write_weights
from headrace.infra.weights.paths import find_newest_events
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.infra.whole_folder import write_new_folder
from headrace.ops.figures.best_version import find_best_version
from headrace.schemas.records import EvalResult, WeightsPublished


def choose_best(run: Run, policy: str) -> int:
    """Return the version with the highest held-out reward. Raises UsageError if no version was evaluated."""
    messages, retired = read_all(run.connection, [run.topics.evals(policy)]), read_retired(run)
    results = (read_record(message, EvalResult) for message in messages)
    best = find_best_version(
        result
        for result in results
        if result is not None
        and result.run_id == run.run_id
        and not retired.has_version(policy, WEIGHTS, result.version)
    )
    if best is None:
        raise UsageError(
            f"the best version of policy {policy} of run {run.address.run} is not known: none of its versions with "
            "weights has a held-out reward. Give the number of a version: --version N, or for a branch RUN@N. "
            "evaluate.every sets how often a run evaluates"
        )
    return best.version


def export(run: Run, policy: str | None, version: int | None, out: Path) -> WeightsPublished:
    """Write a version, by default the newest, with the files of its anchor; return its event.

    An adapter is written together with its base.

    Raises UsageError if the version does not exist, was retired, or `out` exists; BadWeights if no good objects lead to
    it; and FilesError if one of its files has a name with a folder.
    """
    name = run.resolve(policy)
    found = (read_record(message, WeightsPublished) for message in read_all(run.connection, [run.topics.weights(name)]))
    events = [event for event in found if event is not None and event.run_id == run.run_id]
    versions = find_newest_events(events)
    if not versions:
        raise UsageError(f"policy {name} of run {run.address.run} has no published version yet")
    target = versions.get(max(versions) if version is None else version)
    if target is None:
        raise UsageError(
            f"policy {name} of run {run.address.run} has not published version {version}: choose one of the published "
            f"versions {describe_versions(versions)}"
        )
    retired = read_retired(run)
    if retired.has_version(name, WEIGHTS, target.version):
        there = describe_versions(one for one in versions if not retired.has_version(name, WEIGHTS, one))
        raise UsageError(
            f"`headrace gc` has retired the weights of version {target.version} of policy {name}: choose one of the "
            f"versions {there}"
        )
    beside = [one for one, event in versions.items() if event.files and one <= target.version]
    files = choose_files_to_serve(versions[max(beside)].files) if beside else ()
    with write_new_folder(out) as folder:
        tensors = PolicyWeights(run.weights_cache).load_version(events, target)
        if is_adapter(files):
            write_adapter(tensors, folder / ADAPTER_WEIGHTS, target.weights_hash)
        else:
            write_weights(tensors, folder, target.weights_hash)
        write_files(files, folder, run.get)
    return target
