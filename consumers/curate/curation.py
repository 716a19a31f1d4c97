"""What a curator does with one partition: dedupe, clock, chain. Logic without I/O of its own.

Every group gives exactly one outcome, and a kept one also a curated record, and so does every replay; bytes that
cannot be read give a dead letter, or in a shadow an outcome. Memory is a function of the partition's records in order,
so it can be rebuilt from them; what could not be read may be readable later, so nothing is rebuilt over that: a
snapshot follows it at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog

from headrace.consumers.algorithms.chain import Chain, load_chain
from headrace.consumers.algorithms.contract import Again, Candidate, Drop, Keep, Rejection, generated_lengths
from headrace.consumers.curate.chain_ends import ChainEnds
from headrace.consumers.curate.dedupe import Dedupe
from headrace.consumers.curate.uses import Uses
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.kafka.dead_letters import dead_letter, lost_to_shadow, was_sent_back
from headrace.infra.kafka.decoding import LARGEST_LEAP, LONGEST_NAME, MOST_EPISODES, Rejected, decode_record, stamp_own
from headrace.infra.kafka.topic_reader import Place
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.claimed_groups import with_trajectories
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, outcome_stamp
from headrace.schemas.records import ClaimCheck, CuratedGroup, Outcome, TrajectoryGroup
from headrace.schemas.topics import Topics, policy_of

log = structlog.get_logger()

LARGEST_MESSAGE = 7 << 20
"""A group that came inline in more bytes makes a curated record that the broker refuses."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a curator's partitions share, none of it state."""

    run_id: str
    line: str
    """A policy, or a shadow of it."""
    topics: Topics
    recipe_of: Callable[[int], Recipe]
    """Recipe by revision; raises UnknownRevision."""
    fetch: Callable[[ClaimCheck], bytes]

    @property
    def policy(self) -> str:
        """Whose trajectories."""
        return policy_of(self.line)

    @property
    def is_shadow(self) -> bool:
        """Whether another curator concludes the numbers that the feeder waits for."""
        return self.line != self.policy


class UnknownRevision(LookupError):
    """No such revision stands on the recipe topic."""


def chain_of(recipe: Recipe, line: str) -> Chain:
    """Return the chain of a policy or shadow; `max_staleness` takes the trainer's limit, what draws the recipe's seed.

    What the recipe's chain gives them itself comes first.
    """
    return load_chain(_uses_of(recipe, line), recipe.seed)


def _uses_of(recipe: Recipe, line: str) -> list[tuple[str, dict[str, Any]]]:
    limits = {"max_staleness": {"limit": recipe.trainer_of(line).max_staleness}}
    return [(use.use, {**limits.get(use.use, {}), **use.settings}) for use in recipe.chain_of(line)]


def first_of_chain(recipe_of: Callable[[int], Recipe], revision: int, line: str) -> int:
    """Return the first of the revisions up to this one, without a gap, that have its chain.

    They share one: what it remembers outlives a change elsewhere in the recipe. Raises UnknownRevision.
    """

    def built(number: int) -> tuple[Any, ...]:
        recipe = recipe_of(number)
        return recipe.seed, _uses_of(recipe, line)

    own = built(revision)
    with suppress(UnknownRevision):
        while revision > 0 and built(revision - 1) == own:
            revision -= 1
    return revision


def recipe_for(recipes: Mapping[int, Recipe], revision: int, line: str) -> Recipe:
    """Return the recipe of a revision, or where that lacks the shadow, of the first after it that has it.

    Raises UnknownRevision.
    """
    if revision not in recipes:
        raise UnknownRevision(f"recipe revision {revision} is not among the {len(recipes)} that are known")
    later = (recipes[known] for known in sorted(recipes) if known >= revision and line in recipes[known].lines)
    return next(later, recipes[revision])


class CuratorPartition:
    """One partition of trajectories: dedupe, clock and chains; a function of its records in order."""

    def __init__(self, desk: Desk, place: Place, partitions: int) -> None:
        self._desk = desk
        self._partition = place[1]
        self._dedupe = Dedupe(place[1], partitions)
        self._clock = -1
        self._uses = Uses(desk.run_id, desk.policy)
        self._chains: dict[int, Chain] = {}
        """By the first revision that has it."""
        self._firsts: dict[int, int] = {}
        self._ends = ChainEnds()
        self._flagged: Counter[str] = Counter()
        """By the chains that have ended."""
        self._limits: dict[int, int] = {}
        self.was_unread = False
        """Whether the message that was handled last could not be read."""

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Return the dead letter, or the outcome (and curated record), of one message; nothing for a repetition.

        A message that was sent back is none, where its number's conclusion was a dead letter; where that was forgotten
        it becomes another one. To a shadow, whose conclusion no letter was, it is a repetition.
        """
        self.was_unread = False
        try:
            stamp = self._stamp(message)
        except Rejected as rejected:
            # A misrouted number stays open: without its headers the dead letter concludes nothing.
            named = replace(message, headers=[]) if rejected.reason == "misrouted" else message
            return self._dead(named, rejected)
        stream, number = stamp.stream, stamp.number
        is_new, is_back = self._dedupe.conclude(stream, number), was_sent_back(message) and not self._desk.is_shadow
        if not is_new and not (is_back and self._dedupe.revive(stream, number)):
            if is_back and self._dedupe.forgot(stream):
                # The word that it was sent back opened its number, which this letter concludes again.
                detail = "more numbers of its stream are dead than are remembered: it may be a repetition"
                return self._dead(message, Rejected("forgotten", detail))
            log.debug("group.repeated", stream=stream, number=number, attempt=stamp.attempt)
            return []
        try:
            group = self._group(message.value, stamp)
        except Rejected as rejected:
            self._dedupe.bury(stream, number)
            return self._dead(message, rejected)
        self._clock = max(self._clock, group.head_version)
        outgoing = self._curate(group, message.value)
        self._end_chains(group)
        return outgoing

    def _stamp(self, message: Message) -> Stamp:
        stamp = stamp_own(message, self._desk.run_id)
        if stamp.policy != self._desk.policy:
            raise Rejected("misrouted", f"a group of policy {stamp.policy!r} is on the topic of {self._desk.policy}")
        if not self._dedupe.belongs(stamp.number):
            raise Rejected("misrouted", f"number {stamp.number} does not belong on partition {self._partition}")
        if not self._dedupe.has_room(stamp.stream, stamp.number):
            raise Rejected("misrouted", f"number {stamp.number} of {stamp.stream} is one gap too many")
        return stamp

    def _group(self, value: bytes, stamp: Stamp) -> TrajectoryGroup:
        if len(value) > LARGEST_MESSAGE:
            raise Rejected("unusable", f"a group of {len(value)} bytes inline: put it behind a claim check")
        group = with_trajectories(decode_record(value, TrajectoryGroup), self._desk.fetch)
        ours = (self._desk.run_id, stamp.stream, stamp.number, self._desk.policy, stamp.revision)
        if (group.run_id, group.stream, group.number, group.policy, group.revision) != ours:
            raise Rejected("undecodable", "the headers name another group, or revision, than the record")
        names = max(len(group.task_id), len(group.tier), len(group.reason))
        if names > LONGEST_NAME or len(group.trajectories) > MOST_EPISODES:
            raise Rejected("unusable", f"{len(group.trajectories)} trajectories, a name of {names} characters")
        if group.head_version > max(self._clock, 0) + LARGEST_LEAP:
            raise Rejected("time_travel", f"head_version {group.head_version} at clock {self._clock}")
        try:
            self._chain(group.revision)
        except UnknownRevision as error:
            raise Rejected("unknown_revision", str(error)) from error
        return group

    def _curate(self, group: TrajectoryGroup, value: bytes) -> list[Outgoing]:
        before = Candidate.of(group)
        first, chain = self._first(group.revision), self._chain(group.revision)
        results = chain.process(before, self._clock)
        outcome, outgoing = _outcome(self._desk.policy, before), []
        for result in results:
            if isinstance(result, Keep):
                outgoing.append(self._outcome_message(replace(outcome, verdict="kept")))
                rejected = result.candidate.rejected
                outgoing += [self._outcome_message(_rejection_outcome(outcome, group, one)) for one in rejected]
                outgoing.append(self._fresh(result.candidate, value))
            elif isinstance(result, Drop):
                outgoing.append(self._outcome_message(replace(outcome, verdict="dropped", reason=result.reason)))
            else:
                outgoing += self._replay(result, first)
        self._uses.forget(first, chain)
        return outgoing

    def _fresh(self, candidate: Candidate, value: bytes) -> Outgoing:
        """Return the curated record of a group that was kept."""
        group = candidate.group
        limit = self._staleness_limit(group.revision)
        curated = CuratedGroup(
            run_id=group.run_id,
            stream=group.stream,
            number=group.number,
            group=value,
            deadline_version=candidate.min_version + limit,
            min_version=candidate.min_version,
            revision=group.revision,
            kept=candidate.kept,
            rewards=candidate.rewards,
        )
        stamp = Stamp(
            run_id=group.run_id,
            stream=group.stream,
            number=group.number,
            attempt=group.attempt,
            revision=group.revision,
            policy=group.policy,
            min_version=candidate.min_version,
            max_version=candidate.max_version,
            head_version=group.head_version,
        )
        self._uses.add(stamp, self._first(group.revision) if self._chain(group.revision).replays else None)
        return self._curated_message(curated, stamp)

    def _replay(self, again: Again, first: int) -> list[Outgoing]:
        """Return outcome and curated record of a group that is to be trained on once more. Raises ChainError."""
        stamp, back = self._uses.again(again, first)
        curated = CuratedGroup(
            run_id=stamp.run_id,
            stream=stamp.stream,
            number=stamp.number,
            use=stamp.use,
            deadline_version=again.deadline_version,
            min_version=again.min_version,
            revision=stamp.revision,
            first_back=back,
            weight=again.weight,
        )
        return [self._outcome_message(_replay_outcome(stamp)), self._curated_message(curated, stamp)]

    def _curated_message(self, curated: CuratedGroup, stamp: Stamp) -> Outgoing:
        topic = self._desk.topics.curated(self._desk.line)
        return Outgoing(topic, codec.encode(curated), stamp.key, stamp.to_headers(), self._partition)

    def _outcome_message(self, outcome: Outcome) -> Outgoing:
        stamp = outcome_stamp(outcome)
        topic = self._desk.topics.outcomes(self._desk.line)
        return Outgoing(topic, codec.encode(outcome), stamp.key, stamp.to_headers(), self._partition)

    def _dead(self, message: Message, rejected: Rejected) -> list[Outgoing]:
        self.was_unread = True
        desk = self._desk
        if not desk.is_shadow:
            return [dead_letter(desk.topics, desk.run_id, f"curate.{desk.line}", message, rejected.why)]
        outcome = lost_to_shadow(desk.run_id, desk.line, message, rejected.why)
        return [self._outcome_message(replace(outcome, component="curate"))] if outcome is not None else []

    def _chain(self, revision: int) -> Chain:
        first = self._first(revision)
        if first not in self._chains:
            self._chains[first] = chain_of(self._desk.recipe_of(first), self._desk.line)
        return self._chains[first]

    def _first(self, revision: int) -> int:
        if revision not in self._firsts:
            self._firsts[revision] = first_of_chain(self._desk.recipe_of, revision, self._desk.line)
        return self._firsts[revision]

    def _end_chains(self, group: TrajectoryGroup) -> None:
        """Drop the chains through which no group can come any more, and what they remember."""
        self._ends.see(group.revision, group.stream, group.number)
        if len(self._ends.revisions) > 1:
            streams = self._desk.recipe_of(max(self._ends.revisions)).streams_of(self._desk.policy)
            over = {self._first(revision) for revision in self._ends.over(streams, self._dedupe.settled)}
            for first in sorted(over - {self._first(revision) for revision in self._ends.revisions}):
                self._uses.drop(first)
                self._flagged.update(self._chains.pop(first).flagged())
                log.info("chain.ended", revision=first, partition=self._partition)

    def _staleness_limit(self, revision: int) -> int:
        if revision not in self._limits:
            self._limits[revision] = self._desk.recipe_of(revision).trainer_of(self._desk.line).max_staleness
        return self._limits[revision]

    @property
    def flagged(self) -> Counter[str]:
        """Trajectories that `repetition` and `gibberish` flagged, by algorithm; those that only watch too."""
        counts = self._flagged.copy()
        for chain in self._chains.values():
            counts.update(chain.flagged())
        return counts

    def snapshot(self) -> bytes:
        """Return the state as JSON, without what is too old to be trained on again."""
        for chain in self._chains.values():
            chain.forget_stale(self._clock)
        state = {
            "dedupe": self._dedupe.snapshot(),
            "clock": self._clock,
            "uses": self._uses.snapshot(self._chains),
            "chains": {str(first): chain.snapshot() for first, chain in sorted(self._chains.items())},
            "ends": self._ends.snapshot(),
            "flagged": self._flagged,
        }
        return json.dumps(state, separators=(",", ":")).encode()

    def restore(self, body: bytes) -> None:
        """Take what `snapshot` returned."""
        state = json.loads(body)
        self._dedupe.restore(state["dedupe"])
        self._clock = state["clock"]
        self._uses.restore(state["uses"])
        for first, known in state["chains"].items():
            self._chain(int(first)).restore(known)
        self._ends.restore(state.get("ends", {}))
        self._flagged = Counter(state.get("flagged", {}))


def _outcome(policy: str, candidate: Candidate) -> Outcome:
    """Return what is true of a group whatever becomes of it."""
    group = candidate.group
    return Outcome(
        run_id=group.run_id,
        stream=group.stream,
        number=group.number,
        policy=policy,
        component="curate",
        revision=group.revision,
        task_id=group.task_id,
        tier=group.tier,
        rewards=tuple(trajectory.reward for trajectory in group.trajectories),
        lengths=generated_lengths(group),
        n_asked=group.n_asked,
        failures=len(group.failures),
        min_version=candidate.min_version,
        max_version=candidate.max_version,
        head_version=group.head_version,
    )


def _replay_outcome(stamp: Stamp) -> Outcome:
    """Return the outcome of one more use of a group; what is true of the group stands in that of its first."""
    return Outcome(
        run_id=stamp.run_id,
        stream=stamp.stream,
        number=stamp.number,
        use=stamp.use,
        policy=stamp.policy,
        verdict="kept",
        component="curate",
        revision=stamp.revision,
        min_version=stamp.min_version,
        max_version=stamp.max_version,
        head_version=stamp.head_version,
    )


def _rejection_outcome(outcome: Outcome, group: TrajectoryGroup, rejection: Rejection) -> Outcome:
    return replace(
        outcome,
        level="trajectory",
        trajectory_id=group.trajectories[rejection.index].id[:LONGEST_NAME],
        verdict="dropped",
        reason=rejection.reason,
        rewards=(outcome.rewards[rejection.index],),
        lengths=(outcome.lengths[rejection.index],),
    )
