"""The rules of the house that no linter knows: who imports whom, what starts light, what is named how and where."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from headrace.infra.settings import Recipe
from headrace.schemas.records import RECORDS

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "schemas": {"schemas"},
    "infra": {"schemas", "infra"},
    "envs": {"schemas", "infra", "envs"},
    "producers": {"schemas", "infra", "envs", "producers"},
    "consumers": {"schemas", "infra", "consumers"},
    "trainers": {"schemas", "infra", "trainers"},
    "recipes": {"recipes"},
    "benchmarks": {"schemas", "infra", "envs", "producers", "consumers", "trainers", "benchmarks"},
}
NOT_SHIPPED = {"benchmarks"}
LIGHT = (
    "headrace",
    "headrace.infra.launcher",
    "headrace.infra.doctor",
    "headrace.producers.feeder",
    "headrace.consumers.curator",
    "headrace.consumers.evaluator",
    "headrace.consumers.compactor",
    "headrace.consumers.audit.report",
    "headrace.consumers.lineage",
    "headrace.consumers.summary",
    "headrace.consumers.page.live",
    "headrace.trainers.inspection",
    "headrace.envs.arithmetic",
    "headrace.envs.jsonl",
)
HEAVY = {"torch", "transformers", "reasoning_gym"}
NOTHING_WORDS = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "base", "core", "lib"}
MOST_CODE_LINES = 400
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules(*rooms: str) -> Iterator[Path]:
    for room in rooms or ALLOWED:
        yield from sorted((ROOT / room).rglob("*.py"))


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


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_imports_run_one_way(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        for name in imported(ast.parse(path.read_text()))
        if room_of(name) in ALLOWED.keys() - ALLOWED[room]
    ]

    assert not wrong


@pytest.mark.parametrize("module", LIGHT)
def test_what_must_start_fast_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}\nprint(*({HEAVY!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)

    assert done.stdout.strip() == ""


def test_nothing_of_ours_is_imported_but_as_headrace() -> None:
    """A user's own folder may hold packages called `envs` or `infra`."""
    bare = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in [*modules(), *(ROOT / "tests").rglob("*.py")]
        for name in imported(ast.parse(path.read_text()))
        if name.partition(".")[0] in ALLOWED.keys() - NOT_SHIPPED
    ]

    assert not bare


def test_no_file_is_named_by_a_word_that_says_nothing_or_by_its_version() -> None:
    stems = {path.stem: path for path in modules()}

    assert not NOTHING_WORDS & stems.keys()
    assert not [stem for stem in stems if re.search(r"_v\d+$|_(old|new|debug)$", stem)]


def test_no_module_is_named_after_a_dependency() -> None:
    names = {re.split(r"[<>=\[ ]", line)[0].replace("-", "_") for line in PROJECT["project"]["dependencies"]}

    assert "confluent_kafka" in names
    assert not names & {path.stem for path in modules()}


def test_no_file_is_longer_than_one_can_hold_in_mind() -> None:
    for path in modules():
        text = path.read_text()
        skipped = docstring_lines(ast.parse(text))
        lines = [
            line
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in skipped
        ]
        assert len(lines) <= MOST_CODE_LINES, path


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


def test_environment_variables_are_named_in_the_settings_and_nowhere_else() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        if path != ROOT / "infra" / "settings.py"
        for name in reads_of_the_environment(ast.parse(path.read_text()))
    ]

    assert not found


def test_the_wheel_holds_every_room_and_its_data() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "src" / "headrace").iterdir() if path.is_symlink()}

    assert links == {room: Path("..", "..", room) for room in ALLOWED.keys() - NOT_SHIPPED}
    assert all((ROOT / room / "__init__.py").exists() for room in links)
    for record in RECORDS:
        assert resources.files("headrace.schemas").joinpath("avsc", f"{record.__name__}.avsc").is_file()
    assert resources.files("headrace.recipes").joinpath("arithmetic.toml").is_file()
    assert resources.files("headrace.recipes").joinpath("efficient-data", "ds.toml").is_file()
    assert resources.files("headrace.infra").joinpath("kafka-jars.json").is_file()


def test_every_dependency_is_pinned_and_no_host_is_named() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pins = dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\n]+)", text, re.MULTILINE))
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]

    assert "://" not in text
    assert not [line for line in wanted if re.split(r"[<>=\[ ]", line)[0] not in pins]


def test_every_recipe_in_the_readme_is_one() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        Recipe.model_validate(tomllib.loads(block))


# ---------------------------------------------------------------------------------------------- the tree in the README


def tree_of_readme() -> dict[str, str]:
    """Return path to description of every line in the block after `<!-- tree -->`; two blanks are one level."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- tree -->\s*```[a-z]*\n(.*?)```", text, re.DOTALL)
    assert block, "README.md has no fenced block after <!-- tree -->"
    found: dict[str, str] = {}
    above: list[str] = []
    for line in filter(str.strip, block[1].splitlines()):
        name, _, about = line.strip().partition(" ")
        level = (len(line) - len(line.lstrip())) // 2
        above = [*above[:level], name]
        found["".join(above)] = about.strip()
    return found


def test_the_tree_in_the_readme_is_true() -> None:
    tree = tree_of_readme()
    there = {str(path.relative_to(ROOT)) for path in modules(*ALLOWED) if path.name != "__init__.py"}
    there |= {f"{path.relative_to(ROOT)}" for path in (ROOT / "recipes").rglob("*.toml")}
    folders = {f"{room}/" for room in ALLOWED} | {"tests/", "docs/"}

    assert not (there | folders) - tree.keys(), "these are missing in the tree"
    assert not [name for name in tree if not (ROOT / name).exists()], "these are in the tree and nowhere else"
    assert not [name for name, about in tree.items() if not about], "these are not described"
