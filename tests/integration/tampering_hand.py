"""What a tamperer does to a recorded run: remove, repeat, reorder, alter, forge, cut, exchange objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from recorded_run import Recorded

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, outcome_stamp
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    ClaimCheck,
    CuratedGroup,
    DeadLetter,
    GroupUse,
    Outcome,
    RecipeRevision,
    Snapshot,
    TrajectoryGroup,
    WeightsPublished,
)

T = TypeVar("T")


def with_recipe(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    recipe = json.loads(text)
    change(recipe)
    return json.dumps(recipe)


class Hand:
    """One tampering with a copy of a recorded run of one workflow, `sums`: with the records of one policy or shadow."""

    def __init__(self, recorded: Recorded, policy: str = "solver") -> None:
        self.run = recorded.copy()
        self.policy = policy
        self.topics = recorded.run.topics
        self.run_id = recorded.run.run_id
        self.partitions = recorded.run.recipe.kafka.partitions
        t = self.topics
        self.recipe, self.tasks, self.trajectories = t.recipe, t.tasks("sums"), t.trajectories(policy)
        self.curated, self.outcomes, self.batches = t.curated(policy), t.outcomes(policy), t.batches(policy)
        self.weights, self.evals, self.state = t.weights(policy), t.evals(policy), t.state
        self.eval_tasks, self.eval_groups = t.tasks("eval.sums"), t.eval_groups(policy)

    def of(self, policy: str) -> Hand:
        """The same copy, and the records of another policy or shadow."""
        made = Hand(self.run, policy)
        made.run = self.run
        return made

    # ---------------------------------------------------------------------------------------------------- what is there

    def all(self, topic: str) -> list[Message]:
        return list(self.run.of(topic))

    def decoded(self, topic: str, kind: type[T]) -> list[tuple[Message, T]]:
        return [(message, codec.decode(message.value, kind)) for message in self.all(topic)]

    @cached_property
    def versions(self) -> dict[int, tuple[Message, BatchTrained]]:
        """Version to its batch."""
        return {
            batch.version: (m, batch) for m, batch in self.decoded(self.batches, BatchTrained) if batch.version >= 0
        }

    @cached_property
    def middle(self) -> int:
        """A version in the middle."""
        return sorted(self.versions)[len(self.versions) // 2]

    def batch(self, version: int | None = None) -> tuple[Message, BatchTrained]:
        return self.versions[self.middle if version is None else version]

    @cached_property
    def trained(self) -> list[GroupUse]:
        """The groups of the middle version."""
        return list(self.batch()[1].groups)

    def concluded(self, verdict: str, component: str = "curate") -> list[int]:
        """The numbers that got a verdict, oldest first."""
        found = [one for _, one in self.decoded(self.outcomes, Outcome)]
        return sorted(o.number for o in found if (o.verdict, o.component, o.use) == (verdict, component, 0))

    @cached_property
    def dropped(self) -> int:
        """A number that the curator dropped, in the middle."""
        found = self.concluded("dropped")
        return found[len(found) // 2]

    @cached_property
    def evicted(self) -> tuple[Message, BatchTrained, GroupUse]:
        """A record that names an eviction, and which."""
        for message, batch in self.decoded(self.batches, BatchTrained):
            for eviction in batch.evictions:
                if eviction.group is not None:
                    return message, batch, eviction.group
        raise AssertionError("nothing was evicted")

    def about(self, topic: str, number: int) -> list[Message]:
        """The records of a topic that name a number in their headers."""
        return [message for message in self.all(topic) if int(dict(message.headers)["number"]) == number]

    def outcome(self, number: int, component: str = "curate") -> tuple[Message, Outcome]:
        for message in self.about(self.outcomes, number):
            outcome = codec.decode(message.value, Outcome)
            if outcome.component == component and outcome.level == "group":
                return message, outcome
        raise AssertionError(number)

    def delivery(self) -> Message:
        """What a worker delivered of the first group of the middle version."""
        return self.about(self.trajectories, self.trained[0].number)[0]

    def curated_record(self) -> tuple[Message, CuratedGroup]:
        """The curated record of the same group's first use."""
        message = self.about(self.curated, self.trained[0].number)[0]
        return message, codec.decode(message.value, CuratedGroup)

    def beside(self, message: Message) -> Message:
        """The record before one in its partition; of the first, the one after it."""
        found = self.run.messages[message.topic, message.partition]
        at = found.index(message)
        return found[at - 1 if at else 1]

    def event(self, version: int) -> tuple[Message, WeightsPublished]:
        return next((m, e) for m, e in self.decoded(self.weights, WeightsPublished) if e.version == version)

    def pointer(self, version: int) -> tuple[Message, CheckpointPointer]:
        found = [m for m in self.all(self.state) if m.key == f"checkpoint|{self.policy}|{version}".encode()]
        return found[-1], codec.decode(found[-1].value, CheckpointPointer)

    def newest(self, key: bytes) -> tuple[Message, Snapshot]:
        found = [m for m in self.all(self.state) if m.key.startswith(key)]
        return found[-1], codec.decode(found[-1].value, Snapshot)

    def revision(self) -> tuple[Message, RecipeRevision]:
        message = self.all(self.recipe)[0]
        return message, codec.decode(message.value, RecipeRevision)

    @property
    def end(self) -> int:
        """The next number."""
        return int(json.loads(self.newest(b"feed")[1].body)["next"]["sums"])

    # ----------------------------------------------------------------------------------------------------- what is done

    def remove(self, *messages: Message) -> None:
        for message in messages:
            self.run.messages[message.topic, message.partition].remove(message)
            if message in self.run.first:
                self.run.first.remove(message)

    def put(self, message: Message, record: Any = None, **more: Any) -> Message:
        """Put another record where one stands."""
        made = _made(message, record, more)
        for messages in (self.run.messages[message.topic, message.partition], self.run.first):
            if message in messages:
                messages[messages.index(message)] = made
        return made

    def append(self, message: Message, record: Any = None, **more: Any) -> Message:
        """Append a record like another one to a partition, that of the other one if none is given."""
        made = _made(message, record, more)
        messages = self.run.messages[made.topic, made.partition]
        made = replace(made, offset=messages[-1].offset + 1 if messages else 0)
        messages.append(made)
        if made.topic == self.state and self.run.first:
            self.run.first.append(made)
        return made

    def exchange(self, one: Message, other: Message, *, values: bool = False) -> None:
        """Put two records of a partition where the other stands; or their values alone."""
        if values:
            self.put(one, value=other.value), self.put(other, value=one.value)
            return
        self.put(one, topic=other.topic, key=other.key, value=other.value, headers=other.headers)
        self.put(other, topic=one.topic, key=one.key, value=one.value, headers=one.headers)

    def cut_tail(self, topic: str, count: int) -> None:
        """Lose the newest records of every partition."""
        for (name, _), found in self.run.messages.items():
            if name == topic:
                del found[max(len(found) - count, 0) :]
        for asked in self.run.asked:
            for group, told in asked.items():
                if group.topic == topic:
                    ends = {partition_id: self._end(partition_id) for partition_id in told.end}
                    asked[group] = replace(told, end=ends)

    def _end(self, partition_id: tuple[str, int]) -> int:
        found = self.run.messages[partition_id]
        return found[-1].offset + 1 if found else 0

    def cut_head(self, topic: str, count: int) -> None:
        """Lose the oldest records of every partition."""
        for partition_id, found in self.run.messages.items():
            if partition_id[0] == topic and len(found) > count:
                del found[:count]
                self.run.begins[partition_id] = found[0].offset
        for asked in self.run.asked:
            for group, told in asked.items():
                if group.topic == topic:
                    begin = {
                        partition_id: self.run.begins.get(partition_id, first)
                        for partition_id, first in told.begin.items()
                    }
                    asked[group] = replace(told, begin=begin)

    def commit(self, group: str, change: Callable[[int], int], topic: str = "", metadata: str | None = None) -> None:
        """Move what a consumer group has committed, in all answers."""
        for asked in self.run.asked:
            for one, told in asked.items():
                if one.name == group and one.topic == (topic or one.topic):
                    moved = {
                        partition_id: replace(
                            c,
                            offset=max(change(c.offset), 0),
                            metadata=c.metadata if metadata is None else metadata,
                        )
                        for partition_id, c in told.commits.items()
                    }
                    asked[one] = replace(told, commits=moved)

    # ----------------------------------------------------------------------------------------------- consistent changes

    def renumber(self, message: Message, **fields: Any) -> list[tuple[str, bytes]]:
        """The headers of a message with some of them changed."""
        return replace(Stamp.from_headers(message.headers), **fields).to_headers()

    def forge_outcome(self, number: int, **fields: Any) -> Message:
        """Append an outcome of a number, like that of the dropped one."""
        like, outcome = self.outcome(self.dropped)
        made = replace(outcome, number=number, **fields)
        stamp = outcome_stamp(made)
        return self.append(like, made, key=stamp.key, headers=stamp.to_headers(), partition=number % self.partitions)

    def forge_letter(self, about: Message, number: int, **fields: Any) -> None:
        """Append a dead letter of the first policy about a record."""
        source = {"topic": about.topic, "partition": about.partition, "offset": about.offset, "value": about.value}
        told = {"policy": "solver", "stream": "sums", "number": number, "reason": "undecodable"}
        letter = DeadLetter(**{"run_id": self.run_id, "component": "curate", **source, **told, **fields})
        self.run.messages.setdefault((self.topics.dead_letters, 0), [])
        self.append(about, letter, topic=self.topics.dead_letters, partition=0)

    def bury(self, number: int, **fields: Any) -> Message:
        """Let a dropped group be undecodable, with a dead letter instead of its outcome; return the dead letter."""
        [message] = self.about(self.trajectories, number)
        unreadable = self.put(message, value=bytes(40))
        self.remove(self.outcome(number)[0])
        self.forge_letter(unreadable, number, **{"key": message.key, "headers": dict(message.headers), **fields})
        return self.all(self.topics.dead_letters)[-1]

    def change_group(self, number: int, change: Callable[[TrajectoryGroup], TrajectoryGroup], **headers: Any) -> None:
        """Change a group in its trajectories and inside its curated record."""
        for message in self.about(self.trajectories, number):
            group = change(codec.decode(message.value, TrajectoryGroup))
            self.put(message, group, headers=self.renumber(message, **headers))
        for message in self.about(self.curated, number):
            curated = codec.decode(message.value, CuratedGroup)
            group = change(codec.decode(curated.group, TrajectoryGroup))
            self.put(message, replace(curated, group=codec.encode(group)), headers=self.renumber(message, **headers))

    def change_recipes(self, change: Callable[[dict[str, Any]], object], only: int | None = None) -> None:
        """Change the recipe of every revision, or of one."""
        for message, revision in self.decoded(self.recipe, RecipeRevision):
            if only in (None, revision.revision):
                self.put(message, replace(revision, recipe=with_recipe(revision.recipe, change)))

    def change_body(self, key: bytes, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the JSON of a component's newest snapshot; of a run that goes on, of both that were read."""
        for found in (self.all(self.state), self.run.first):
            message = next((m for m in reversed(found) if m.key.startswith(key)), None)
            if message is not None:
                snapshot = codec.decode(message.value, Snapshot)
                body = json.loads(snapshot.body)
                change(body)
                self.put(message, replace(snapshot, body=json.dumps(body).encode()))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.run.topics.discard(topic)
        for (name, _), found in self.run.messages.items():
            if name == topic:
                found.clear()

    def spoil(self, claim: ClaimCheck | None) -> None:
        """Change a byte of an object."""
        assert claim is not None
        data = bytearray(self.run.objects[claim.key])
        data[len(data) // 2] ^= 1
        self.run.objects[claim.key] = bytes(data)

    def exchange_objects(self, one: ClaimCheck | None, other: ClaimCheck | None) -> None:
        assert one is not None
        assert other is not None
        objects = self.run.objects
        objects[one.key], objects[other.key] = objects[other.key], objects[one.key]

    def lose(self, claim: ClaimCheck | None) -> None:
        assert claim is not None
        del self.run.objects[claim.key]


def _made(like: Message, record: Any, more: dict[str, Any]) -> Message:
    return replace(like, **more) if record is None else replace(like, value=codec.encode(record), **more)
