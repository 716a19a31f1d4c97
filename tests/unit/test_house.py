"""The rules of the house that no linter knows: who imports whom, what starts light, what is named how and where."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from subjects import SUBJECTS

from headrace.envs.worlds.contract import Step
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.records import RECORDS

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "schemas": {"schemas"},
    "infra": {"schemas", "infra"},
    "envs": {"schemas", "infra", "envs"},
    "producers": {"schemas", "infra", "envs", "producers"},
    "consumers": {"schemas", "infra", "consumers"},
    "trainers": {"schemas", "infra", "trainers"},
    "ledger": {"schemas", "infra", "ledger"},
    "ops": {"schemas", "infra", "envs", "producers", "consumers", "trainers", "ledger", "ops"},
    "app": {"schemas", "infra", "envs", "producers", "consumers", "trainers", "ledger", "ops", "app"},
    "recipes": {"recipes"},
    "benchmarks": {"schemas", "infra", "envs", "producers", "consumers", "trainers", "ledger", "ops", "benchmarks"},
}
NOT_SHIPPED = {"benchmarks"}
LIGHT = (
    "headrace.app.cli.main",
    "headrace.app.launcher.launcher",
    "headrace.ops.preflight.table",
    "headrace.producers.feed.feeder",
    "headrace.consumers.curate.curator",
    "headrace.consumers.evaluate.evaluator",
    "headrace.trainers.scheduler",
    "headrace.ops.audit.report",
    "headrace.ops.lineage.lineage",
    "headrace.ops.figures.summary",
    "headrace.app.views.live",
    "headrace.ops.lineage.inspection",
    "headrace.envs.arithmetic",
    "headrace.envs.jsonl",
)
HEAVY = {"torch", "transformers", "reasoning_gym"}
NOTHING_WORDS = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "base", "core", "lib"}
MOST_CODE_LINES = 300
MOST_CLASS_LINES = 200
MOST_FUNCTION_LINES = 60
MOST_ATTRIBUTES = 20
OVER_THE_LIMIT: dict[str, str] = {}
"""File, or class of it, to the reason why it may be longer or hold more than others."""
BUDGET = {
    "app": 5250,
    "benchmarks": 5250,
    "consumers": 3000,
    "envs": 9800,
    "infra": 11700,
    "ledger": 900,
    "ops": 14000,
    "producers": 8800,
    "recipes": 0,
    "schemas": 1500,
    "trainers": 6800,
}
"""Room to the most lines of code that it may have. A budget is raised only with a capability that the commit names."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def modules(*rooms: str) -> Iterator[Path]:
    for room in rooms or ALLOWED:
        yield from sorted((ROOT / room).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def room_of(module: str) -> str:
    """Return the room that a module lies in, by the name that it is imported by; nothing for other packages."""
    first, *rest = module.split(".")
    if first == "headrace":
        return rest[0] if rest else ""
    return first if first in NOT_SHIPPED else ""


def docstring_lines(tree: ast.AST) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for room in ALLOWED
        for path in modules(room)
        for name in imported(tree_of(path))
        if room_of(name) in ALLOWED.keys() - ALLOWED[room]
    ]

    assert not wrong


def test_what_must_start_fast_imports_no_torch() -> None:
    code = "import importlib, sys\n" + "".join(
        f"importlib.import_module({module!r})\nprint({module!r}, *({HEAVY!r} & set(sys.modules)))\n" for module in LIGHT
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)

    assert tuple(done.stdout.splitlines()) == LIGHT, "what stands after the first of them was imported by it"


def sub_room(module: str) -> str:
    """Return the folder below a room that a module lies in; a file beside such folders is a sub-room of its own."""
    return ".".join(module.split(".")[:3])


def arrows_between_sub_rooms() -> dict[str, set[str]]:
    """Return sub-room to the sub-rooms of the same room that it imports from, inside functions too."""
    known = {f"headrace.{str(path.relative_to(ROOT).with_suffix('')).replace('/', '.')}" for path in modules()}
    arrows: dict[str, set[str]] = {}
    for path in modules(*(ALLOWED.keys() - NOT_SHIPPED)):
        here = sub_room(f"headrace.{str(path.relative_to(ROOT).with_suffix('')).replace('/', '.')}")
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ImportFrom | ast.Import):
                continue
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                full = f"{package}{alias.name}"
                there = sub_room(full if full in known else full.rpartition(".")[0])
                if there != here and there.split(".")[:2] == here.split(".")[:2]:
                    arrows.setdefault(here, set()).add(there)
    return arrows


def test_no_sub_rooms_import_in_a_circle() -> None:
    list(TopologicalSorter(arrows_between_sub_rooms()).static_order())  # raises CycleError with the circle


def test_nothing_of_ours_is_imported_but_as_headrace() -> None:
    """A user's own folder may hold packages called `envs` or `infra`."""
    bare = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in [*modules(), *(ROOT / "tests").rglob("*.py")]
        for name in imported(tree_of(path))
        if name.partition(".")[0] in ALLOWED.keys() - NOT_SHIPPED
    ]

    assert not bare


def test_no_file_is_named_by_a_word_that_says_nothing_or_by_its_version() -> None:
    stems = {path.stem: path for path in modules()}

    assert not NOTHING_WORDS & stems.keys()
    assert not [stem for stem in stems if re.search(r"_v\d+$|_(old|new|debug)$", stem)]


def code_lines(path: Path) -> set[int]:
    """Return the numbers of the lines of a file that are code: no blanks, comments or docstrings."""
    skipped = docstring_lines(tree_of(path))
    numbered = enumerate(path.read_text().splitlines(), 1)
    return {number for number, line in numbered if line.strip() and not line.strip().startswith("#")} - skipped


def is_plain_record(definition: ast.ClassDef) -> bool:
    """Tell whether a class only holds fields that a record, report or section of the recipe has."""
    frozen = any("frozen=True" in ast.unparse(decorator) for decorator in definition.decorator_list)
    return frozen or any(ast.unparse(parent) in {"NamedTuple", "BaseModel", "Settings"} for parent in definition.bases)


def attributes_of(definition: ast.ClassDef) -> set[str]:
    """Return the names of what an object of a class holds: fields that it declares, and all that is set on `self`."""
    declared = {
        node.target.id
        for node in definition.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and not ast.unparse(node.annotation).startswith("ClassVar")
    }
    return declared | {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def what_is_over_the_limit() -> Iterator[str]:
    for path in modules():
        name, lines = str(path.relative_to(ROOT)), code_lines(path)
        if len(lines) > MOST_CODE_LINES:
            yield name
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                own = lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                too_many = len(attributes_of(node)) > MOST_ATTRIBUTES and not is_plain_record(node)
                if too_many or len(own) > MOST_CLASS_LINES:
                    yield f"{name}:{node.name}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                if len(own) > MOST_FUNCTION_LINES:
                    yield f"{name}:{node.name}"


def test_no_file_class_or_function_is_longer_than_one_can_hold_in_mind() -> None:
    found = set(what_is_over_the_limit())

    assert not found - OVER_THE_LIMIT.keys(), "split these by what they are about, or write down why they are so long"
    assert not OVER_THE_LIMIT.keys() - found, "these are within the limits: take them out of the table"


def test_no_room_has_more_code_than_its_budget_and_tests_are_at_most_the_product() -> None:
    lines = {room: sum(len(code_lines(path)) for path in modules(room)) for room in ALLOWED}
    tests = sum(len(code_lines(path)) for path in (ROOT / "tests").rglob("*.py"))

    assert not {room: count for room, count in lines.items() if count > BUDGET[room]}, "shorten it"
    assert tests <= sum(count for room, count in lines.items() if room not in NOT_SHIPPED)


def reads_of_the_environment(tree: ast.AST) -> Iterator[str]:
    """Yield the names of variables that are read by name, and constants that name one of ours."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
                    yield name
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
                yield name
            case ast.Constant(value=str(name)) if re.fullmatch(r"HEADRACE_[A-Z0-9_]+", name):
                yield name


def test_environment_variables_are_named_in_one_file_and_nowhere_else() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        if path != ROOT / "infra" / "environment.py"
        for name in reads_of_the_environment(tree_of(path))
    ]

    assert not found


def test_files_are_locked_in_one_file_and_nowhere_else() -> None:
    found = [
        path.relative_to(ROOT).as_posix() for path in modules() if {"fcntl", "filelock"} & set(imported(tree_of(path)))
    ]

    assert found == ["infra/file_locks.py"]


def test_the_wheel_holds_every_room_and_its_data() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "src" / "headrace").iterdir() if path.is_symlink()}

    assert links == {room: Path("..", "..", room) for room in ALLOWED.keys() - NOT_SHIPPED}
    assert all((ROOT / room / "__init__.py").exists() for room in links)
    for record in RECORDS:
        assert resources.files("headrace.schemas").joinpath("avsc", f"{record.__name__}.avsc").is_file()
    assert resources.files("headrace.recipes").joinpath("arithmetic.toml").is_file()
    assert resources.files("headrace.recipes").joinpath("efficient-data", "ds.toml").is_file()
    assert resources.files("headrace.infra.embedded").joinpath("kafka-jars.json").is_file()


def test_every_dependency_is_pinned_and_no_host_is_named() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pins = dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\n]+)", text, re.MULTILINE))
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]

    assert "://" not in text
    assert not [line for line in wanted if re.split(r"[<>=\[ ]", line)[0] not in pins]


# ----------------------------------------------------------------------------------------------------- what people read


def linked_from(page: Path) -> Iterator[tuple[str, str]]:
    """Yield file and anchor of every relative link of a page, code left out."""
    text = re.sub(r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


def anchors_of(page: Path) -> set[str]:
    """Return what links to headings of a page look like, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_relative_link_leads_somewhere() -> None:
    links = [(page, *link) for page in PAGES for link in linked_from(page)]
    targets = {(page, file): (page.parent / file).resolve() if file else page for page, file, _ in links}
    assert not {page.name: file for (page, file), target in targets.items() if not target.exists()}
    assert not [
        f"{page.name}: {file}#{anchor}"
        for page, file, anchor in links
        if anchor and anchor not in anchors_of(targets[page, file])
    ]


def test_every_page_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"

    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {file for file, _ in linked_from(index)} == {
        index.name
    }


def test_every_target_of_make_that_a_page_names_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+)%?:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {f"test-{subject}" for subject in SUBJECTS}

    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
        code = re.findall(r"`(make [^`\n]+)`", text) + re.findall(r"^(make .+)$", "\n".join(blocks), re.MULTILINE)
        named = {match[1] for one in code if (match := re.match(r"make ([a-z-]+)", one))}
        assert not named - targets, page


def test_every_whole_recipe_on_a_page_is_one(tmp_path: Path) -> None:
    for page in PAGES:
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            table = tomllib.loads(block)
            if {"name", "extends"} <= table.keys():
                (tmp_path / "own.toml").write_text(block)
                load_recipe(str(tmp_path / "own.toml"))
            elif {"name", "workflows"} <= table.keys():
                Recipe.model_validate(table)


def test_the_environment_on_the_page_keeps_the_contract() -> None:
    code, world = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL | re.MULTILINE
    )
    found: dict[str, Any] = {}
    exec(f"{code}\n{world}", found)  # noqa: S102 - ours
    guess = found["Guess"](seed=1)
    problem = guess.problem("train", 0)
    *_, last = [guess.act(problem, answer) for answer in guess.solve(problem)]
    assert last == Step("right", 1.0, done=True)
    problem = guess.problem("train", 1)
    assert [guess.act(problem, "x").done for _ in range(4)] == [False] * 3 + [True]
    echo = found["Echo"](seed=1, count=3)
    splits = ("train", "held_out", "warm_start")
    problems = [echo.problem(split, index) for split in splits for index in range(echo.size(split))]
    assert len({problem.task_id for problem in problems}) == len({problem.prompt for problem in problems}) == 9
    assert [echo.score(problems[0], text).reward for text in (problems[0].answer, "", "no")] == [1, 0, 0]
    with pytest.raises(ValueError, match="count must be 1 or more; got 0"):
        found["Echo"](seed=1, count=0)


# ---------------------------------------------------------------------------------------------------------- the walk


WALK = (ROOT / "docs" / "walk.md").read_text()
LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)")


def functions_in(path: Path) -> dict[str, ast.AST]:
    """Return the functions and classes of a file, and the methods as `Class.method`."""
    found: dict[str, ast.AST] = {}
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member.name}": member for member in node.body if hasattr(member, "name")}
    return found


def test_every_hop_of_the_walk_is_a_function_of_its_file() -> None:
    hops = LINK.findall(WALK)

    assert len(hops) > 20
    assert not [(name, file) for name, file in hops if name not in functions_in(ROOT / file)]


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without the bodies of the functions in it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from own_nodes(node)


def calls_of(function: ast.AST, *, by_another_thread: bool = False) -> set[str]:
    """Return the names that a function calls, without their objects, itself or in functions of its own that it calls.

    With `by_another_thread` also the names that it gives to a call, and those that any function in it calls.
    """
    nodes = list(ast.walk(function) if by_another_thread else own_nodes(function))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = [name for call in calls for name in (call.func, *(call.args if by_another_thread else ()))]
    found = {ast.unparse(name).rpartition(".")[2] for name in names if isinstance(name, ast.Name | ast.Attribute)}
    inner = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in found]
    return found.union(*map(calls_of, inner))


def test_every_arrow_of_the_walk_is_a_call() -> None:
    arrows = list(re.finditer(r"→\s+\[`(?:\w+\.)?(\w+)`\]", WALK))
    wrong = []
    for arrow in arrows:
        before = WALK[: arrow.start()]
        said = re.findall(r"`([\w.]+)`", before)[-1]
        caller, file = next(hop for hop in reversed(LINK.findall(before)) if f".{hop[0]}".endswith(f".{said}"))
        is_threaded = "thread" in before.rpartition(f"`{said}`")[2]
        called = calls_of(functions_in(ROOT / file)[caller], by_another_thread=is_threaded)
        if not {arrow[1], "run_loop", "run_alone"} & called:
            wrong.append(f"{caller} → {arrow[1]}")

    assert len(arrows) > 20
    assert not wrong


# ---------------------------------------------------------------------------------------------- the tree of folders


def read_tree() -> dict[str, str]:
    """Return path to description of every line in the block after `<!-- tree -->`; two blanks are one level."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"<!-- tree -->\s*```[a-z]*\n(.*?)```", text, re.DOTALL)
    assert block, "CONTRIBUTING.md has no fenced block after <!-- tree -->"
    found: dict[str, str] = {}
    above: list[str] = []
    for line in filter(str.strip, block[1].splitlines()):
        name, _, about = line.strip().partition(" ")
        level = (len(line) - len(line.lstrip())) // 2
        above = [*above[:level], name]
        found["".join(above)] = about.strip()
    return found


def folders_that_hold_something() -> Iterator[str]:
    """Yield every folder with Python code in it or below it, down to the second level."""
    yield "recipes/"
    yield "tests/"
    for room in ALLOWED.keys() - {"recipes"}:
        for path in (ROOT / room).rglob("*"):
            if path.suffix == ".py":
                parts = path.parent.relative_to(ROOT).parts[:2]
                yield from ("/".join(parts[: end + 1]) + "/" for end in range(len(parts)))


def test_the_tree_of_folders_is_true() -> None:
    tree = read_tree()
    there = {*folders_that_hold_something(), "docs/"}

    assert not there - tree.keys(), "these are missing in the tree"
    assert not [name for name in tree if not name.endswith("/")], "the tree names folders only"
    assert not [name for name in tree if not (ROOT / name).is_dir()], "these are in the tree and nowhere else"
    assert not [name for name, about in tree.items() if not about], "these are not described"
