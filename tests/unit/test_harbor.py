"""What is read of a Harbor task, and what is refused, with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.app.cli.options import print_answer
from headrace.app.views.task_checks_page import task_checks_page
from headrace.envs.harbor.boxes import TaskFailed, read_reward
from headrace.envs.harbor.checking import TaskChecked
from headrace.envs.harbor.dockerfile import TaskRefused, read_dockerfile
from headrace.envs.harbor.environment import Harbor
from headrace.envs.harbor.errands import Errands
from headrace.envs.harbor.task import find_tasks, read_task
from headrace.envs.harbor.writing import build_task, write_files
from headrace.envs.registry import load_environment
from headrace.envs.sandbox.contract import Result
from headrace.envs.sandbox.grading import Graded
from headrace.infra.errors import UsageError

FILES = build_task("easy", {"a": "1\n", "b.txt": "2\n"}, ["true"])


def write(folder: Path, **changed: str) -> Path:
    names = {"task": "task.toml", "dockerfile": "environment/Dockerfile"}
    write_files(folder, FILES | {names[key]: text for key, text in changed.items()})
    return folder


def test_lines_of_a_dockerfile_become_steps_and_writable_folders(tmp_path: Path) -> None:
    lines = "# a\nFROM debian:12\nENV A=1 B='2 3'\nWORKDIR /srv/$A\nCOPY --chown=x:x given .\nCOPY given/*.txt /data/\n"
    lines += "COPY given/a given/b.txt sub/\nCOPY given/a /data/new\n\nRUN one && \\\n  # why\n  two\n"
    file = write(tmp_path / "t", dockerfile=lines) / "environment" / "Dockerfile"
    given = file.parent / "given"
    image = read_dockerfile(file)
    assert (image.folder, image.env, image.folders) == ("/srv/1", {"A": "1", "B": "2 3"}, ["/data", "/srv/1"])
    assert [step.copies for step in image.steps] == [
        ((given, "/srv/1"),),
        ((given / "b.txt", "/data/b.txt"),),
        ((given / "a", "/srv/1/sub/a"), (given / "b.txt", "/srv/1/sub/b.txt")),
        ((given / "a", "/data/new"),),
        (),
    ]
    assert (image.steps[-1].command, image.steps[-1].folder) == ("one &&   two", "/srv/1")
    assert image.steps[-1].where.startswith(f"{file}:10: ")
    file = write(tmp_path / "u", dockerfile='FROM x\n RUN\tprintf "a  b" \\\n> c \\\n') / "environment" / "Dockerfile"
    assert [step.command for step in read_dockerfile(file).steps] == ['printf "a  b" > c ']


def test_every_other_line_is_refused_with_its_number_and_what_to_do(tmp_path: Path) -> None:
    for number, (line, why) in enumerate(
        (
            ("USER me", "only COPY, ENV, WORKDIR and RUN: delete the line"),
            ("FROM other", "no stages: write what the first stage makes"),
            ("RUN apt-get update && apt-get install -y jq", "`apt-get` needs a network.*install it on this machine"),
            ("RUN pip install requests", "`pip install` needs a network"),
            ("RUN <<EOF", "put the rest into a script"),
            ("COPY --from=build /x /y", "only files below environment/"),
            ("COPY nothing /app/", "has no such file"),
            ("COPY ../tests /app/", "has no such file"),
            ("COPY given /usr/src/app", "the system is read-only there; use one such as /app"),
            ("WORKDIR /etc/x", "the system is read-only there"),
            ("ENV A=$NOWHERE", "has no value here: write the value"),
            ("ENV A 1", "write it as ENV NAME=value"),
            ('ENV A="1', "No closing quotation.: mend its quotes"),
            ("COPY 'given /app/", "No closing quotation.: mend its quotes"),
            ("RUN pip  install requests", "`pip install` needs a network"),
        )
    ):
        file = write(tmp_path / str(number), dockerfile=f"FROM x\n{line}\n") / "environment" / "Dockerfile"
        with pytest.raises(TaskRefused, match=rf"{file}:2: `{re.escape(line)[:40]}.* is refused: .*{why}"):
            read_dockerfile(file)


def test_settings_that_a_box_cannot_keep_are_refused(tmp_path: Path) -> None:
    task = read_task("t", write(tmp_path / "right"))
    limits = task.build_limits(0.5)
    assert (limits.wall_s, limits.memory_mb, limits.disk_mb) == (1, 512, 32)
    for number, (text, why) in enumerate(
        (
            (
                "",
                r'\[environment\] network_mode is "public" .the default., .* write network_mode = "no-network"',
            ),
            (
                'environment = { network_mode = "allowlist", allowed_hosts = ["*.org"] }',
                r"\[environment\] allowed_hosts: .* without wildcards; got '\*.org'",
            ),
            ('environment.allow_internet = false\nagent.network_mode = "public"', r"\[agent\] network_mode is"),
            ('schema_version = "2.0"', "the schema version 2.0 is not known"),
            ("environment.gpus = 1", "environment.gpus = 1 cannot be played here"),
            ("[[steps]]\n", "steps = .* cannot be played here"),
            ('verifier.environment_mode = "other"', "verifier.environment_mode = 'other' cannot"),
            ("agent.timeout_sec = 0", "agent.timeout_sec = 0 cannot be played here: Input should be greater than 0"),
            ("a = ", "Invalid value"),
            (
                'environment = { allow_internet = false, env = { KEY = "${KEY}" } }',
                r"environment.env.KEY asks for a variable of this machine",
            ),
        )
    ):
        with pytest.raises(TaskRefused, match=f"task.toml: {why}"):
            read_task("t", write(tmp_path / str(number), task=text))
    open_hosts = 'environment = { network_mode = "allowlist", allowed_hosts = ["example.org"] }\n'
    listed = read_task("t", write(tmp_path / "open", task=open_hosts + 'agent.network_mode = "no-network"'))
    assert (listed.list_hosts("agent"), listed.list_hosts("verifier"), task.list_hosts("agent")) == (
        [],
        ["example.org"],
        [],
    )
    (tmp_path / "right" / "instruction.md").unlink()
    with pytest.raises(TaskRefused, match=r"instruction.md does not exist, and a task needs it"):
        read_task("t", tmp_path / "right")
    (write(tmp_path / "images") / "tests" / "Dockerfile").touch()
    with pytest.raises(TaskRefused, match="asks for an image of the tests' own"):
        read_task("t", tmp_path / "images")


def test_folders_or_a_hash_of_the_name_decide_what_is_held_out(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "test/a"):
        write(tmp_path / "given" / name)
    harbor = Harbor(1, str(tmp_path / "given"), held_out=0.9)
    assert (harbor.size("train"), harbor.size("held_out"), harbor.size("warm_start")) == (2, 1, 0)
    assert [harbor.problem("train", index).task_id for index in range(2)] == ["train/a", "train/b"]
    for number in range(40):
        write(tmp_path / "hashed" / str(number))
    held = {
        name for name in map(str, range(40)) if name in Harbor(1, str(tmp_path / "hashed"), 0.25)._names["held_out"]
    }
    assert 4 <= len(held) <= 16
    assert held <= set(Harbor(2, str(tmp_path / "hashed"), 0.5)._names["held_out"])
    assert find_tasks(tmp_path / "given" / "test" / "a").keys() == {"a"}


def test_a_folder_with_tasks_that_cannot_be_played_is_refused(tmp_path: Path) -> None:
    for name in "abcd":
        write(tmp_path / "wrong" / name, dockerfile="USER me")
    write(tmp_path / "wrong" / "right")
    (tmp_path / "empty").mkdir()
    for path, why in (
        (
            "wrong",
            r"4 of 5 tasks cannot be played: .*check-tasks.* The first ones: .*/a/.* \| .*/b/.* \| .*/c/.*USER me",
        ),
        ("empty", "has no task: no folder with a task.toml"),
        ("nowhere", "path must be a folder of tasks, but .*nowhere does not exist"),
    ):
        with pytest.raises(ValueError, match=why):
            load_environment("harbor", 1, {"path": str(tmp_path / path)})
    for settings, why in (
        ({"box": "nope"}, "'nope' is not known; take one of sandlock, namespaces, or your own"),
        ({"held_out": "x"}, "held_out must be a number, got 'x'"),
    ):
        with pytest.raises(ValueError, match=why):
            load_environment("harbor", 1, {"path": str(tmp_path / "wrong"), **settings})
    harbor = Harbor(1, str(write(tmp_path / "one")), 0.0)
    with pytest.raises(UsageError, match='use workflow = "terminal"'):
        harbor.score(harbor.problem("train", 0), "")


def test_a_reward_is_read_as_harbor_does() -> None:
    result = Result("", "", 1)
    for logs, reward, parts in (
        ({"reward.txt": b"0.5\n"}, 0.5, {}),
        ({"reward.json": b'{"reward": 1, "speed": 2.5, "note": "x", "ok": true}'}, 1, {"speed": 2.5}),
        ({"reward.json": b'{"reward": 0.25}', "reward.txt": b"1"}, 0.25, {}),
        ({"reward.json": b'{"speed": 2}', "reward.txt": b"1"}, 1, {"speed": 2}),
    ):
        found = read_reward(Graded(result, {f"verifier/{name}": content for name, content in logs.items()}), result)
        assert (found.reward, found.parts) == (reward, parts)
    for logs, why in (
        ({}, "wrote nothing to /logs/verifier/reward.txt .exit code 1"),
        (
            {"reward.json": b'{"speed": 2}'},
            "reward.json is .*it has no number under the key `reward`, and there is no ",
        ),
        ({"reward.json": b"[" * 9999}, "which has no number"),
        ({"reward.json": b"[1]"}, "which has no number"),
        ({"reward.txt": b"yes"}, "which has no number"),
        ({"reward.txt": b"inf"}, "is not finite"),
    ):
        with pytest.raises(TaskFailed, match=why):
            read_reward(Graded(result, {f"verifier/{name}": content for name, content in logs.items()}), result)


def test_errands_of_a_split_are_in_no_other_and_their_examples_show_every_command_in_any_order() -> None:
    errands = Errands(1)
    found = {
        split: {errands.problem(split, at).task_id for at in range(300)}
        for split in ("train", "held_out", "warm_start")
    }
    assert not found["train"] & found["held_out"]
    assert not found["warm_start"] & (found["train"] | found["held_out"])
    assert errands.problem("held_out", 3) == Errands(2).problem("held_out", 3)
    assert errands.problem("train", 3) != Errands(2).problem("train", 3)
    examples = [errands.example(index) for index in range(200)]
    firsts = {one.completion.split()[0] for one in examples if len(one.prompt) == 1}
    assert firsts == {"mv", "cat", "rm", "cp", "chmod", "touch", "mkdir"}
    assert {len(one.prompt) for one in examples} == {1, 3, 5, 7}
    assert all(one.completion == "done" for one in examples if len(one.prompt) == 7)


def test_a_long_path_in_what_is_wrong_with_a_task_is_shown_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    fault = f"{'/folder' * 20}/Dockerfile:4: it is refused"
    print_answer([TaskChecked("a", fault=fault), TaskChecked("b", 1, 0)], task_checks_page, as_json=False)
    assert capsys.readouterr().out.splitlines()[-2:] == [f"a: {fault}", "1 of 2 tasks right"]
