"""What can go wrong, each as the steps by which it can happen in a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.ops.audit.bounds import MOST_AHEAD
from headrace.producers.rollout.group_records import build_outgoing, encode_group
from protocol.broker import STAGE, Broker, Entry, Harm
from protocol.frozen import thaw
from protocol.processes import FeederProcess, Looped, Process, TrainerProcess
from protocol.promises import DOUBLED, LOST, facts_of
from protocol.run import POLICY, TOPICS, played
from protocol.worker import WorkerProcess
from protocol.world import Part, State, Step, World

ALONE: dict[str, Callable[[str], Process]] = {"F": FeederProcess, "T": TrainerProcess}
"""Processes of which there is one: when it sleeps, another replaces it."""
NAMED_WITHIN = MOST_AHEAD + 4
"""Versions after which an audit has seen that a group is gone: so many are cut before it is sure that none has it."""
Change = Callable[[Broker], object]


def crash(world: World, state: State) -> Iterator[Step]:
    """A process is killed, between two turns."""
    for part in _up(state):
        yield from _done(world, state, part, f"{part.name} is killed", lambda process: process.end())


def crash_in_a_transaction(world: World, state: State) -> Iterator[Step]:
    """A process is killed when all of its turn is produced and nothing is committed."""

    def cut(process: Process) -> None:
        assert isinstance(process, Looped)
        process.cut()
        process.end()

    for part in _looped(state):
        yield from _done(world, state, part, f"{part.name} is killed in its transaction", cut)


def sleep(world: World, state: State) -> Iterator[Step]:
    """A process is suspended between two turns, for so long that others take over what it has."""
    for part in _up(state):
        yield from _asleep(world, state, part, f"{part.name} falls asleep", lambda _process: None)


def fall_behind(world: World, state: State) -> Iterator[Step]:
    """A worker's thread that follows the run hangs, and the worker dies as soon as its next record is on the log."""

    def hang(process: Process) -> None:
        assert isinstance(process, WorkerProcess)
        process.hangs = True

    for part in _up(state):
        if part.name[0] == "W":
            what = f"{part.name} reads no news, and is to die with its next record"
            yield from _done(world, state, replace(part, is_missed=True), what, hang)


def pause_the_curators(world: World, state: State) -> Iterator[Step]:
    """All curators are suspended, and nobody takes over what they have."""
    parts = [part for part in _up(state) if part.name[0] == "C"]
    if len(parts) == 2:
        for part in parts:
            state = state.with_part(replace(part, is_asleep=True, is_missed=True))
        yield "the curators fall asleep", state


def sleep_in_a_transaction(world: World, state: State) -> Iterator[Step]:
    """A process is suspended when all of its turn is produced and nothing is committed."""

    def cut(process: Process) -> None:
        assert isinstance(process, Looped)
        process.cut()

    for part in _looped(state):
        yield from _asleep(world, state, part, f"{part.name} falls asleep in its transaction", cut)


def lose_an_object(world: World, state: State) -> Iterator[Step]:
    """The store loses weights."""
    for key in sorted(key for key in world.thaw(state).objects if key.startswith("weights")):
        yield f"the store loses {key[-16:]}", _changed(world, state, partial(_lose_object, key=key))


def freeze_the_store(world: World, state: State) -> Iterator[Step]:
    """The store answers nobody."""

    def freeze(broker: Broker) -> None:
        broker.is_store_frozen = True

    if not world.has_frozen_store(state):
        yield "the store freezes", _changed(world, state, freeze)


def lose_a_tail(world: World, state: State) -> Iterator[Step]:
    """A partition of the curated topic loses its newest record, which is trained, as by an unclean election."""
    broker = world.thaw(state)
    trained = {number for _, number, _ in facts_of(broker).trained}
    for partition_id in ((TOPICS.curated(POLICY), partition) for partition in (0, 1)):
        entries = broker.log[partition_id]
        if entries and not entries[-1].transaction and _number(entries[-1]) in trained:
            yield (
                f"{partition_id[0]}[{partition_id[1]}] loses its newest record",
                _changed(world, state, partial(_lose_newest, partition_id=partition_id)),
            )


def _lose_object(broker: Broker, key: str) -> None:
    del broker.objects[key]


def _lose_newest(broker: Broker, partition_id: PartitionId) -> None:
    broker.log[partition_id].pop()
    broker.harm = Harm("gone with the tail")


def _number(entry: Entry) -> int:
    return int(entry.message.key.rpartition(b":")[2])


def forge_versions(world: World, state: State) -> Iterator[Step]:
    """A worker that is wrong writes groups of all open numbers, sound but for their versions, which are 900 ahead."""
    numbers = sorted(facts_of(world.thaw(state)).open)

    def forge(broker: Broker) -> None:
        for number in numbers:
            broker.append(
                build_outgoing(TOPICS, *encode_group(played(number=number, version=900, head=900)), broker.partitions)
            )

    if numbers:
        yield f"groups of version 900 are written for {numbers}", _changed(world, state, forge)


def forget_a_group(world: World, state: State) -> Iterator[Step]:
    """The trainer forgets a group that waits in its window, and tells nobody."""
    newest = len(facts_of(world.thaw(state)).versions)

    def forget(process: Process) -> None:
        assert isinstance(process, TrainerProcess)
        window = process.body.scheduler.window
        entry = window._entries.pop(0)
        window._forget([entry])
        STAGE.broker.harm = Harm(LOST, entry.use_id.number, "neither trained nor evicted", newest + NAMED_WITHIN)

    for part in _up(state):
        if part.name == "T" and len(thaw(part.frozen.data).body.scheduler.window):
            yield from _done(world, state, part, "the trainer forgets a group", forget)


def double_a_curated_record(world: World, state: State) -> Iterator[Step]:
    """Somebody writes a curated record once more."""
    for partition_id in ((TOPICS.curated(POLICY), partition) for partition in (0, 1)):
        entries = [
            entry for entry in world.thaw(state).log[partition_id] if not (entry.transaction or entry.is_aborted)
        ]
        if entries:
            what = f"the record {partition_id[0]}[{partition_id[1]}]@{entries[-1].message.offset} is written again"
            yield what, _changed(world, state, partial(_double, entry=entries[-1]))


def _double(broker: Broker, entry: Entry) -> None:
    message = entry.message
    broker.append(Outgoing(message.topic, message.value, message.key, message.headers, message.partition))
    broker.harm = Harm(DOUBLED, _number(entry), "more than one curated record")


# ---------------------------------------------------------------------------------------------------------- their parts


def _up(state: State) -> list[Part]:
    return [part for part in state.parts if not part.is_asleep and part.actions not in ((), ("start",))]


def _looped(state: State) -> list[Part]:
    return [part for part in _up(state) if part.name[0] in "FTC"]


def _done(world: World, state: State, part: Part, what: str, act: Callable[[Process], object]) -> Iterator[Step]:
    found = world.apply(state, part, act)
    if found is not None:
        yield what, world.after(state, found)


def _asleep(world: World, state: State, part: Part, what: str, act: Callable[[Process], object]) -> Iterator[Step]:
    def fall_asleep(process: Process) -> None:
        act(process)
        process.is_last = process.name in ALONE
        process.expel()
        if process.is_last:
            process.name += "'"

    found = world.apply(state, part, fall_asleep)
    if found is None:
        return
    broker, sleeper = found
    after = replace(state.without(part.name), broker=broker).with_part(replace(sleeper, is_asleep=True))
    if part.name in ALONE:
        after = after.with_part(world.part(ALONE[part.name](part.name)))
    yield what, after


def _changed(world: World, state: State, change: Change) -> State:
    broker = world.thaw(state)
    change(broker)
    return replace(state, broker=world.freeze(broker))
