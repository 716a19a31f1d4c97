"""The workflow `terminal`, with a box that only notes what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chat_models import END, prepare_actor, save_tokenizer

from headrace.consumers.algorithms.validate import find_sequence_fault
from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import Problem, RoleTrajectory, Score
from headrace.envs.registry import check_alphabet, check_plays, load_workflow
from headrace.envs.sandbox.contract import BoxFailed, BoxUnavailable, Result
from headrace.envs.terminal.commands import BLOCK, PLAIN, RULES, read_command, show_result
from headrace.envs.terminal.contract import Terminal
from headrace.infra.errors import HeadraceError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.weights.policy_files import Tokenizer
from headrace.ops.offline import trial
from headrace.ops.preflight.contract import Asked
from headrace.ops.preflight.table import examine

PROBLEM = Problem("t", "say hi")


@dataclass
class World:
    """An environment and its box."""

    results: list[Result | Exception] = field(default_factory=list)
    asked: list[tuple[str, float]] = field(default_factory=list)
    stops: int = 0
    time_s: float = 60.0
    name: str = "world"

    async def open_terminal(self, _: Problem, *, with_solution: bool = False) -> Terminal:
        box: Any = self
        return Terminal(box, "/app", self.time_s)

    async def exec(self, command: Sequence[str], *, timeout_s: float, cwd: str) -> Result:
        assert (command[:2], cwd) == (["bash", "-c"], "/app")
        self.asked.append((command[2], timeout_s))
        found = self.results.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def stop(self) -> None:
        self.stops += 1

    async def grade(self, _: Problem, __: Terminal) -> Score:
        assert not self.stops
        return Score(0.5, {"checks": 2})


def play(world: Any, actor: Any, **settings: Any) -> RoleTrajectory:
    return asyncio.run(load_workflow("terminal", settings)(PROBLEM, world, {"agent": actor}))["agent"]


@pytest.fixture
def plain(tmp_path: Path) -> Tokenizer:
    return save_tokenizer(tmp_path, template=None)


def test_without_a_chat_template_each_answer_is_a_command_until_done(plain: Tokenizer) -> None:
    world = World([Result("hi\n", "", 0), Result("", "no\n", 3), Result("", "", 137, timed_out=True)])
    played = play(world, prepare_actor(plain, *(f"{one}{END}" for one in ("echo hi", "cat x", "sleep 9", "done"))))
    [sequence] = played.sequences
    assert plain.decode(sequence.ids, special_tokens=True) == (
        f"say hiecho hi{END}hi\ncat x{END}exit code 3\nno\nsleep 9{END}stopped after 30 s\ndone{END}"
    )
    assert find_sequence_fault(sequence, head_version=4) is None
    counts = {"turns": 4, "commands": 3, "command_errors": 1, "timeouts": 1, "cut_outputs": 0, "checks": 2}
    assert (played.reward, played.parts, world.stops) == (0.5, counts, 1)
    assert world.asked == [("echo hi", 30), ("cat x", 30), ("sleep 9", 30)]


def test_with_a_chat_template_commands_stand_in_blocks_and_the_prompt_says_so(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    world = World([Result("", "", 0)])
    played = play(world, prepare_actor(tokenizer, f"First:\n```bash\nls\ncd x\n```{END}", f"It is done.{END}"))
    text = tokenizer.decode(played.sequences[-1].ids)
    assert f"say hi\n\n{RULES}" in text
    assert "(no output)" in text
    assert world.asked == [("ls\ncd x\n", 30)]


def test_a_command_is_read_outside_of_thoughts() -> None:
    for text, form, command in (
        (" ls -l\n", PLAIN, "ls -l"),
        ("<think>rm x</think>ls", PLAIN, "ls"),
        ("done", PLAIN, ""),
        ("<think>```bash\nrm x\n```\n</think>\n```sh\nls\n```\nand\n```bash\npwd\n```", BLOCK, "ls\npwd\n"),
        ("```python\nprint()\n```", BLOCK, ""),
        ("use `ls`", BLOCK, ""),
    ):
        assert read_command(text, form) == command, text


def test_the_middle_of_a_long_output_is_left_out_and_its_length_told() -> None:
    seen = show_result(Result("a" * 50 + "z" * 50, "", 0), 30, 10)
    assert (seen.text, seen.is_cut, seen.kind) == ("aaaaa\n[90 left out]\nzzzzz", True, "")
    seen = show_result(Result("a", "", 0, stdout_truncated=True), 30, 10)
    assert (seen.text, seen.is_cut) == ("a\n[the rest was dropped]", True)


def test_a_command_that_was_cut_off_is_not_run(plain: Tokenizer) -> None:
    world = World()
    played = play(world, prepare_actor(plain, "rm -rf /tmp", f"done{END}"))
    assert "the command was cut off" in plain.decode(played.sequences[0].ids)
    assert (world.asked, played.parts["command_errors"], played.parts["commands"]) == ([], 1, 0)


def test_an_episode_ends_at_the_last_turn_and_when_the_tasks_time_is_over(plain: Tokenizer) -> None:
    texts = [f"ls{END}"] * 3
    world = World([Result("", "", 0, wall_s=1.5)] * 3, time_s=2)
    played = play(world, prepare_actor(plain, *texts))
    assert (world.asked, played.parts["turns"], played.reward) == ([("ls", 2), ("ls", 0.5)], 2, 0.5)
    world = World([Result("", "", 0)] * 3)
    assert play(world, prepare_actor(plain, *texts), max_turns=1, command_limit_s=5).parts["turns"] == 1
    assert world.asked == [("ls", 5)]


def test_a_box_that_fails_fails_the_episode_and_is_stopped(plain: Tokenizer) -> None:
    world = World([BoxFailed("gone")])
    with pytest.raises(BoxFailed, match="gone"):
        play(world, prepare_actor(plain, f"ls{END}"))
    assert world.stops == 1


def test_wrong_settings_environments_and_alphabets_are_refused_before_a_run() -> None:
    for settings in ({"max_turns": 0}, {"observation_chars": 0}, {"command_limit_s": 0}, {"form": "xml"}):
        with pytest.raises(ValueError, match=r"workflow terminal: max_turns and .* one of auto, block, plain; got"):
            load_workflow("terminal", settings)
    with pytest.raises(
        ValueError, match="needs an environment with the methods open_terminal and grade, such as harbor"
    ):
        check_plays("terminal", Arithmetic(1))
    world: Any = World()
    check_plays("terminal", world)
    with pytest.raises(ValueError, match=r"add '\\nde' to it"):
        check_alphabet("terminal", world, "agent", "no")
    with pytest.raises(ValueError, match="workflow terminal needs exactly one role"):
        asyncio.run(load_workflow("terminal")(PROBLEM, world, {}))


def test_a_machine_without_boxes_refuses_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise BoxUnavailable("this machine has no boxes")

    recipe = load_recipe("terminal")
    monkeypatch.setattr("headrace.envs.harbor.errands.check_boxes", refuse)
    faults = examine(Asked(recipe))
    assert [fault.sentence for fault in faults if not fault.is_doubt] == ["workflows.sums: this machine has no boxes"]
    with pytest.raises(HeadraceError, match="this machine has no boxes"):
        trial.try_recipe(trial.TrialRequest(recipe))
