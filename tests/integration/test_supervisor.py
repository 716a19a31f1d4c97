from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S
from structlog.testing import capture_logs

from headrace.app.launcher.components import TORCHRUN
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Fenced
from headrace.infra.process.child_life import Child, GaveUp
from headrace.infra.process.child_process import PYTHON, build_child_environment
from headrace.infra.process.patience import SERVER_AWAY, Patience
from headrace.infra.process.supervisor import LEAVE_S, Supervisor

HASTE = Patience(first_pause_s=0.01, longest_pause_s=0.05, most_short_lives=3)
LIVES_ON = "import time\nwhile True: time.sleep(60)"
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\nwhile True: time.sleep(60)"
WITH_CHILD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {LIVES_ON!r}])
print(child.pid)
time.sleep(600)
"""


def python(name: str, code: str) -> Child:
    return Child(name, [sys.executable, "-u", "-c", code])


@contextmanager
def supervised(
    folder: Path,
    *children: Child,
    patience: Patience = HASTE,
    is_over: Callable[[], bool] = lambda: False,
    progress: Callable[[], object] = lambda: None,
) -> Iterator[Supervisor]:
    supervisor = Supervisor(children, folder, os.environ, patience=patience, is_over=is_over, progress=progress)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop(timeout_s=5)


def wait_for(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not come"
        time.sleep(0.01)


def log_of(folder: Path, name: str) -> str:
    path = folder / f"{name}.log"
    return path.read_text() if path.exists() else ""


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, python("worker", LIVES_ON)) as supervisor:
        wait_for(lambda: supervisor.states()["worker"].pid is not None)
        first = supervisor.states()["worker"].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)

        wait_for(lambda: supervisor.states()["worker"].pid not in (None, first))

        assert supervisor.states()["worker"].starts == 2
        supervisor.raise_failure()


@pytest.mark.servers
def test_a_child_that_another_process_has_replaced_is_no_dead_one_and_waits_long(tmp_path: Path) -> None:
    patience = Patience(first_pause_s=0.01, longest_pause_s=0.2, most_short_lives=2)
    with (
        capture_logs() as said,
        supervised(tmp_path, python("curate", "import sys; sys.exit(76)"), patience=patience) as supervisor,
    ):
        wait_for(lambda: supervisor.states()["curate"].starts > 3)
        supervisor.raise_failure()
    assert {one["event"] for one in said} == {"child.fenced"}
    assert {one["again_in_s"] for one in said} == {0.2}
    assert Fenced.exit_code == 76


@pytest.mark.servers
def test_a_child_that_somebody_else_told_to_stop_is_started_again(tmp_path: Path) -> None:
    polite = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up')\n" + LIVES_ON
    with supervised(tmp_path, python("worker", polite)) as supervisor:
        wait_for(lambda: "up" in log_of(tmp_path, "worker"))
        first = supervisor.states()["worker"].pid
        assert first is not None
        os.kill(first, signal.SIGTERM)

        wait_for(lambda: supervisor.states()["worker"].pid not in (None, first))

        assert supervisor.states()["worker"].exit_code == 0
        supervisor.raise_failure()


@pytest.mark.servers
def test_a_child_that_finished_stays_finished(tmp_path: Path) -> None:
    with supervised(tmp_path, python("done", "print('all done')"), is_over=lambda: True) as supervisor:
        wait_for(lambda: supervisor.states()["done"].state == "finished")

        assert supervisor.states()["done"].starts == 1
        assert log_of(tmp_path, "done") == "all done\n"


@pytest.mark.servers
def test_a_child_that_dies_again_and_again_is_given_up_with_the_end_of_its_log(tmp_path: Path) -> None:
    with supervised(tmp_path, python("torn", "raise SystemExit('no spoon')")) as supervisor:
        wait_for(lambda: supervisor.states()["torn"].state == "failed")

        assert supervisor.states()["torn"].starts == HASTE.most_short_lives
        with pytest.raises(GaveUp, match=r"torn died 3 times.*exit code 1(.|\n)*torn\.log(.|\n)*no spoon"):
            supervisor.raise_failure()


@pytest.mark.servers
def test_a_child_that_was_misused_is_not_started_again_and_its_sentence_is_passed_on(tmp_path: Path) -> None:
    code = "import sys\nprint('{}')\nprint('error: no such policy', file=sys.stderr)\nsys.exit(2)"
    with supervised(tmp_path, python("train", code)) as supervisor:
        wait_for(lambda: supervisor.states()["train"].state == "failed")

        with pytest.raises(UsageError) as caught:
            supervisor.raise_failure()
        assert str(caught.value) == "train: no such policy"
        assert supervisor.states()["train"].starts == 1


def test_stop_ends_the_deaf_too_and_leaves_no_process_behind(tmp_path: Path) -> None:
    children = (python("quick", LIVES_ON), python("deaf", DEAF), python("parent", WITH_CHILD))
    with supervised(tmp_path, *children) as supervisor:
        wait_for(lambda: "deaf" in log_of(tmp_path, "deaf") and log_of(tmp_path, "parent").strip().isdigit())
        wait_for(lambda: supervisor.states()["quick"].pid is not None)
        pids = [state.pid for state in supervisor.states().values() if state.pid is not None]
        pids.append(int(log_of(tmp_path, "parent")))

        with capture_logs() as logs:
            supervisor.stop(timeout_s=0.5)

        assert [(line["event"], line["after_s"]) for line in logs if "after_s" in line] == [("children.killed", 0.5)]
        wait_for(lambda: all(gone(pid) for pid in pids))
        assert {state.state for state in supervisor.states().values()} == {"stopped"}


def test_a_supervisor_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    code = f"""
        import os, time
        from pathlib import Path
        from headrace.infra.process.patience import Patience
        from headrace.infra.process.child_life import Child
        from headrace.infra.process.supervisor import Supervisor
        deaf = Child("deaf", {[sys.executable, "-u", "-c", DEAF]!r})
        supervisor = Supervisor([deaf], Path({str(tmp_path)!r}), os.environ, patience=Patience(3), is_over=bool)
        supervisor.start()
        while (pid := supervisor.states()["deaf"].pid) is None: time.sleep(0.01)
        print(pid, flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as launcher:
        try:
            assert launcher.stdout is not None
            pid = int(launcher.stdout.readline())
            wait_for(lambda: "deaf" in log_of(tmp_path, "deaf"))
        finally:
            launcher.kill()

        wait_for(lambda: gone(pid))


@pytest.mark.servers
def test_cpu_seconds_count_ended_lives_and_name_the_threads_of_librdkafka(tmp_path: Path) -> None:
    code = """
import threading, time
from pathlib import Path
def burn():
    Path("/proc/thread-self/comm").write_text("rdk:toy")
    end = time.thread_time() + 0.3
    while time.thread_time() < end: pass
    time.sleep(1.5)
threading.Thread(target=burn).start()
raise SystemExit(1)
"""
    patience = Patience(first_pause_s=0.01, most_short_lives=2)
    with supervised(tmp_path, python("toy", code), patience=patience) as supervisor:
        wait_for(lambda: supervisor.states()["toy"].state == "failed")

    used = supervisor.cpu_seconds()["toy"]
    assert used["process"] >= 2 * 0.28
    assert 2 * 0.25 <= used["librdkafka"] <= used["process"]


@pytest.mark.servers
def test_threads_of_the_children_are_set_before_they_start() -> None:
    given = {"PATH": "/bin", "PYTHONDONTWRITEBYTECODE": "1"}

    environment = build_child_environment(given, torch_processes=2, cores=8)

    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "4"
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert build_child_environment(given, torch_processes=4, cores=2)["OMP_NUM_THREADS"] == "1"
    assert build_child_environment({"OMP_NUM_THREADS": "3"}, 4, cores=2)["OMP_NUM_THREADS"] == "3"


LONG_LIVED = Patience(most_short_lives=10**6, most_deaths=4, first_pause_s=0.001, longest_pause_s=0.001)


@pytest.mark.servers
def test_a_child_that_dies_while_the_run_gets_no_further_is_given_up_whatever_its_lives_and_exit_code(
    tmp_path: Path,
) -> None:
    torn = [python(f"torn-{code}", f"raise SystemExit({code})") for code in (1, SERVER_AWAY)]
    with supervised(tmp_path, *torn, patience=LONG_LIVED, progress=lambda: {"solver": 7}) as supervisor:
        wait_for(lambda: {one.state for one in supervisor.states().values()} == {"failed"})

        assert {one.starts for one in supervisor.states().values()} == {4}
        with pytest.raises(GaveUp, match="died 4 times"):
            supervisor.raise_failure()


@pytest.mark.servers
def test_a_death_in_the_users_own_code_is_told_with_its_line_and_stays_with_the_child(tmp_path: Path) -> None:
    (tmp_path / "own_loss.py").write_text("import json\n\n\ndef own_loss():\n    return json.loads('{')\n")
    code = f"import sys\nsys.path.append({str(tmp_path)!r})\nfrom own_loss import own_loss\nown_loss()"
    with supervised(tmp_path, python("train", code)) as supervisor:
        wait_for(lambda: supervisor.states()["train"].state == "failed")

    [told] = supervisor.take_news()
    assert "JSONDecodeError: Expecting property name" in told
    assert told.endswith(" at " + supervisor.states()["train"].error.rpartition(" at ")[2])
    assert supervisor.states()["train"].error.endswith("own_loss.py:5 in own_loss")


@pytest.mark.servers
@pytest.mark.parametrize(
    ("raised", "why"),
    [
        ("UsageError('no such policy')", r"^train: no such policy$"),
        ("ValueError('bad shape')", r"exit code 1 \(ValueError: bad shape at \S+train\.py:6 in loss"),
        ("SystemExit(75)", r"exit code 75"),
    ],
)
def test_of_a_trainer_of_several_processes_its_own_exit_code_and_error_are_heard_and_not_torchruns(
    tmp_path: Path, raised: str, why: str
) -> None:
    code = f"""
import os, time
from headrace.infra.errors import UsageError
from headrace.infra.process.end_report import report_failure

def loss():
    raise {raised}

with report_failure():
    loss() if os.environ["RANK"] == "1" else time.sleep(600)
"""
    (tmp_path / "train.py").write_text(code.lstrip())
    torchrun = [*PYTHON, *TORCHRUN, "2", "--log-dir", str(tmp_path / "torchrun"), "--no-python", "--"]
    child = Child("train", [*torchrun, *PYTHON, str(tmp_path / "train.py")])
    with supervised(tmp_path, child, patience=Patience(1, most_deaths=1), progress=lambda: 7) as supervisor:
        wait_for(lambda: supervisor.states()["train"].state == "failed")

        with pytest.raises(GaveUp, match=why) as caught:
            supervisor.raise_failure()
        assert "ChildFailedError" not in str(caught.value)


@pytest.mark.servers
def test_a_death_is_told_with_the_last_error_and_the_log_and_told_again_only_for_another_error(tmp_path: Path) -> None:
    code = """
from pathlib import Path
lives = Path("FILE")
lives.write_text(lives.read_text() + "." if lives.exists() else ".")
n = len(lives.read_text())
raise ValueError(f"bad number {n}") if n < 4 else KeyError("other")
"""
    patience = Patience(most_short_lives=5, first_pause_s=0.001, longest_pause_s=0.001)
    with supervised(
        tmp_path, python("torn", code.replace("FILE", str(tmp_path / "lives"))), patience=patience
    ) as supervisor:
        wait_for(lambda: supervisor.states()["torn"].state == "failed")

    first, second = supervisor.take_news()
    assert first == (
        f"torn died (exit code 1) and is started again; its log {tmp_path}/torn.log ends with: ValueError: bad number 1"
    )
    assert second.endswith("KeyError: 'other'")
    assert supervisor.take_news() == []


@pytest.mark.servers
def test_an_end_that_an_earlier_life_reported_is_not_taken_for_that_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "torn.end").write_text("2\nerror: no such policy\n")
    with supervised(tmp_path, python("torn", "raise ValueError('bad shape')")) as supervisor:
        wait_for(lambda: supervisor.states()["torn"].state == "failed")

    assert supervisor.states()["torn"].exit_code == 1
    assert "ValueError: bad shape" in supervisor.states()["torn"].error


POLITE = """
import signal, sys, time

def leave(*_):
    print("leaving", flush=True)
    time.sleep(0.3)
    print("gone", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True: time.sleep(60)
"""
"""A child that takes some time to hand back what it has."""


@pytest.mark.servers
def test_children_come_and_leave_while_the_others_run_on_and_leaving_is_no_death(tmp_path: Path) -> None:
    workers = [python(f"worker-{n}", POLITE) for n in range(3)]
    with capture_logs() as logs, supervised(tmp_path, workers[0]) as supervisor:
        wait_for(lambda: "up" in log_of(tmp_path, "worker-0"))
        first = supervisor.states()["worker-0"].pid
        supervisor.set_children(workers)
        wait_for(lambda: all("up" in log_of(tmp_path, worker.name) for worker in workers))
        pids = [state.pid for state in supervisor.states().values()]
        supervisor.set_children(workers[:1])
        assert list(supervisor.states()) == ["worker-0"]
        wait_for(lambda: all(pid is not None and gone(pid) for pid in pids[1:]))

        assert supervisor.states()["worker-0"].pid == first
        assert [log_of(tmp_path, worker.name) for worker in workers] == ["up\n", *["up\nleaving\ngone\n"] * 2]
        assert supervisor.take_news() == []
        supervisor.raise_failure()
        assert {"worker-1", "worker-2"} <= supervisor.cpu_seconds().keys(), "what they used still counts"
    assert logs == []


@pytest.mark.servers
def test_a_child_that_comes_back_at_once_waits_for_the_one_of_its_name_that_leaves(tmp_path: Path) -> None:
    worker = python("worker", POLITE)
    with supervised(tmp_path, worker) as supervisor:
        wait_for(lambda: "up" in log_of(tmp_path, "worker"))
        for children in ([], [worker], [], [worker]):
            supervisor.set_children(children)

        wait_for(lambda: log_of(tmp_path, "worker").count("up") == 2)
        assert log_of(tmp_path, "worker") == "up\nleaving\ngone\nup\n"
        assert supervisor.states()["worker"].starts == 1


@pytest.mark.servers
def test_stop_does_not_wait_for_a_deaf_child_that_leaves(tmp_path: Path) -> None:
    with supervised(tmp_path, python("deaf", DEAF)) as supervisor:
        wait_for(lambda: "deaf" in log_of(tmp_path, "deaf"))
        pid = supervisor.states()["deaf"].pid
        assert pid is not None
        supervisor.set_children([])
        began = time.monotonic()
        supervisor.stop(timeout_s=0.5)

        assert time.monotonic() - began < LEAVE_S / 2
        wait_for(lambda: gone(pid))
