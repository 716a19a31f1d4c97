"""The evaluator, `headrace evaluate`: folds evaluation groups into results. One per run, for all its policies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence

import structlog

from headrace.consumers.evaluate.evaluation import EvaluationFold, build_group_without_answers, read_lost_stamp
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import build_dead_letter
from headrace.infra.kafka.decoding import MOST_EPISODES, MessageRefused, decode_own
from headrace.infra.kafka.transactions import Ticket
from headrace.infra.process.signals import MustRestart
from headrace.infra.run.claimed_groups import fetch_trajectories
from headrace.infra.run.end_watch import EndWatch
from headrace.infra.run.own_positions import SNAPSHOT_EVERY_S, OwnPositions, Role, run_alone
from headrace.infra.run.run import RecipeNews, Run
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas import codec
from headrace.schemas.ids import describe_long_fields
from headrace.schemas.records import EvalResult, RecipeRevision, TrajectoryGroup
from headrace.schemas.topics import EVALUATOR

log = structlog.get_logger()

EVALUATOR_TURN_S = 0.2
NOW_THAT_IT_IS_OVER = "evaluations that still run get their results; stop this process when no evaluation runs"


class Evaluator:
    """Implements the run loop's `Component`.

    Args:
        run: The run.
        own: The evaluator's positions.
        look_for_end: Called every turn, to log the end of the run.
        look_for_news: Returns the recipe revisions that were written since the run was joined or since its last call.
    """

    def __init__(
        self,
        run: Run,
        own: OwnPositions,
        look_for_end: Callable[[], None] = lambda: None,
        look_for_news: Callable[[], Iterable[RecipeRevision]] = tuple,
    ) -> None:
        self.run, self.own, self._look_for_end, self._look_for_news = run, own, look_for_end, look_for_news
        problems = [recipe.evaluate.problems for recipe in run.revisions]
        self.fold = EvaluationFold(run.run_id, problems[-1], problems)
        if own.restored is not None:
            self.fold.restore(json.loads(own.restored))
        self._policies = {run.topics.eval_groups(policy): policy for policy in run.recipe.policies}
        self._changed = False
        self._snapshot_due = 0.0

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return the next groups."""
        return self.own.poll(watch, EVALUATOR_TURN_S)

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Fold a group; return the result that it completes, or the dead letter of an unreadable group."""
        self._changed = True
        policy = self._policies[message.topic]
        try:
            group = self._read_group(message.value, policy)
        except MessageRefused as refused:
            stamp = read_lost_stamp(message.headers, self.run.run_id) if refused.reason != "other_run" else None
            if stamp is not None:
                self._check_for_newer_recipe(stamp.revision)
            lost = build_group_without_answers(stamp, policy, self.run.revisions) if stamp is not None else None
            concluded = self.fold.fold_group(lost) if lost is not None else None
            return [self._build_dead_letter(message, refused), *self._build_messages(concluded)]
        self._check_for_newer_recipe(group.revision)
        return self._build_messages(self.fold.fold_group(group))

    def _check_for_newer_recipe(self, revision: int) -> None:
        """Raise MustRestart if the run has a later recipe than this evaluator, and the group may be of that one.

        The later recipe may ask another number of problems. Raises KafkaAway.
        """
        if revision <= self.run.revision:
            return
        for new in self._look_for_news():
            if new.run_id == self.run.run_id and new.revision > self.run.revision:
                raise MustRestart(f"recipe revision {new.revision} was written: the evaluator starts again")

    def _read_group(self, value: bytes, policy: str) -> TrajectoryGroup:
        """Return the group of a message, with its trajectories. Raises MessageRefused."""

        def describe(group: TrajectoryGroup) -> str:
            found = f"the group is of run id {group.run_id!r} and policy {group.policy!r}"
            return f"{found}; expected {self.run.run_id!r} and {policy!r}"

        group = decode_own(value, TrajectoryGroup, self.run.run_id, describe)
        if group.policy != policy:
            raise MessageRefused("other_run", describe(group))
        group = fetch_trajectories(group, self.run.get_group)
        if not 0 <= group.n_asked <= MOST_EPISODES or len(group.trajectories) > MOST_EPISODES:
            raise MessageRefused(
                "undecodable",
                f"n_asked and the number of trajectories must be from 0 to {MOST_EPISODES}; got n_asked = "
                f"{group.n_asked} and {len(group.trajectories)} trajectories",
            )
        if wrong := describe_long_fields(group, ("stream", "task_id", "tier", "reason")):
            raise MessageRefused("unusable", f"the group has texts that are too long: {'; '.join(wrong)}")
        return group

    def _build_messages(self, result: EvalResult | None) -> list[Outgoing]:
        """Return the message of a result, or nothing for None."""
        if result is None:
            return []
        # All held-out problems of a version are answered.
        log.info(
            "evaluation.concluded",
            policy=result.policy,
            workflow=result.workflow,
            version=result.version,
            avg_at_k=round(result.avg_at_k, 4) if result.has_reward else None,
            failures=result.failures,
        )
        key = f"{result.workflow}|{result.version}".encode()
        return [Outgoing(self.run.topics.evals(result.policy), codec.encode(result), key, partition=0)]

    def _build_dead_letter(self, message: Message, refused: MessageRefused) -> Outgoing:
        return build_dead_letter(self.run.topics, self.run.run_id, EVALUATOR, message, refused.refusal)

    def tick(self) -> Iterable[Outgoing]:
        """Look for the end of the run; results come from groups."""
        self._look_for_end()
        return ()

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:  # noqa: ARG002 - not in the snapshot
        """Return the snapshot, if this turn has results or a snapshot is due."""
        self._changed = False
        self._snapshot_due = time.monotonic() + SNAPSHOT_EVERY_S
        return self.own.snapshot(json.dumps(self.fold.snapshot()).encode())

    def offsets(self, before: Sequence[Ticket]) -> None:
        """Return None: positions are in the snapshot."""

    @property
    def is_commit_due(self) -> bool:
        """Return whether a snapshot, with the positions, is due."""
        return self._changed and time.monotonic() >= self._snapshot_due

    def rewind(self) -> None:
        """Raise MustRestart."""
        self.own.rewind()

    def close(self) -> None:
        """Close the consumer."""
        self.own.close()


def open_evaluator(run: Run) -> Evaluator:
    """Build the evaluator of a run from its committed state, after its transactional id was taken over."""
    topics = tuple(run.topics.eval_groups(policy) for policy in run.recipe.policies)
    role = Role(run.connection, EVALUATOR, run.run_id, run.state_partition_id(EVALUATOR), topics)
    news = RecipeNews(run.address, run.recipe_end)
    return Evaluator(run, OwnPositions(role), EndWatch(run, NOW_THAT_IT_IS_OVER).look, news.look)


def main(run: str) -> None:
    """Run the evaluator of `kafka://host:port/run` until a signal."""
    run_alone(EVALUATOR, run, lambda joined, _writer: open_evaluator(joined))
