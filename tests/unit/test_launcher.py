"""Which processes `headrace up` starts, and what it refuses before it starts any."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from rich.console import Console

from headrace.app.launcher import launcher, watch
from headrace.app.launcher.beginning import RunOfAnother
from headrace.app.launcher.components import list_components
from headrace.app.launcher.drained import (
    EVALUATION_DRAIN_S,
    GROUPS_DRAIN_S,
    STARTS_WITHIN_S,
    Drain,
    RunPage,
    compute_groups_drain_s,
)
from headrace.app.launcher.launcher import UpRequest
from headrace.app.views import live
from headrace.infra.embedded.data_folder import DataFolder, RunNotes
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.process.child_life import ChildState, GaveUp
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Rollout
from headrace.infra.recipe.table import Named
from headrace.infra.run.run import Run
from headrace.infra.run.up_lease import Holder
from headrace.ops.figures.summary import AUDIT_OPEN, NO_VERDICT, AuditVerdict
from headrace.ops.preflight.table import check_names

CLOSES = AuditVerdict(ok=True, lost=0, doubled=0)
ADDRESS = "kafka://127.0.0.1:9092/demo"


def commands(name: str, *sets: str) -> dict[str, list[str]]:
    """Component to its words after `headrace`."""
    children = list_components(load_recipe(name, sets), ADDRESS, Path("logs"))
    return {child.name: list(child.command[child.command.index("headrace") + 1 : -2]) for child in children}


def test_a_shadow_adds_a_curator_and_a_trainer_to_what_is_started_without_it() -> None:
    beside = commands("arithmetic-shadow", "launch.curators=2")
    alone = {name: words for name, words in beside.items() if "unfiltered" not in name}

    assert alone == commands("arithmetic", "launch.curators=2")
    assert {name: words for name, words in beside.items() if name not in alone} == {
        "train-solver.unfiltered": ["train", "--policy", "solver", "--variant", "unfiltered"],
        "curate-solver.unfiltered-0": [
            "curate", "--policy", "solver", "--variant", "unfiltered", "--slot", "0",
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ('shadows.unfiltered.chain=["valdate"]', "valdate"),
        ("shadows.unfiltered.trainer.loss=ppoo", "ppoo"),
        ("shadows.unfiltered.trainer.advantage=gropo", "gropo"),
        ("shadows.unfiltered.trainer.tensor_parallel=2", "solver.unfiltered: trainer.tensor_parallel"),
    ],
)
def test_what_a_shadow_names_is_looked_for_before_anything_is_started(word: str, why: str) -> None:
    check_names(load_recipe("arithmetic-shadow"))
    with pytest.raises((UsageError, ValueError), match=why):
        check_names(load_recipe("arithmetic-shadow", [word]))


@pytest.mark.parametrize(
    ("sets", "forked"),
    [
        ((), {"feed", "curate", "evaluate", "train", "rollout"}),
        (("trainer.device=cuda",), {"feed", "curate", "evaluate", "rollout"}),
        (("rollout.device=cuda",), {"feed", "curate", "evaluate", "train"}),
        (("trainer.processes=2",), {"feed", "curate", "evaluate", "rollout"}),
    ],
)
def test_what_is_on_cuda_and_what_torchrun_starts_is_not_forked(sets: tuple[str, ...], forked: set[str]) -> None:
    children = list_components(load_recipe("arithmetic", sets), ADDRESS, Path("logs"))

    assert {child.name.partition("-")[0] for child in children if child.imports} == forked


@pytest.mark.parametrize("engine", ["torch", "scripted"])
def test_what_is_imported_for_forks_is_there_and_with_torch_only_where_that_plays(engine: str) -> None:
    recipe = load_recipe("arithmetic").model_copy(update={"rollout": Rollout(engine=Named(use=engine))})
    imports = {child.name: child.imports for child in list_components(recipe, ADDRESS, Path("logs"))}

    assert all(find_spec(name) is not None for names in imports.values() for name in names)
    assert any("torch_engine" in name for name in imports["rollout-sums-0"]) is (engine == "torch")


@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_an_error_stops_says_how_to_go_on_if_it_had_begun(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(launch: launcher.Launcher) -> int:
        if begun:
            monkeypatch.setattr(launch, "_run", object())
            monkeypatch.setattr(launch, "stop", lambda _: None)
        raise HeadraceError("curate-solver-0 ended 5 times within a minute")

    monkeypatch.setattr(launcher.Launcher, "run", fail)
    again = "headrace up '[/b].toml' --set 'workflows.sums.env.tiers=[\"sum1\"]'"
    request = UpRequest(load_recipe("arithmetic"), tmp_path / "run", again=again)
    told = io.StringIO()
    with pytest.raises(HeadraceError, match="5 times"):
        launcher.up(request, Console(file=told))
    assert (f"resume with:\n  {again}\n" in told.getvalue()) is begun


def test_up_holds_a_run_on_a_shared_cluster_until_it_ends_and_starts_nothing_before_it_may_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = list[object]()

    class Lease:
        def __init__(self, holder: Holder) -> None:
            self.holder = holder

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            order.append("it is free")

        def take(self, address: RunAddress) -> list[Holder]:
            order.append(str(address))
            return [self.holder]

    def begin_or_join(*_: object, hold: Callable[[RunAddress], list[Holder]], **__: object) -> Run:
        order.extend(one.folder for one in hold(RunAddress(Connection("k:1"), "demo")))
        raise RunOfAnother("somebody runs it")

    servers = SimpleNamespace(has_embedded_kafka=False, has_embedded_store=False, connection=Connection("k:1"))
    for name in ("claim", "fetch_jars", "start", "stop"):
        setattr(servers, name, lambda *_: None)
    monkeypatch.setattr(launcher, "Servers", lambda *_: servers)
    monkeypatch.setattr(launcher, "UpLease", Lease)
    monkeypatch.setattr(launcher, "begin_or_join", begin_or_join)
    monkeypatch.setattr(launcher.Launcher, "_start_components", lambda _: pytest.fail("components were started"))
    request = UpRequest(load_recipe("arithmetic", ['kafka.bootstrap="k:1"', 'store.endpoint="s:1"']), tmp_path / "run")
    with pytest.raises(RunOfAnother):
        launcher.up(request, Console(file=io.StringIO()))
    assert order == ["kafka://k:1/demo", str(tmp_path / "run"), "it is free"]


AWAITED = ("solver at version 80 on sums",)


class DrainingPage:
    """Stands for the page of a run that has ended."""

    ended, hopeless = "steps", ""

    def __init__(self, in_flight: int = 0, awaited: tuple[str, ...] = ()) -> None:
        self.in_flight, self.awaited_evaluations = in_flight, awaited
        self.work, self.has_starting_worker = 0, False


class Clock:
    """Stands for the monotonic clock of the drain."""

    now_s = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("headrace.app.launcher.drained.time.monotonic", lambda: made.now_s)
    return made


def drain_of(
    page: DrainingPage,
    session_s: float = 8.0,
    episode_limit_s: float = 120.0,
    is_answering: Callable[[], bool] = lambda: True,
) -> Drain:
    drain = Drain(cast("RunPage", page), lambda: session_s, episode_limit_s, is_answering)
    drain.is_over()  # as of the run's end
    return drain


def test_the_drain_at_the_end_of_a_run_outlasts_the_session_of_a_dead_worker(clock: Clock) -> None:
    assert (compute_groups_drain_s(8.0), compute_groups_drain_s(45.0)) == (30.0, 65.0)
    near, far = drain_of(DrainingPage(1), 8.0), drain_of(DrainingPage(1), 45.0)
    clock.now_s += 31.0
    assert near.is_over()
    assert not far.is_over()
    assert drain_of(DrainingPage(), 45.0).is_over(), "nothing is in flight"


def test_a_run_whose_curators_are_slow_drains_as_long_as_groups_are_concluded(clock: Clock) -> None:
    page = DrainingPage(40)
    drain = drain_of(page)
    for _ in range(10):
        clock.now_s += GROUPS_DRAIN_S - 1
        page.in_flight -= 1
        assert not drain.is_over()
    clock.now_s += GROUPS_DRAIN_S + 1
    assert drain.is_over(), "nothing was concluded for so long"


def test_the_last_versions_evaluation_is_waited_for_as_long_as_groups_of_it_are_played(clock: Clock) -> None:
    page = DrainingPage(awaited=AWAITED)
    drain = drain_of(page)
    for _ in range(10):
        clock.now_s += EVALUATION_DRAIN_S + 119.0
        page.work += 1
        assert not drain.is_over()
    clock.now_s += EVALUATION_DRAIN_S + 121.0
    assert drain.is_over(), "no episode takes longer"
    page.work, page.awaited_evaluations = page.work + 1, ()
    assert drain.is_over(), "it is there"


def test_a_worker_that_loads_its_model_for_the_last_versions_evaluation_is_waited_for_but_not_for_ever(
    clock: Clock,
) -> None:
    page = DrainingPage(awaited=AWAITED)
    page.has_starting_worker = True
    drain = drain_of(page)
    clock.now_s += STARTS_WITHIN_S - 1
    assert not drain.is_over()
    clock.now_s += EVALUATION_DRAIN_S + 121.0
    assert drain.is_over()


@pytest.mark.parametrize("page", [DrainingPage(4), DrainingPage(awaited=AWAITED)])
def test_a_server_that_is_away_takes_nothing_of_the_time_in_which_a_run_drains(
    clock: Clock, page: DrainingPage
) -> None:
    answers = [False, True]
    drain = drain_of(page, is_answering=lambda: answers.pop(0))
    clock.now_s += 200.0
    drain.restart_clocks()
    clock.now_s += GROUPS_DRAIN_S - 1
    assert not drain.is_over(), "it is back for so long only"
    clock.now_s += 200.0
    assert not drain.is_over(), "one that has just gone does not answer"
    assert not drain.is_over()
    clock.now_s += 200.0
    assert drain.is_over()
    assert not answers


@pytest.mark.parametrize("silent", ["one that died", "a frozen one"])
def test_up_waits_for_groups_in_flight_as_long_as_a_server_is_away_and_then_anew(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: str
) -> None:
    request = UpRequest(load_recipe("arithmetic"), tmp_path)
    launch = launcher.Launcher(request, DataFolder(tmp_path), None, Console(file=io.StringIO()))
    page, turns = DrainingPage(4), list[float]()

    def turn(_timeout_s: float) -> None:
        turns.append(clock.now_s)
        clock.now_s += GROUPS_DRAIN_S + 1

    def is_away(*which: str) -> bool:
        return silent in which and len(turns) < 6

    for name, value in (("turn", turn), ("hopeless", ""), ("progress", 1)):
        monkeypatch.setattr(page, name, value, raising=False)
    launch._all_servers = launch._servers = cast(
        "Any",
        SimpleNamespace(
            revive=lambda: is_away("one that died"),
            watch=lambda: ("silence",) if is_away("a frozen one") else (),
            is_answering=lambda: True,
        ),
    )
    monkeypatch.setattr(launch, "_call_when_reachable", lambda _: 8.0)
    monkeypatch.setattr(launch, "_record_state", lambda _: None)
    supervisor = SimpleNamespace(raise_failure=lambda: None, take_news=list)
    launch._turn_until_drained(cast("Run", None), cast("Any", page), cast("Any", supervisor))
    assert len(turns) == 6


@pytest.mark.parametrize(("work", "silent"), [(1, ()), (0, ("silence",))])
def test_who_watches_a_run_sees_it_until_the_last_version_is_evaluated_however_long_a_server_is_away(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, work: int, silent: tuple[str, ...]
) -> None:
    page = DrainingPage(awaited=AWAITED)
    turns = list[float]()
    servers = SimpleNamespace(stop=lambda: None, watch=lambda: silent)
    recipe = load_recipe("arithmetic")

    def turn(_timeout_s: float) -> None:
        turns.append(clock.now_s)
        clock.now_s += EVALUATION_DRAIN_S + 1.0 + (0 if work else recipe.rollout.episode_limit_s)
        page.work, page.awaited_evaluations = page.work + work, page.awaited_evaluations if len(turns) < 5 else ()

    monkeypatch.setattr(page, "turn", turn, raising=False)
    monkeypatch.setattr(page, "close", lambda: None, raising=False)
    monkeypatch.setattr(watch, "LivePage", lambda *_, **__: page)
    monkeypatch.setattr(watch, "make_servers", lambda *_: servers)
    monkeypatch.setattr(watch, "fetch_session_timeout_s", lambda _: 8.0)
    run = cast("Run", SimpleNamespace(recipe=recipe, connection=None))

    assert watch.watch(run, Console(file=io.StringIO()), lambda _: None, plain=True) == "steps"
    assert len(turns) == 5


@pytest.mark.parametrize(("began_ms", "looks"), [(0, 3), (1, 1)])
def test_who_watches_a_run_in_which_nothing_ever_succeeds_gives_up_as_up_does(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, began_ms: int, looks: int
) -> None:
    recipe = load_recipe("arithmetic")
    ended, turns = list[str](), list[float]()
    page = SimpleNamespace(ended="", in_flight=4, hopeless="solver gets no episode")
    page.close = lambda: ended.append("closed")

    def turn(_timeout_s: float) -> None:
        turns.append(clock.now_s)
        clock.now_s += 100.0
        assert len(turns) < 9, "it goes on"

    page.turn = turn
    monkeypatch.setattr(watch, "LivePage", lambda *_, **__: page)
    monkeypatch.setattr(watch, "make_servers", lambda *_: SimpleNamespace(stop=lambda: None, watch=lambda: ()))
    monkeypatch.setattr(watch, "fetch_session_timeout_s", lambda _: 8.0)
    run = cast("Run", SimpleNamespace(recipe=recipe, connection=None))

    with pytest.raises(launcher.AllFailed, match=r"^solver gets no episode$") as raised:
        watch.watch(run, Console(file=io.StringIO()), lambda _: None, plain=True, began_ms=began_ms)
    assert raised.value.exit_code == 1
    assert len(turns) == looks, "what failed before separate parts were mended counts while they are watched so long"
    assert ended == ["closed"]


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (DrainingPage(), ""),
        (DrainingPage(3), "the run ended some time ago, but 3 groups are still in flight"),
        (DrainingPage(0, ("solver at version 80 on [/x]",)), "is not evaluated (solver at version 80 on [/x]): give"),
    ],
)
def test_a_run_that_was_waited_for_in_vain_says_what_is_missing_and_is_not_noted_as_finished(
    page: DrainingPage, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = UpRequest(load_recipe("arithmetic", ["kafka.bootstrap=127.0.0.1:1"]), tmp_path, plain=True)
    said, noted, summarized = io.StringIO(), list[object](), list[str]()
    launch = launcher.Launcher(request, DataFolder(tmp_path), None, Console(file=said))
    servers: dict[str, object] = {
        name: lambda *_: None for name in ("claim", "fetch_jars", "start", "stop", "describe_regions")
    }
    launch._all_servers = launch._servers = cast(
        "Any", SimpleNamespace(has_embedded_kafka=False, has_embedded_store=False, connection=None, **servers)
    )
    monkeypatch.setattr(launcher, "begin_or_join", lambda *_, **__: SimpleNamespace(ended="", run_id="run-1"))
    monkeypatch.setattr(launcher, "join", lambda _: None)
    monkeypatch.setattr(launch, "_summarize", lambda _, rest: summarized.append(rest) or CLOSES)
    monkeypatch.setattr(launch, "_start_components", lambda: None)
    monkeypatch.setattr(launch, "_supervisor", SimpleNamespace(states=dict, stop=lambda _: None))
    monkeypatch.setattr(launch, "_turn_until_drained", lambda *_: None)
    monkeypatch.setattr(live, "LivePage", lambda *_, **__: page)
    monkeypatch.setattr(page, "close", lambda: None, raising=False)
    monkeypatch.setattr(launch, "_record_state", lambda _run, *, finished=None: noted.append(finished))

    assert launch.run() == 0
    assert noted[-1] is not bool(told)
    assert summarized[0] in said.getvalue()
    assert told in summarized[0]
    assert ("give the same command again" in said.getvalue()) is bool(told)


@pytest.mark.parametrize(
    ("verdict", "code", "told"),
    [
        (CLOSES, 0, ""),
        (AuditVerdict(False, 0, 0, ("an object is lost",)), AUDIT_OPEN, "does not close"),
        (AuditVerdict(False, 0, 0, (), "the store is away"), NO_VERDICT, "has no verdict"),
    ],
)
def test_a_run_whose_audit_does_not_close_ends_with_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: AuditVerdict, code: int, told: str
) -> None:
    request = UpRequest(load_recipe("arithmetic", ["kafka.bootstrap=127.0.0.1:1"]), tmp_path, plain=True)
    notes = RunNotes(run="arithmetic", bootstrap="127.0.0.1:1", embedded_kafka=False, finished=True)
    said = io.StringIO()
    launch = launcher.Launcher(request, DataFolder(tmp_path), notes, Console(file=said))
    servers: dict[str, object] = {
        name: lambda *_: None for name in ("claim", "fetch_jars", "start", "stop", "describe_regions")
    }
    launch._all_servers = launch._servers = SimpleNamespace(
        has_embedded_kafka=False, has_embedded_store=False, connection=Connection("k:1"), **servers
    )
    monkeypatch.setattr(launcher, "begin_or_join", lambda *_, **__: SimpleNamespace(ended="steps"))
    monkeypatch.setattr(launch, "_record_state", lambda *_given, **_more: None)
    monkeypatch.setattr(launcher, "join", lambda _: None)
    monkeypatch.setattr(launch, "_summarize", lambda _, rest: verdict)

    assert launch.run() == code
    assert told in said.getvalue()
    assert ("the audit of this run" in said.getvalue()) is bool(told)


def test_a_run_that_is_given_up_says_what_it_stood_still_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Page:
        ended, in_flight = "", 0
        hopeless = ""
        standstill = "solver has not made a version: no worker is alive."
        closed = False

        def turn(self, timeout_s: float) -> None:
            pass

        def close(self) -> None:
            self.closed = True

    class Failed:
        def states(self) -> dict[str, ChildState]:
            return {}

        def raise_failure(self) -> None:
            raise GaveUp("rollout-sums-0 died 8 times")

    request = UpRequest(load_recipe("arithmetic"), tmp_path)
    launch = launcher.Launcher(request, DataFolder(tmp_path), None, Console(file=io.StringIO()))
    page = Page()
    monkeypatch.setattr(launch, "_supervisor", Failed())
    monkeypatch.setattr(launch, "_call_when_reachable", lambda _: page)
    run = cast(Run, SimpleNamespace(run_id="run-1"))
    with pytest.raises(GaveUp, match=r"died 8 times\nsolver has not made a version: no worker is alive\.$") as raised:
        launch._supervise_until_drained(run)
    assert (page.closed, raised.value.exit_code) == (True, 1)


def test_a_run_in_which_no_episode_ever_succeeds_is_given_up_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Page:
        ended, hopeless = "", ""
        turns = 0

        def turn(self, _timeout_s: float) -> None:
            self.turns += 1
            assert self.turns < 9, "it goes on"
            self.hopeless = "solver gets no episode" if self.turns == 3 else ""

    launch = launcher.Launcher(
        UpRequest(load_recipe("arithmetic"), tmp_path), DataFolder(tmp_path), None, Console(file=io.StringIO())
    )
    nothing = SimpleNamespace(
        revive=lambda: False, watch=lambda: True, is_answering=None, raise_failure=lambda: None, take_news=list
    )
    launch._all_servers = launch._servers = nothing
    monkeypatch.setattr(launch, "_record_state", lambda _: None)
    page = Page()
    with pytest.raises(launcher.AllFailed, match=r"^solver gets no episode$") as raised:
        launch._turn_until_drained(
            cast("Run", SimpleNamespace(run_id="run-1")), cast("Any", page), cast("Any", nothing)
        )
    assert (page.turns, raised.value.exit_code) == (3, 1)
