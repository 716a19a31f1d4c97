"""How many workers a pool gets: the rule, how it settles when the load changes, what is written and who acts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_ledger import MadeLedger
from made_recipes import sums_recipe

from headrace.app.cli import main as cli
from headrace.app.views.tables import describe_scaling
from headrace.infra.embedded.data_folder import UP, DataFolder, RunNotes
from headrace.infra.embedded.scale_files import AskedCount, ask_for
from headrace.infra.errors import UsageError
from headrace.infra.process.signals import MustRestart
from headrace.ledger import follow as follow_module
from headrace.ops.autoscale.autoscaler import Autoscaler, AutoscaleRequest, find_limits, follow
from headrace.ops.autoscale.evidence import list_moves, list_steps, look_at_pool
from headrace.ops.autoscale.pool import SETTLE_S, PoolWatch, Seen
from headrace.ops.autoscale.rule import (
    LOOK_BACK,
    URGENT_AFTER,
    Choice,
    Demand,
    Move,
    Step,
    choose_count,
    compute_count,
    find_mistakes,
)
from headrace.ops.autoscale.scalers import LocalScaler, ScalerAway, ScalerRefused
from headrace.ops.figures.workers import list_scaling
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    GroupUse,
    Outcome,
    RecipeRevision,
    ScalingDecision,
    WorkerStatus,
)

RECIPE = sums_recipe()
POOL = "rollout-sums"


def demand(wait_share: float, consumed: int = 0, entered: int = 0, busy: float = 1.0) -> Demand:
    return Demand("solver", 10, LOOK_BACK, wait_share, consumed, entered, busy)


def steps(wait_share: float, count: int = LOOK_BACK, first: int = 1) -> list[Step]:
    return [Step(first + at, wait_share, 1.0, 8, 8) for at in range(count)]


# ------------------------------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("count", "found", "wanted"),
    [
        (8, demand(0.2), 10),
        (11, demand(0.0, 900, 1200), 10),
        (8, demand(0.10), 8),
        (8, demand(0.05, 1, 100), 8),
        (9, demand(0.10 + 1e-9), 11),
        (4, demand(0.5), 8),
        (8, demand(0.0, 5, 0), 8),
        (2, demand(0.0, 1, 1000), 1),
        (8, demand(0.0, 80, 80, busy=0.25), 3),
        (8, demand(0.0, 80, 60), 8),
    ],
)
def test_a_starved_trainer_gets_workers_and_idle_ones_are_removed(count: int, found: Demand, wanted: int) -> None:
    assert compute_count(count, found) == wanted


def test_the_share_of_waiting_is_of_all_the_time_and_at_most_95_percent() -> None:
    assert Demand.of("solver", [Step(1, 1, 2, 4, 5), Step(2, 0, 8, 4, 5)]) == Demand("solver", 2, 2, 0.1, 8, 10, 1.0)
    assert Demand.of("solver", [Step(1, 10, 10, 1, 1)]).wait_share == 0.95
    assert Demand.of("solver", [Step(1, 0, 0, 1, 1)]).wait_share == 0


def choose(
    count: int, made: Mapping[str, Sequence[Step]], most: int = 8, mistakes: Sequence[int] = (), busy: float = 0.1
) -> Any:
    found = choose_count(count, made, dict.fromkeys(made, busy), (1, most), mistakes)
    return found and found.count


def test_a_long_wait_is_answered_after_three_versions_all_else_after_ten() -> None:
    assert choose(2, {"solver": steps(0.6, URGENT_AFTER)}) == 5
    assert choose(2, {"solver": steps(0.6, URGENT_AFTER - 1)}) is None
    assert choose(2, {"solver": steps(0.2, LOOK_BACK - 1)}) is None
    assert choose(2, {"solver": steps(0.2)}) == 3
    assert choose(4, {"solver": steps(0.0, LOOK_BACK - 1)}) is None
    assert choose(4, {"solver": steps(0.0)}) == 1
    assert choose(4, {"solver": [*steps(0.0), *steps(0.6, URGENT_AFTER, 11)]}, most=99) == 10, "by the newest alone"
    assert choose(4, {}) is None


def test_the_most_starved_trainer_decides() -> None:
    assert choose(4, {"solver": steps(0.0), "judge": steps(0.2)}) == 5
    assert choose(4, {"solver": steps(0.0), "judge": steps(0.07)}) is None
    assert choose(4, {"solver": steps(0.0), "judge": steps(0.0, 5)}) is None, "one of them is not known yet"
    assert choose(4, {"solver": steps(0.0, 2), "judge": steps(0.6, 3)}) == 8


def test_limits_hold_and_are_given_as_the_reason() -> None:
    found = choose_count(4, {"solver": steps(0.8)}, {"solver": 1.0}, (1, 8))
    assert found is not None
    waited = "the trainer of solver waited for groups for 80% of its time over versions 8 to 10"
    assert (found.count, found.reason) == (8, f"{waited}, so it needs 20 workers; at most 8")
    assert choose(8, {"solver": steps(0.8)}) is None
    assert choose(12, {"solver": steps(0.07)}) == 8, "a person's number beyond the limits, once it is judged"
    idle = choose_count(4, {"solver": steps(0.0)}, {"solver": 0.1}, (1, 8))
    assert idle is not None
    assert idle.reason.endswith("and 10% of the workers' room was in use, so 1 worker is enough")


def test_workers_whose_removal_was_a_mistake_are_not_removed_again() -> None:
    moves = [Move("solver", 100, 4, 2), Move("solver", 112, 2, 4)]
    assert find_mistakes(moves) == {2}
    assert find_mistakes([moves[0], Move("solver", 140, 2, 4)]) == set(), "the load has risen"
    assert find_mistakes([*moves, Move("solver", 130, 4, 3), Move("solver", 140, 3, 4)]) == {2, 3}
    assert find_mistakes([*moves, Move("solver", 230, 4, 1), Move("solver", 340, 1, 4)]) == set()
    idle = {"solver": steps(0.0)}
    assert choose(4, idle, mistakes=(2,), busy=0.4) == 3
    assert choose(3, idle, mistakes=(2,), busy=0.5) is None
    assert choose(4, idle, mistakes=(2, 3), busy=0.6) is None
    assert choose(4, idle, mistakes=(2, 3), busy=0.1) == 1, "far less is needed: the load has fallen"


# --------------------------------------------------------------------------------------------------- how it settles


class World:
    """Workers, a window of groups and a trainer, second by tenth of a second; a version takes 2 s, of 8 groups each."""

    STEP_S, BATCH, OPEN, START_S, TURN_S = 2.0, 8, 24, 4.0, 0.05

    def __init__(self, seed: int, workers: int, limits: tuple[int, int]) -> None:
        self.random, self.watch = random.Random(seed), PoolWatch(limits)  # noqa: S311 - a world that can be made again
        self.now = self.free_s = self.look_s = 0.0
        self.ready = [0.0] * workers
        self.ends: list[float | None] = [None] * workers
        self.window = self.entered = self.version = 0
        self.trains_until: float | None = None
        self.wait = 0.0
        self.steps: list[Step] = []
        self.moves: list[tuple[int, Choice]] = []

    def turn(self, needed: float) -> None:
        """Go on; `needed` is how many workers would just keep the trainer busy."""
        self.now += self.TURN_S
        for at, end in enumerate(self.ends):
            if end is not None and end <= self.now:
                self.ends[at], self.window, self.entered = None, self.window + 1, self.entered + 1
            open_groups = self.window + self.playing + (0 if self.trains_until is None else self.BATCH)
            if self.ends[at] is None and self.ready[at] <= self.now and open_groups < self.OPEN:
                latency = needed * self.STEP_S / self.BATCH
                self.ends[at] = self.now + latency * self.random.lognormvariate(0, 0.15)
        if self.trains_until is not None and self.now >= self.trains_until:
            self.trains_until, self.free_s, self.version = None, self.now, self.version + 1
            whole = self.wait + self.STEP_S
            self.steps.append(Step(self.version, self.wait, whole, self.BATCH, self.entered))
            self.entered = 0
        if self.now >= self.look_s:
            self.look_s = self.now + 1.0
            self.look()
        if self.trains_until is None and self.window >= self.BATCH:
            self.window, self.wait = self.window - self.BATCH, self.now - self.free_s
            self.trains_until = self.now + self.STEP_S

    @property
    def playing(self) -> int:
        return sum(end is not None for end in self.ends)

    def look(self) -> None:
        count = len(self.ends)
        began = sum(ready <= self.now for ready in self.ready)
        newest, share = {"solver": self.version}, self.playing / count
        found = self.watch.look(Seen(count, began, newest, {"solver": self.steps[-11:]}, share, self.now))
        if isinstance(found, Choice):
            self.moves.append((count, found))
            self.watch.note_decision(Move("solver", self.version, count, found.count))
            self.ready = (self.ready + [self.now + self.START_S] * found.count)[: found.count]
            self.ends = (self.ends + [None] * found.count)[: found.count]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loads", [(1.5, 6.5, 1.5), (3.0, 7.2, 0.6), (0.9, 4.5, 2.0), (2.7, 2.7)])
def test_after_each_change_of_load_it_settles_with_at_most_two_reversals(seed: int, loads: tuple[float, ...]) -> None:
    world = World(seed, 2, (1, 8))
    for needed in loads:
        before = len(world.moves)
        until = world.version + 100
        while world.version < until:
            world.turn(needed)
        new = world.moves[before:]
        signs = [found.count > count for count, found in new]
        assert sum(one != other for one, other in pairwise(signs)) <= 2, new
        assert needed * 0.95 <= len(world.ends) <= needed * 1.1 + 2, new
        assert sum(step.wait_s for step in world.steps[-20:]) < 0.1 * sum(step.whole_s for step in world.steps[-20:])


# ------------------------------------------------------------------------------------------------------ what is judged


def seen(count: int, version: int = 0, playing: int | None = None, wait: float = 0.6, now_s: float = 0.0) -> Seen:
    made = {"solver": steps(wait, min(version, 11), max(1, version - 10))}
    return Seen(count, count if playing is None else playing, {"solver": version}, made, 0.5, now_s)


def test_only_versions_that_were_made_with_the_present_number_count() -> None:
    watch = PoolWatch((1, 8))
    assert watch.look(seen(2, 20)) == "fewer than 3 versions were made with this number of workers"
    assert watch.look(seen(2, 23)) == "fewer than 3 versions were made with this number of workers", (
        "the first is left out"
    )
    found = watch.look(seen(2, 24))
    assert isinstance(found, Choice)
    assert found.count == 5
    watch.note_decision(Move("solver", 24, 2, 5))
    assert watch.look(seen(5, 24, playing=2)) == "2 of 5 workers play"
    assert watch.look(seen(5, 30, playing=5)) == "fewer than 3 versions were made with this number of workers"
    assert isinstance(watch.look(seen(5, 34)), Choice)
    assert isinstance(watch.look(seen(3, 34)), str), "a person has asked for another number"
    assert watch.look(seen(3, 38, wait=0.07)) == "3 of 10 versions were made with this number of workers"
    assert not watch.look(seen(3, 45, wait=0.07)), "it is right"


def test_a_number_that_is_never_reached_is_judged_after_a_while() -> None:
    watch = PoolWatch((1, 8))
    assert watch.look(seen(4, 1, playing=5, now_s=1.0)) == "5 of 4 workers play"
    assert watch.look(seen(4, 2, playing=5, now_s=1.0 + SETTLE_S)) == (
        "fewer than 3 versions were made with this number of workers"
    )


def test_the_wait_of_an_outage_adds_no_workers() -> None:
    watch = PoolWatch((1, 8))
    watch.look(seen(2, 20))
    assert "they are starting, or they or Kafka are away" in str(watch.look(seen(2, 23, playing=0)))
    assert watch.look(seen(2, 24)) == "fewer than 3 versions were made with this number of workers"
    assert watch.look(seen(2, 27)) == "fewer than 3 versions were made with this number of workers"
    assert isinstance(watch.look(seen(2, 28)), Choice)


def test_a_paused_pool_and_one_whose_trainers_are_done_are_left_alone() -> None:
    watch = PoolWatch((1, 8))
    assert "has 0 workers: `headrace scale rollout=N` starts some" in str(watch.look(seen(0, 20)))
    assert "has made its last version" in str(watch.look(Seen(2, 2, {}, {}, None, 0.0)))


# --------------------------------------------------------------------------------------------------------- the ledger


def train(ledger: MadeLedger, version: int, at_ms: int, groups: int = 2) -> None:
    uses = tuple(GroupUse("sums", version * 10 + number) for number in range(groups))
    uses += (GroupUse("sums", 0, use=1),)
    metrics = {"wait_s": 3.0, "held_up_s": 1.0, "step_s": 4.0, "blocked_s": 1.0}
    ledger.say(BatchTrained(version=version, groups=uses, metrics=metrics), at_ms)


def test_a_step_is_the_wait_for_groups_its_whole_time_and_the_fresh_groups_that_came_and_went() -> None:
    ledger = MadeLedger(RECIPE)
    assert list_steps(ledger, "solver") == []
    for version in range(1, 4):
        kept = {"component": "curate", "verdict": "kept", "stream": "sums"}
        ledger.say(Outcome(number=version, **cast("Any", kept)), version * 100 - 50)
        ledger.say(Outcome(number=version + 50, **cast("Any", kept)), version * 100)
        ledger.say(BatchTrained(version=-1), version * 100)
        train(ledger, version, version * 100)
    assert list_steps(ledger, "solver") == [Step(2, 2.0, 8.0, 2, 2), Step(3, 2.0, 8.0, 2, 2)]


def test_a_pool_is_seen_with_the_workers_that_play_and_the_policies_that_are_still_trained() -> None:
    workflow = {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}, "kind": "gpu"}
    recipe = sums_recipe(
        workflows={"sums": workflow}, kinds={"gpu": {"concurrency": 4}}, evaluate={"every": 1, "kind": "cpu"}
    )
    ledger, now_ms = MadeLedger(recipe), 100_000
    train(ledger, 1, 1)
    for name, state, region, at_ms in (
        ("a", "rolling", "", now_ms),
        ("b", "behind", "", now_ms),
        ("gone", "rolling", "", 0),
        ("far", "rolling", "west", now_ms),
        ("young", "starting", "", now_ms),
        ("evaluator", "rolling", "", now_ms),
    ):
        requests, kind = 2 if name == "a" else 0, "cpu" if name == "evaluator" else "gpu"
        status = WorkerStatus(
            "", name, "sums", region, kind=kind, state=state, requests_running=requests, updated_ms=at_ms
        )
        ledger.say(status, at_ms)
    found = look_at_pool(ledger, "sums", 3, now_ms, 1.0)
    assert (found.count, found.playing, found.newest) == (3, 2, {"solver": 1})
    assert found.busy_share == pytest.approx(2 / 4 / 2)
    train(ledger, recipe.trainer.steps, 2)
    assert look_at_pool(ledger, "sums", 3, now_ms, 1.0).newest == {}


def test_the_ledger_keeps_every_decision_and_shows_the_newest_of_each_pool() -> None:
    ledger = MadeLedger(RECIPE)
    for pool, before, after in ((POOL, 1, 4), ("rollout-other", 1, 2), (POOL, 4, 3)):
        ledger.say(
            ScalingDecision(pool=pool, before=before, after=after, reason="so it is", policy="solver", version=7)
        )
    assert [describe_scaling(one) for one in list_scaling(ledger)] == [
        "rollout-other: 1 → 2 workers: so it is",
        "rollout-sums: 4 → 3 workers: so it is",
    ]
    assert list_moves(ledger, "sums") == [Move("solver", 7, 1, 4), Move("solver", 7, 4, 3)]


def test_a_run_of_an_older_build_which_has_no_topic_of_decisions_is_read_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, read = {RECIPE.topics.scaling}, set[str]()
    reader = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(
        follow_module, "list_partitions", lambda _, topics: [(one, 0) for one in topics if one in there]
    )
    monkeypatch.setattr(follow_module, "find_start_positions", lambda _, topics: read.update(topics) or {})
    monkeypatch.setattr(follow_module, "TopicReader", lambda *_: reader)
    ledger = MadeLedger(RECIPE)
    follower = follow_module.Follower(cast("Any", None), ledger, ledger.topics, "test")
    assert read == set(ledger.topics)
    there.clear()
    read.clear()
    follower.begin_again()
    assert read == set(ledger.topics) - {RECIPE.topics.scaling}


# ------------------------------------------------------------------------------------------------------- what is done


class Heard:
    """A scaler and a writer that note what they are told, in order."""

    name = "heard"

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.count: int | Exception = 2

    def read_count(self, pool: str) -> int:
        assert pool == POOL
        if isinstance(self.count, Exception):
            raise self.count
        return self.count

    def set_count(self, pool: str, count: int) -> None:
        self.said.append((pool, count))

    def begin(self) -> None:
        self.said.append("begin")

    def produce(self, outgoing: Sequence[Any]) -> None:
        self.said += [(one.topic, one.key, codec.decode(one.value, ScalingDecision)) for one in outgoing]

    def commit(self) -> None:
        self.said.append("commit")


def make_autoscaler(heard: Heard, look: Callable[[Seen], Choice | str]) -> Autoscaler:
    watch = SimpleNamespace(look=look, note_decision=heard.said.append)
    run = SimpleNamespace(run_id="r", topics=RECIPE.topics)
    return Autoscaler(cast("Any", run), "sums", heard, cast("Any", heard), cast("Any", watch))


def test_a_decision_is_written_before_anything_acts_on_it() -> None:
    heard = Heard()
    autoscaler = make_autoscaler(heard, lambda _: Choice(5, "it waits", demand(0.6, 24, 20)))
    autoscaler.turn(MadeLedger(RECIPE), 0.0)
    begin, (topic, key, decision), commit, move, acted = heard.said
    assert (begin, topic, key, commit) == ("begin", RECIPE.topics.scaling, POOL.encode(), "commit")
    assert (move, acted) == (Move("solver", 10, 2, 5), (POOL, 5))
    assert (decision.run_id, decision.before, decision.after, decision.reason) == ("r", 2, 5, "it waits")
    assert (decision.wait_share, decision.consumed, decision.entered, decision.scaler) == (0.6, 24, 20, "heard")


def test_a_scaler_that_is_away_is_waited_for_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, said = Heard(), list[str]()
    log = SimpleNamespace(info=lambda event, **more: said.append(f"{event}: {more['why']}"))
    monkeypatch.setattr("headrace.ops.autoscale.autoscaler.log", log)
    autoscaler = make_autoscaler(heard, lambda _: "")
    heard.count = ScalerAway("no `headrace up` here")
    for _ in range(3):
        autoscaler.turn(MadeLedger(RECIPE), 0.0)
    heard.count = 2
    autoscaler.turn(MadeLedger(RECIPE), 0.0)
    assert (said, heard.said) == (["scaling.waiting: no `headrace up` here"], [])


def test_it_ends_with_the_run_and_begins_again_with_a_new_recipe() -> None:
    ledger, run = MadeLedger(RECIPE), SimpleNamespace(revision=0)
    topic = RECIPE.topics.recipe
    follower = cast("Any", SimpleNamespace(ledger=ledger, poll=lambda *_: None))

    def revise(**more: Any) -> None:
        record = RecipeRevision("r", recipe=RECIPE.to_json(), **more)
        ledger.add([ledger_message(topic, ledger, codec.encode(record))])

    revise(revision=0)
    turns = [0]

    class Turns:
        def turn(self, _ledger: object, _now: float) -> None:
            turns[0] += 1
            revise(revision=1) if turns[0] == 1 else None

    with pytest.raises(MustRestart, match="recipe revision 1"):
        follow(cast("Any", run), follower, [cast("Any", Turns())], 0.0, threading.Event())
    revise(revision=1, ended="steps")
    assert follow(cast("Any", run), follower, [], 0.0, threading.Event()) == "steps"


def ledger_message(topic: str, ledger: MadeLedger, value: bytes) -> Any:
    from headrace.infra.kafka.clients import Message

    return Message(topic, 0, ledger.positions.get((topic, 0), 0), b"", value)


def test_limits_that_cannot_be_are_refused() -> None:
    most = RECIPE.task_partitions
    assert find_limits(RECIPE, AutoscaleRequest()) == {"sums": (1, most)}
    for request, why in (
        (AutoscaleRequest(most=most + 1), f"each worker needs a partition, and there are {most}"),
        (AutoscaleRequest(least=most + 1), "cannot be: raise --max or lower --min"),
        (AutoscaleRequest(workflow="sum"), "the recipe has no workflow 'sum'; it has sums"),
    ):
        with pytest.raises(UsageError, match=why):
            find_limits(RECIPE, request)


def test_the_local_scaler_asks_the_running_up_by_its_folder_and_sees_what_a_person_asks(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.write(RunNotes("sums", "127.0.0.1:9", embedded_kafka=True, run_id="r"))
    scaler = LocalScaler(folder, "r", RECIPE)
    with pytest.raises(ScalerAway, match=r"no `headrace up` runs the run in .* now: start it"):
        scaler.read_count(POOL)
    with folder.hold(UP):
        assert scaler.read_count(POOL) == RECIPE.launch.workers
        scaler.set_count(POOL, 5)
        assert scaler.read_count(POOL) == 5
        ask_for(folder, POOL, AskedCount("r", 3, RECIPE.launch.workers))
        assert scaler.read_count(POOL) == 3
        (folder.scale / f"{POOL}.json").write_bytes(b"")
        with pytest.raises(ScalerRefused, match="give `headrace scale rollout=N`, which writes it anew"):
            scaler.read_count(POOL)


def test_the_command_line_refuses_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, code, why in (
        ((), 2, "no run in"),
        (("--data", str(tmp_path)), 2, "holds no run: begin one by `headrace up RECIPE`"),
        (("--data", str(tmp_path), "--run", "kafka://h:1/r"), 2, "give either --run"),
    ):
        with pytest.raises(SystemExit) as raised:
            cli.main(["autoscale", *words])
        assert (raised.value.code, why in " ".join(capsys.readouterr().err.split())) == (code, True), words
