"""The example of docs/agents.md, as a user copies it, and the worked solutions of environments with tools."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_models import chat_tokenizer, save_tokenizer
from typer.testing import CliRunner

from headrace.app.cli.main import app
from headrace.envs.contract import GivesExamples
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.ledger import Ledger
from headrace.envs.registry import load_environment
from headrace.envs.tools.outcomes import KINDS, Limits
from headrace.envs.tools.solutions import SolutionExamples, SolutionPlayed, SolvedCalls, play_solution
from headrace.infra.recipe import plug_in_sources
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.producers.feed.worked_examples import find_first_environment
from headrace.trainers.learner.warm_start import PromptAndCompletion

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "agents.md").read_text()
EXAMPLE = ROOT / "examples" / "tools_agent.py"


def play(environment: Any, index: int = 0) -> SolutionPlayed:
    return asyncio.run(play_solution(SolvedCalls(environment, Limits()), environment.problem("held_out", index)))


def forget() -> None:
    """Be as a new process, which has not loaded the module."""
    del sys.modules["tools_agent"]
    plug_in_sources._loaded.clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in (EXAMPLE, EXAMPLE.with_suffix(".toml")):
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tools_agent", raising=False)
    monkeypatch.setattr(plug_in_sources, "_loaded", {})
    return tmp_path


def test_the_page_shows_the_example_and_counts_every_outcome() -> None:
    code = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert code == [EXAMPLE.read_text()]
    assert (
        re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
        == EXAMPLE.with_suffix(".toml").read_text()
    )
    assert len([line for line in code[0][code[0].index("class") :].splitlines() if line]) <= 25
    assert all(f"`{kind}`" in PAGE for kind in (*KINDS, "cut_outputs", "turns", "calls"))


def test_try_plays_the_example_and_says_what_is_wrong_with_a_solution(folder: Path) -> None:
    words = ["try", "tools_agent.toml", "--tasks", "1", "--set", "rollout.group_size=2"]
    words += ["--answer", "@price a", "--answer", "12"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert "worked solutions  16 of 16 give a reward of 1" in done.stdout
    assert re.search(r"generated +0 .* @price a *\n +observation +1 .* = \d+", done.stdout)

    (folder / "tools_agent.py").write_text(
        EXAMPLE.read_text().replace('problem.extra.get(item, "unknown item")', "problem.extra[item]")
    )
    forget()
    done = CliRunner().invoke(app, [*words[:-4], "--answer", "@price z", "--answer", "12"], env={"COLUMNS": "120"})
    assert "a tool failed in 1 of 2 episodes, where the policy read its error" in done.stdout
    assert "KeyError: 'z' at tools_agent.py:26 in price (solver, turn 1)" in done.stdout
    assert 'File "' in done.stdout

    broken = EXAMPLE.read_text().replace('f"@price', 'f"@prize')
    (folder / "tools_agent.py").write_text(broken)
    forget()
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
    assert done.exit_code == 1
    assert "worked solutions  0 of 16 give a reward of 1" in done.stdout
    assert "wrong: train 0: turn 1: there is no tool prize; the tools are price" in done.stdout


def test_the_solutions_of_the_ledger_get_a_reward_of_1() -> None:
    ledger = Ledger(1)
    isolated = IsolatedEnvironment(ledger)
    played = [play(isolated, index) for index in range(300)]
    assert {one.fault for one in played} == {""}
    assert {(len(one.turns), one.reward) for one in played} == {(3, 1.0)}
    assert ledger.problem("held_out", 3) == Ledger(2).problem("held_out", 3)
    assert ledger.problem("train", 3) != Ledger(2).problem("train", 3)
    tables = [ledger.problem(split, 0).extra for split in ("train", "held_out", "warm_start")]
    assert all(table != tables[0] for table in tables[1:])
    with pytest.raises(ValueError, match="most, the largest number of the world, must be 2 or more; got 1"):
        Ledger(1, most=1)


def test_a_ledger_with_a_number_of_tasks_repeats_these_and_no_held_out_problem() -> None:
    env, endless = Ledger(1, tasks=2), Ledger(1)
    assert (env.size("train"), env.size("held_out"), endless.size("train")) == (2, None, None)
    drawn = [env.problem("train", index).task_id for index in range(4)]
    assert drawn == [endless.problem("train", index % 2).task_id for index in range(4)]
    assert len({env.problem("held_out", index).task_id for index in range(4)}) == 4
    with pytest.raises(ValueError, match="tasks, the number of training problems, must be 1 or more; got 0"):
        Ledger(1, tasks=0)


def test_the_turns_of_solutions_are_the_worked_examples_of_a_warm_start(tmp_path: Path) -> None:
    recipe = load_recipe("tools")
    env = load_environment("ledger", 1, {})
    source = find_first_environment(recipe, "solver", {"sums": env})
    assert isinstance(source, GivesExamples)
    made = [source.example(index) for index in range(60)]
    assert {len(one.prompt) for one in made} == {1, 3, 5}, "every turn is taught"
    last = next(one for one in made if len(one.prompt) == 5)
    assert [message["role"] for message in last.prompt] == ["user", "assistant", "user", "assistant", "user"]
    assert last.prompt[-1]["content"] == f"= {last.completion}\n"

    shown = SolutionExamples(SolvedCalls(env, Limits()), "hermes").example(made.index(last))
    call = r'<tool_call>{"name": "(add|mul)", "arguments": {"a": \d+, "b": \d+}}</tool_call>'
    assert re.fullmatch(call, shown.prompt[4]["content"])
    tokenizer = save_tokenizer(tmp_path)
    whole = PromptAndCompletion(shown.prompt, shown.completion, shown.template_arguments, shown.tools)
    prompt = tokenizer.decode(whole.encode_prompt(chat_tokenizer()))
    assert all(f'"name": "{name}"' in prompt for name in ("get", "add", "mul"))
