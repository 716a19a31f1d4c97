"""docs/data-algorithms.md and the pages beside it say what there is, and what they show works."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from made_groups import candidate

from headrace.consumers.algorithms.chain import ALGORITHMS, Chain, load_chain
from headrace.consumers.algorithms.contract import Candidate, Drop, Keep

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "data-algorithms.md").read_text()
REPLAYS = (DOCS / "replay.md").read_text()
EXAMPLES = [
    block.partition("```")[0] for block in (DOCS / "own-data-algorithm.md").read_text().split("```python\n")[1:]
]
ROWS = {row[1].strip(" `"): row[3] for line in PAGE.splitlines() if len(row := line.split("|")) == 6 and "`" in row[1]}
REPLAYED = ("ratio", "capacity", "max_uses", "max_staleness")
SHOWN = {float: "{:g}", str: '"{}"', bool: "{!s}"}


def test_the_table_lists_every_algorithm_in_the_order_of_the_code() -> None:
    assert [name for name in ROWS if name != "use"] == list(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_is_on_the_page_with_its_default(name: str) -> None:
    module, _, attribute = ALGORITHMS[name].partition(":")
    for setting in inspect.signature(getattr(importlib.import_module(module), attribute)).parameters.values():
        there = REPLAYS if name.startswith("replay") and setting.name in REPLAYED else ROWS[name]
        assert f"`{setting.name}`" in there, setting
        default = setting.default
        if default is setting.empty or setting.name in {"seed", "limit", "buffer"} or there is REPLAYS:
            continue
        shown = SHOWN.get(type(default), "{}").format(default).replace("e-0", "e-")
        assert f"`{setting.name}` {shown.lower() if default in (True, False) else shown}" in there, setting


def test_the_pages_chain_is_one() -> None:
    table = tomllib.loads(PAGE.partition("```toml\n")[2].partition("```")[0])["curate"]["chain"]
    named = [(settings.pop("use"), settings) for settings in table]
    load_chain([(name, {"limit": 1} if name == "max_staleness" else settings) for name, settings in named])


@pytest.fixture
def _page(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_page")
    exec(EXAMPLES[0], module.__dict__)  # noqa: S102 - ours
    monkeypatch.setitem(sys.modules, "my_page", module)


def rested(versions: int) -> Chain:
    return load_chain([("my_page:Rested", {"versions": versions})])


def asked(task: str) -> Candidate:
    whole = candidate(1.0, 0.0)
    return dataclasses.replace(whole, group=dataclasses.replace(whole.group, task_id=task))


@pytest.mark.usefixtures("_page")
def test_the_pages_own_algorithm_works_and_goes_on_from_its_snapshot() -> None:
    chain = rested(2)
    seen = [("a", 1), ("a", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 4)]
    verdicts = [type(chain.process(asked(task), clock)[0]) for task, clock in seen[:4]]
    again = rested(2)
    again.restore(json.loads(json.dumps(chain.snapshot())))
    verdicts += [type(again.process(asked(task), clock)[0]) for task, clock in seen[4:]]
    assert verdicts == [Keep, Drop, Keep, Drop, Keep, Keep]


def test_the_pages_example_from_python_works() -> None:
    exec(EXAMPLES[1], {})  # noqa: S102 - ours
