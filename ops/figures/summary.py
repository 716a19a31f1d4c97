"""What came of a run, as one JSON object, from its topics and the launcher's accounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from headrace.infra.embedded.data_folder import DataFolder, Effort
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import log_share
from headrace.ops.audit.report import audit
from headrace.ops.discards import discards
from headrace.ops.figures.figures import Figures, RewardPoint, RunFigures
from headrace.ops.figures.pulse import Pulse
from headrace.schemas.records import EvalResult

LOG_PROCESSES = ("broker", "feed", "curate")
"""Whose CPU time counts whole as the log's; of the others, that of librdkafka's threads."""
SECONDS_PREFIX = "seconds_"


def summarize(run: Run, effort: Effort, folder: DataFolder) -> dict[str, Any]:
    """Return the summary of a run that has ended and drained. Raises KafkaAway or KafkaRefused.

    With several policies, `versions` is what the slowest has reached, rewards and evaluations are means over policies,
    and `policies` tells of each.
    """
    fold, pulse = Figures(run.run_id, run.recipe), Pulse(run.run_id, run.recipe)
    for message in read_all(run.connection, fold.topics):
        fold.take(message)
        pulse.take(message)
    figures = fold.figures({}, 0)
    proof = audit(run, drained=True)
    rates = pulse.mean_rates()
    fates = discards(run, None)["policies"]
    policies = {
        policy: policy_block(figures, policy, fold.seconds_to_versions(policy)) | {"lengths": lengths_of(fates[policy])}
        for policy in run.recipe.policies
    }
    return {
        "run": figures.run,
        "run_id": run.run_id,
        "ended": figures.ended,
        "feed": run.recipe.feed.model_dump(mode="json", include={"solved_share", "raise_tier"}),
        "versions": min(block["versions"] for block in policies.values()),
        "wall_s": round(effort.wall_s, 1),
        **{
            key: mean_of(block[key] for block in policies.values())
            for key in ("reward_first", "reward_last", "eval_first", "eval_last")
        },
        "groups": asdict(figures.groups),
        "selection": {stream: asdict(selection) for stream, selection in figures.selection.items()},
        "audit": {"ok": proof.ok, "lost": proof.lost, "doubled": proof.doubled},
        "log_share": round(log_share_of(figures, pulse), 4),
        "log_cpu_share": round(log_cpu_share(effort.cpu), 4),
        "tokens_per_s": round(rates.tokens, 1),
        "samples_per_s": round(rates.samples, 1),
        "tokens": figures.tokens,
        "wasted_tokens": figures.wasted(),
        "dead_letters": pulse.dead_letters,
        "unnumbered_letters": figures.unnumbered_letters,
        "cpu_s": {name: round(used["process"], 1) for name, used in effort.cpu.items()},
        "data": {"folder": str(folder.root), "bytes": folder.size_bytes()},
        "policies": policies,
        "shadows": {line: asdict(shadow) for line, shadow in figures.shadows.items()},
    }


def policy_block(figures: RunFigures, policy: str, seconds: Mapping[int, float]) -> dict[str, Any]:
    """Return what came of one policy; None for what was never measured.

    Args:
        figures: Of the run.
        policy: Which one.
        seconds: Version to the seconds after which it was made.
    """
    first, last = eval_ends([one for one in figures.evals if one.policy == policy])
    return {
        "versions": max(0, figures.versions.get(policy, 0)),
        "reward_first": figures.reward_first.get(policy),
        "reward_last": figures.reward_last.get(policy),
        "eval_first": first,
        "eval_last": last,
        "groups": asdict(figures.policies[policy]),
        "weights": asdict(figures.weights[policy]),
        "reward_curve": [[point.version, round(point.reward, 4)] for point in figures.rewards.get(policy, ())],
        "eval_curve": [
            [one.version, round(one.avg_at_k, 4)]
            for one in sorted(figures.evals, key=lambda one: one.version)
            if one.policy == policy
        ],
        "trajectories": sum(point.trajectories for point in figures.rewards.get(policy, ())),
        "progress": progress_of(figures.rewards.get(policy, ()), seconds),
    }


def lengths_of(fates: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean lengths of groups that were trained, and discarded before the end, and their ratio's 95 % interval.

    Args:
        fates: A policy's block of what `headrace discards` tells.
    """
    discarded = fates["before_end"]
    return {"trained": fates["trained"]["length"], "discarded": discarded["length"], "bias": discarded["bias"]}


def progress_of(points: Sequence[RewardPoint], seconds: Mapping[int, float]) -> list[list[float]]:
    """Return for every version [version, trajectories, seconds]: what it had taken until it was made.

    Trajectories are those of groups that workers finished before they knew the version, however many were trained on.
    """
    counts = {point.version: point.trajectories for point in points}
    before, found, done = 0, [], -1
    for version, at_s in sorted(seconds.items()):
        before += sum(counts.get(head, 0) for head in range(done, version))
        found.append([version, before, round(at_s, 2)])
        done = version
    return found


def eval_ends(evals: Sequence[EvalResult]) -> tuple[float | None, float | None]:
    """Return avg@k of the first and the last version that was evaluated, means over workflows; of one only the last."""
    means = [fmean(one.avg_at_k for one in evals if one.version == at) for at in sorted({e.version for e in evals})]
    return (means[0] if len(means) > 1 else None), (means[-1] if means else None)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of what was measured; None for nothing."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def log_share_of(figures: RunFigures, pulse: Pulse) -> float:
    """Return the log's share in what workers' and trainers' loops did, waiting apart."""
    total: dict[str, float] = {}
    parts: list[Mapping[str, float]] = [worker.seconds for worker in figures.workers]
    parts += [
        {
            key.removeprefix(SECONDS_PREFIX): value
            for key, value in one.metrics.items()
            if key.startswith(SECONDS_PREFIX)
        }
        for one in pulse.policies.values()
    ]
    for part in parts:
        for activity, seconds in part.items():
            total[activity] = total.get(activity, 0.0) + seconds
    return log_share(total)


def log_cpu_share(cpu: Mapping[str, Mapping[str, float]]) -> float:
    """Return the CPU seconds of broker, feeder, curators and librdkafka's threads over all CPU seconds."""
    everything = sum(used["process"] for used in cpu.values())
    logs = sum(used["process" if name.startswith(LOG_PROCESSES) else "librdkafka"] for name, used in cpu.items())
    return logs / everything if everything else 0.0
