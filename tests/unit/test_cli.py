from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from headrace.app.cli import main as cli
from headrace.app.cli.options import exit_without_verdict_on_error, print_answer
from headrace.infra import log
from headrace.infra.embedded.data_folder import UP, DataFolder, RunNotes
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.clients import KafkaAway
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops import opened_run
from headrace.ops.dead_letters.redrive import Redriven, Refused
from headrace.ops.offline.offline_run import OfflineRequest
from headrace.ops.offline.offline_trainer import TrainingRequest
from headrace.ops.offline.retrain import ComparedVersion
from headrace.ops.opened_run import OpenedRun
from headrace.ops.plain_json import plain

FEED = "headrace.producers.feed.feeder.main"
COMPONENTS = {
    "feed": (FEED, (), ()),
    "rollout": (
        "headrace.producers.rollout.worker.main",
        ("--workflow", "sums", "--concurrency", "8", "--kind", "gpu"),
        ("sums", None, "", 8, "gpu"),
    ),
    "curate": ("headrace.consumers.curate.curator.main", ("--policy", "solver", "--slot", "1"), ("solver", "1", None)),
    "train": ("headrace.trainers.train.main", ("--policy", "solver", "--variant", "own"), ("solver", "own")),
    "evaluate": ("headrace.consumers.evaluate.evaluator.main", (), ()),
}
ADDRESS = "kafka://127.0.0.1:9092/demo"
RUN = cast("Any", SimpleNamespace(resolve=lambda policy, _variant=None: policy))


@dataclass(frozen=True, slots=True)
class Found:
    """What a tool finds, as far as a command looks at it."""

    ok: bool = True
    problems: tuple[str, ...] = ()
    comparable: bool = True
    versions: tuple[Any, ...] = ()
    refused: tuple[int, ...] = ()


def retrained(*equal: bool | None) -> Found:
    versions = tuple(ComparedVersion(number, 0, "a", equal=one) for number, one in enumerate(equal))
    return Found(versions=versions, comparable=None not in equal)


LOOKS = {
    ("status",): "headrace.ops.figures.status.status",
    ("audit",): "headrace.ops.audit.report.report",
    ("dead-letters",): "headrace.ops.dead_letters.listing.listing",
    ("dead-letters", "--offset", "1"): "headrace.ops.dead_letters.listing.read_detail",
    ("redrive",): "headrace.ops.dead_letters.redrive.redrive",
    ("gc",): "headrace.ops.retention.collector.command",
    ("lineage", "--version", "3"): "headrace.ops.lineage.lineage.version_lineage",
    ("inspect", "--step", "3"): "headrace.ops.lineage.inspection.step",
    ("retrain",): "headrace.ops.offline.retrain.retrain",
}
"""Command to the tool that it calls."""


@pytest.fixture(autouse=True)
def logging_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers keep the stream they were first used with: it must not be one that a test captures and closes."""
    monkeypatch.setattr(log, "warn_in_sentences", lambda: None)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command line that ends badly; return its exit code and what it said."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return int(caught.value.code or 0), said.err


def test_an_empty_value_is_refused_by_the_word_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words, after in ((("clean", "--data", ""), "--data"), (("weights", "show", "--data="), "--data")):
        assert refused(capsys, *words) == (
            2,
            f"error: the value after {after} is empty: give a value, or leave {after} out\n",
        )
    assert "empty" not in refused(capsys, "try", "no-such", "--answer", "", "--answer=")[1]


def test_an_option_before_a_command_of_weights_counts_or_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty, out = tmp_path / "empty", str(tmp_path / "out")
    for words in (("--data", str(empty), "export", out), ("export", out, "--data", str(empty))):
        assert f"{empty} holds no run" in refused(capsys, "weights", *words)[1]
    assert refused(capsys, "weights", "--data", str(empty), "verify", out) == (
        2,
        "error: `headrace weights verify` reads folders and no run, so it takes no --data\n",
    )


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, headrace.app.cli.main\ntry: headrace.app.cli.main.main(['--help'])\n"
        "finally: print('modules', *sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    page, _, modules = done.stdout.partition("modules ")
    for command in ("up", "topics", "status", "audit", "lineage", "inspect", "gc", "doctor", "clean", *COMPONENTS):
        assert f" {command} " in page
    assert not {"torch", "transformers", "confluent_kafka", "pydantic", "minio"} & set(modules.split())


def commands(one: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, those below others too."""
    below: dict[str, Any] = getattr(one, "commands", {})
    if not below:
        yield words
    for name, command in below.items():
        yield from commands(command, (*words, name))


def test_every_command_teaches_by_an_example_and_loses_no_word_to_markup() -> None:
    every = list(commands(typer.main.get_command(cli.app)))
    pages = {words: CliRunner().invoke(cli.app, [*words, "--help"]).output for words in every}

    assert not [words for words, page in pages.items() if "Example: headrace" not in page]
    assert not [words for words, page in pages.items() if "[]" in page], "brackets are markup: write \\["


def test_a_component_is_found_by_its_name_and_given_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for command, (target, options, expected) in COMPONENTS.items():
        seen: list[tuple[Any, ...]] = []
        monkeypatch.setattr(target, lambda *given, seen=seen, **named: seen.append((*given, *named.values())))

        result = CliRunner().invoke(cli.app, [command, "--run", ADDRESS, *options])

        assert (result.exit_code, seen) == (0, [(ADDRESS, *expected)]), command


OFFLINE = {
    ("curate", "--from", "a", "--out", "o", "--policy", "solver", "--chain", "c.toml"): (
        "headrace.ops.offline.offline_curator.curate_offline",
        ("a", "solver", Path("c.toml"), Path("o"), None),
    ),
    ("train", "--from", "a", "--out", "o", "--set", "seed=1", "--steps", "3", "--start", "w", "--batches"): (
        "headrace.ops.offline.offline_trainer.train_offline",
        ("a", Path("o"), TrainingRequest(None, ("seed=1",), 3, "w", batches=True)),
    ),
    ("up", "arithmetic", "--from=a", "--data", "/d", "--summary", "s.json"): (
        "headrace.ops.offline.offline_run.run_offline",
        (OfflineRequest(load_recipe("arithmetic", ()), "a", Path("/d"), Path("s.json")),),
    ),
    ("evaluate", "--weights", "w", "--recipe", "arithmetic"): (
        "headrace.ops.offline.held_out.evaluate",
        (load_recipe("arithmetic", ()), {"solver": Path("w")}),
    ),
}
"""Words after `headrace offline` to the function that they call and its first arguments."""


def test_an_offline_command_calls_its_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # for the summary
    monkeypatch.setattr("headrace.infra.archive.reading.Archive", lambda _: None)
    monkeypatch.setattr("headrace.app.cli.offline.print_answer", lambda *_given, **_more: None)
    for words, (target, expected) in OFFLINE.items():
        seen: list[tuple[Any, ...]] = []
        monkeypatch.setattr(target, lambda *given, seen=seen: seen.append(given))

        result = CliRunner().invoke(cli.app, ["offline", *words])
        assert result.exit_code == 0, result.output
        assert [given[: len(expected)] for given in seen] == [expected]
    assert Path("s.json").exists()


def test_a_wrong_recipe_is_one_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = refused(capsys, "up", "arithmetic", "--set", "trainer.stpes=3")

    assert code == 2
    assert said.startswith("error: ")
    assert "did you mean `steps`" in said


def test_an_error_on_purpose_ends_with_1_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_address: str) -> Any:
        raise HeadraceError("the broker is away: start it")

    monkeypatch.setattr(FEED, fail)

    assert refused(capsys, "feed", "--run", ADDRESS) == (1, "error: the broker is away: start it\n")


@pytest.mark.parametrize("command", ["status", "retrain"])
def test_who_asks_for_json_gets_an_error_as_json_too(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_given: Any, **_more: Any) -> Any:
        raise UsageError("no such run: name another")

    monkeypatch.setattr(opened_run, "open_run", wrong)
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--run", ADDRESS, "--json"])
    said = capsys.readouterr()
    assert caught.value.code == 2
    assert json.loads(said.out) == {"error": "no such run: name another"}
    assert said.err == "error: no such run: name another\n"


def test_numbers_that_json_does_not_know_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer({"most": math.inf, "least": [-math.inf, math.nan], "some": 0.5}, str, as_json=True)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"most": None, "least": [None, None], "some": 0.5}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("status", "--bogus", "--json"), "No such option: --bogus"),
        (("lineage", "--version", "x", "--json"), "Invalid value for '--version'"),
        (("offline", "train", "--json"), "Missing option '--from'"),
        (("statsu", "--json"), "No such command 'statsu'"),
    ],
)
def test_a_wrong_command_line_is_told_as_json_too_to_who_asks_for_it(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = []
    for asked in (words, words[:-1]):
        with pytest.raises(SystemExit) as caught:
            cli.main(asked)
        ends.append((caught.value.code, capsys.readouterr()))
    (code, said), (plain_code, plainly) = ends
    assert (code, plain_code) == (2, 2)
    assert why in json.loads(said.out)["error"]
    assert plainly.out == ""
    assert said.err == plainly.err
    assert "Usage: " in said.err


def test_an_audit_that_cannot_be_made_is_another_end_than_one_that_does_not_close(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_given: Any, **_more: Any) -> Any:
        raise KafkaAway("the broker is away: start it")

    monkeypatch.setattr(opened_run, "open_run", away)
    assert refused(capsys, "audit", "--run", ADDRESS) == (3, "error: the broker is away: start it\n")

    monkeypatch.setattr(opened_run, "open_run", lambda *_given, **_more: nullcontext(OpenedRun(RUN, rests=True)))
    for found, code in ((Found(), 0), (Found(ok=False, problems=("1 lost",)), 1), (Found(ok=False), 3)):
        monkeypatch.setattr("headrace.ops.audit.report.report", lambda *_given, found=found, **_more: found)
        assert CliRunner().invoke(cli.app, ["audit", "--run", ADDRESS, "--json"]).exit_code == code


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (retrained(True), 0),
        (retrained(True, False), 1),
        (retrained(None), 3),
        (KafkaAway("the broker is away: start it"), 3),
        (UsageError("there is no version 99"), 2),
    ],
)
def test_a_retrain_that_cannot_be_made_is_another_end_than_one_that_differs(
    found: Found | HeadraceError,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tool(*_given: Any) -> Any:
        if isinstance(found, HeadraceError):
            raise found
        return found

    monkeypatch.setattr(opened_run, "open_run", lambda *_given, **_more: nullcontext(OpenedRun(RUN, rests=True)))
    monkeypatch.setattr("headrace.ops.offline.retrain.retrain", tool)

    with pytest.raises(SystemExit) as caught:
        cli.main(["retrain", "--run", ADDRESS, "--json"])

    assert caught.value.code == code
    said = capsys.readouterr()
    assert said.err == f"error: {found}\n" if isinstance(found, HeadraceError) else json.loads(said.out) == plain(found)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("retrain", "--from", "5", "--to", "3"), "--from 5 --to 3"),
        (("retrain", "--set", "trainer.learning_rate=1e-3"), "--set needs --into NAME"),
        (("retrain", "--into", "x", "--set", "rollout.max_tokens=9"), "can be set in this command"),
        (("retrain", "--into", "a.b"), "must have at most 63 letters"),
        (("lineage",), "give either"),
        (("lineage", "--group", "sums"), "write STREAM:NUMBER"),
        (("inspect", "--trajectory", "sums:12"), "write STREAM:NUMBER:SAMPLE"),
        (
            ("inspect", "--trajectory", "sums:12:0", "--group", "1"),
            "give it with --step VERSION, and not with --trajectory",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_run, "open_run", lambda *_given, **_more: pytest.fail("the run was opened"))

    code, said = refused(capsys, *words, "--run", ADDRESS)

    assert code == 2
    assert sentence in said


@pytest.mark.parametrize(
    ("command", "tool"),
    [("audit", "headrace.ops.audit.report.report"), ("retrain", "headrace.ops.offline.retrain.retrain")],
)
def test_an_error_that_nobody_expected_is_no_verdict_and_keeps_its_traceback(
    command: str, tool: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out_of_memory(*_given: Any, **_more: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(opened_run, "open_run", lambda *_given, **_more: nullcontext(OpenedRun(RUN, rests=True)))
    monkeypatch.setattr(tool, run_out_of_memory)
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--run", ADDRESS, "--json"])
    said, told = capsys.readouterr(), "no verdict on the run, because the command itself failed with RuntimeError"
    assert caught.value.code == 3
    assert json.loads(said.out)["error"].startswith(f"{told}: out of memory ")
    assert "in run_out_of_memory\n" in said.err
    assert f"\nerror: {told}" in said.err


def test_what_ends_a_command_on_purpose_ends_it_where_a_verdict_is_given_too() -> None:
    for purpose in (typer.Exit(1), typer.Abort(), typer.BadParameter("no"), UsageError("no"), KeyboardInterrupt()):
        with pytest.raises(type(purpose)) as caught, exit_without_verdict_on_error():
            raise purpose
        assert caught.value is purpose


def test_servers_that_are_away_of_a_run_that_goes_on_may_be_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_given: Any) -> Any:
        raise KafkaAway("listing topics: no answer from Kafka")

    monkeypatch.setattr(opened_run, "_join", away)
    folder = DataFolder(tmp_path)
    folder.write(RunNotes(run="r", bootstrap="127.0.0.1:1", embedded_kafka=True))
    with folder.hold(UP):
        code, said = refused(capsys, "lineage", "--group", "sums:1", "--data", str(tmp_path))
    assert code == 1
    assert said == (
        f"error: the run in {tmp_path} does not answer, and may be starting or stopping now: give the command again. "
        "If that does not help: listing topics: no answer from Kafka\n"
    )


def test_the_answer_is_printed_before_the_servers_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(*_given: Any, **_more: Any) -> Iterator[OpenedRun]:
        yield OpenedRun(RUN, rests=True)
        print("stopped")  # noqa: T201 - the order of what is printed is what this is about

    monkeypatch.setattr(opened_run, "open_run", opened)

    for words, tool in LOOKS.items():
        monkeypatch.setattr(tool, lambda *_given, **_more: Found())
        assert CliRunner().invoke(cli.app, [*words, "--run", ADDRESS, "--json"]).output.splitlines()[-1] == "stopped"


def test_only_a_command_that_is_alone_with_a_run_knows_that_nothing_is_written_to_its_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(
        "headrace.ops.retention.collector.command", lambda *_given, rests: (told.append(rests), Found())[1]
    )
    for is_alone in (True, False):
        opened = OpenedRun(RUN, rests=True, is_alone=is_alone)
        monkeypatch.setattr(opened_run, "open_run", lambda *_given, opened=opened, **_more: nullcontext(opened))
        assert CliRunner().invoke(cli.app, ["gc", "--run", ADDRESS, "--json"]).exit_code == 0
    assert told == [True, False]


def test_a_redrive_of_a_letter_that_is_refused_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Redriven(
        "demo", dry_run=False, redriven=(), already=(), refused=(Refused(2, "its record belongs to another run"),)
    )
    monkeypatch.setattr(opened_run, "open_run", lambda *_given, **_more: nullcontext(OpenedRun(RUN, rests=True)))
    monkeypatch.setattr("headrace.ops.dead_letters.redrive.redrive", lambda *_given, **_more: done)

    for words, code in ((("--offset", "2"), 1), ((), 0)):
        result = CliRunner().invoke(cli.app, ["redrive", "--run", ADDRESS, "--json", *words])
        assert (result.exit_code, json.loads(result.output)) == (code, plain(done))


def test_status_without_a_run_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    code, said = refused(capsys, "status")

    assert code == 2
    assert "--data" in said
    assert "--run" in said


def test_topics_of_a_recipe_are_listed_without_a_cluster_and_with_all_that_they_are_to_be_made_with() -> None:
    words = ["topics", "arithmetic", "--set", "name=mine"]
    page = CliRunner().invoke(cli.app, words)
    assert page.exit_code == 0
    assert re.search(r"mine\.trajectories\.solver +8 +for ever +1", page.output)
    settings = "cleanup.policy=delete max.message.bytes=8388608 retention.bytes=-1 retention.ms=-1"
    assert f"settings 1: {settings} settings 2: " in " ".join(page.output.split())

    only = CliRunner().invoke(cli.app, [*words, "--set", "kafka.bootstrap=nobody:1", "--list", "--json"])
    assert only.exit_code == 0, only.output
    listed = {one["name"]: one for one in json.loads(only.output)}
    assert listed["mine.workers"]["settings"]["cleanup.policy"] == "compact"
    assert listed["mine.tasks.sums"] == {
        "name": "mine.tasks.sums",
        "partitions": 8,
        "settings": dict(one.split("=") for one in settings.split()),
        "state": "",
    }


def test_clean_removes_a_run_and_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.write(RunNotes("demo", "127.0.0.1:1", embedded_kafka=True))
    precious = tmp_path / "precious"
    precious.mkdir()

    assert CliRunner().invoke(cli.app, ["clean", "--data", str(folder.root)]).exit_code == 0
    code, said = refused(capsys, "clean", "--data", str(precious))

    assert not folder.root.exists()
    assert precious.exists()
    assert (code, "nothing was removed" in said) == (2, True)


def test_clean_keeps_what_no_run_has_made_in_a_folder_of_data_or_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = DataFolder(tmp_path / "project"), tmp_path / "mine"
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))
    for path in (
        folder.logs / "up.log",
        folder.root / "run.json.0123abcd.new",
        folder.root / "paper.tex",
        folder.root / "sweep-1" / "recipe.json",
        folder.root / "sweep-1" / "run.json",
        cache / "m2" / "a.jar",
        cache / "weights" / "0f" / "aa",
        cache / "weights" / "final.safetensors",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder.write(RunNotes("demo", "127.0.0.1:1", embedded_kafka=True))

    done = CliRunner().invoke(cli.app, ["clean", "--data", str(folder.root), "--cache"])

    assert done.exit_code == 0, done.output
    assert "; other files there are kept: paper.tex\n" in done.output
    left = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(map(str, left)) == ["mine/weights/final.safetensors", "project/paper.tex"]


def test_clean_leaves_a_run_that_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    with folder.hold(UP):
        folder.write(RunNotes("demo", "127.0.0.1:1", embedded_kafka=True))

        code, said = refused(capsys, "clean", "--data", str(tmp_path))

    assert code == 1
    assert "--data" in said
    assert folder.require_notes().run == "demo"


def test_clean_all_takes_every_run_below_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        folder = DataFolder(Path(".headrace") / name)
        folder.root.mkdir(parents=True)
        folder.write(RunNotes(name, "127.0.0.1:1", embedded_kafka=True))

    assert CliRunner().invoke(cli.app, ["clean", "--all"]).exit_code == 0
    assert list((tmp_path / ".headrace").iterdir()) == []


def test_an_up_that_cannot_be_is_refused_before_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    summary, up = tmp_path / "none" / "summary.json", ("up", "arithmetic", "--data", str(tmp_path))
    with DataFolder(tmp_path).hold(UP):
        code, said = refused(capsys, *up)
    assert (code, f"headrace status --data {tmp_path}" in said) == (1, True)

    for path in (summary, tmp_path):
        code, said = refused(capsys, *up, "--summary", str(path))
        assert (code, f"the summary cannot be written to {path}" in said) == (2, True)

    DataFolder(tmp_path).write(RunNotes("other", "127.0.0.1:1", embedded_kafka=True))
    code, said = refused(capsys, *up)
    assert (code, "holds run other" in said) == (2, True)


def test_notes_survive_the_file_and_add_up(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    notes = RunNotes("demo", "127.0.0.1:1", embedded_kafka=True, run_id="demo-1")
    effort = notes.effort.add(2.0, {"feed": {"process": 1.0, "librdkafka": 0.5}})
    effort = effort.add(3.0, {"feed": {"process": 1.0, "librdkafka": 0.0}, "broker": {"process": 4.0}})
    folder.write(RunNotes("demo", "127.0.0.1:1", embedded_kafka=True, run_id="demo-1", effort=effort))

    found = folder.require_notes()

    assert found.address == "kafka://127.0.0.1:1/demo"
    assert found.effort.wall_s == 5.0
    assert found.effort.cpu["feed"] == {"process": 2.0, "librdkafka": 0.5}
    assert found.effort.cpu["broker"] == {"process": 4.0, "librdkafka": 0.0}
    assert json.loads((tmp_path / "run.json").read_text())["run"] == "demo"
