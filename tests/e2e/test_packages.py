"""Wheel and sdist, each installed where nothing else is: they hold what the tree holds, and hide nothing of a user's.

The dependencies are those of this environment, by a line in a `.pth` file, which makes nothing there importable that
another `.pth` file brings: not the tree itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.packages
ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "own_project"
KINDS = ("wheel of the tree", "wheel of the sdist", "sdist")
SUFFIXES = {".py", ".typed", ".avsc", ".toml", ".json"}


def done(*words: str | Path, cwd: Path | None = None) -> str:
    """Run a program, without PYTHONPATH, and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    found = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def uv() -> str:
    own = ROOT / ".venv" / "uv" / "bin" / "uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        assert not os.environ.get("CI"), "there is no uv"
        pytest.skip("there is no uv, which builds")
    return found


@pytest.fixture(scope="module")
def built(uv: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What is built, by its kind."""
    folder = tmp_path_factory.mktemp("built")
    done(uv, "build", "--wheel", "--out-dir", folder / "tree", ROOT)
    done(uv, "build", "--out-dir", folder / "sdist", ROOT)
    [of_tree], [of_sdist] = (folder / "tree").glob("*.whl"), (folder / "sdist").glob("*.whl")
    [sdist] = (folder / "sdist").glob("*.tar.gz")
    return dict(zip(KINDS, (of_tree, of_sdist, sdist), strict=True))


@pytest.fixture(scope="module")
def install(
    uv: str, built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """Return the scripts and the packages of an environment that holds nothing but what was built."""
    made: dict[str, tuple[Path, Path]] = {}

    def installed(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            environment = tmp_path_factory.mktemp("environment")
            done(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, environment)
            done(uv, "pip", "install", "--quiet", "--python", environment / "bin" / "python", "--no-deps", built[kind])
            [packages] = (environment / "lib").glob("python*/site-packages")
            (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
            made[kind] = (environment / "bin", packages)
        return made[kind]

    return installed


@pytest.fixture(params=KINDS)
def installed(request: pytest.FixtureRequest, install: Callable[[str], tuple[Path, Path]]) -> tuple[Path, Path]:
    return install(request.param)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that holds packages called as our rooms, some of which raise when they are imported."""
    return Path(shutil.copytree(PROJECT, tmp_path / "project"))


def files_of(package: Path) -> dict[str, bytes]:
    walked = (Path(folder, name) for folder, _, names in os.walk(package, followlinks=True) for name in names)
    return {
        path.relative_to(package).as_posix(): path.read_bytes() for path in walked if path.parent.name != "__pycache__"
    }


def test_what_is_installed_is_what_the_tree_holds_file_by_file(installed: tuple[Path, Path]) -> None:
    tree, there = files_of(ROOT / "src" / "headrace"), files_of(installed[1] / "headrace")

    assert sorted(there) == sorted(tree)
    assert {name for name in tree if there[name] != tree[name]} == set()
    assert {Path(name).suffix for name in there} == SUFFIXES
    assert {
        "py.typed",
        "infra/embedded/kafka-jars.json",
        "recipes/arithmetic.toml",
        "schemas/avsc/Task.avsc",
    } <= there.keys()
    assert any(name.startswith("schemas/past/") for name in there)
    assert [path.name for path in installed[1].iterdir() if path.is_dir() and "headrace" not in path.name] == []


def test_the_rooms_cannot_be_imported_but_as_headrace(installed: tuple[Path, Path], tmp_path: Path) -> None:
    rooms = sorted(path.name for path in (ROOT / "src" / "headrace").iterdir() if path.is_symlink())
    code = (
        "import sys, headrace; from importlib.util import find_spec; print(headrace.__file__);"
        "print(*(room for room in sys.argv[1:] if find_spec(room) or not find_spec(f'headrace.{room}')))"
    )

    file, wrong = done(installed[0] / "python", "-P", "-c", code, *rooms, cwd=tmp_path).splitlines()

    assert Path(file).is_relative_to(installed[1])
    assert "infra" in rooms
    assert wrong == ""


def test_a_folder_with_packages_called_as_the_rooms_is_served_with_its_plug_ins(
    installed: tuple[Path, Path], project: Path
) -> None:
    scripts, _ = installed
    code = (
        "import sys; from headrace.app.launcher import beginning; from headrace.infra.recipe import recipe_file;"
        "beginning.check_names(recipe_file.load_recipe('run.toml'));"
        "from envs import coins; print(coins.__file__, 'infra' in sys.modules)"
    )

    assert "arithmetic.tasks.sums" in done(scripts / "headrace", "topics", "arithmetic", cwd=project)
    assert "own-project.tasks.coins" in done(scripts / "headrace", "topics", "run.toml", cwd=project)
    assert "arithmetic.tasks.sums" in done(scripts / "python", "-m", "headrace", "topics", "arithmetic", cwd=project)
    assert done(scripts / "python", "-P", "-c", code, cwd=project) == f"{project / 'envs' / 'coins.py'} False\n"


def test_a_run_of_plug_ins_in_such_a_folder_ends_well(
    install: Callable[[str], tuple[Path, Path]], project: Path
) -> None:
    scripts, _ = install("wheel of the sdist")

    done(scripts / "headrace", "up", "run.toml", "--set", "trainer.steps=2", "--summary", "summary.json", cwd=project)

    told = json.loads((project / "summary.json").read_text())
    assert (told["versions"], told["audit"]["ok"]) == (2, True)
