"""Reads what of a Dockerfile a box can replay: COPY, ENV, WORKDIR, and RUN without a network.

FROM is read, but its image is not used: a box shows the programs of this machine.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import NoReturn

from headrace.envs.sandbox.inside.tree import HOME
from headrace.envs.sandbox.namespace_box import check_new_folder
from headrace.envs.sandbox.namespaces import find_python
from headrace.infra.errors import UsageError

FOLDER = "/app"
"""Where commands begin if there is no WORKDIR."""
NETWORK = re.compile(
    r"\b(apt-get|apt|apk|yum|dnf|curl|wget|pip3? install|uv (pip|sync|add|tool)|conda install|npm (i|ci|install)|yarn|"
    r"git clone|cargo install|gem install|go (get|install))\b"
)


class TaskRefused(UsageError):
    """A task cannot be played here; the message has file and line, and says what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line that is replayed in a box."""

    where: str
    """File and line."""
    folder: str
    """Where its command begins."""
    command: str = ""
    copies: tuple[tuple[Path, str], ...] = ()
    """File or folder outside, and its path in the box."""


@dataclass(slots=True)
class Image:
    """What a Dockerfile makes."""

    folder: str = FOLDER
    """Where commands begin."""
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    """Folders of WORKDIR and COPY."""

    @property
    def folders(self) -> list[str]:
        """Return the folders that a box needs to be writable, without those within others of them."""
        wanted = {self.folder, *self.written}
        return sorted(one for one in wanted if not any(one.startswith(f"{other}/") for other in wanted))


def read_dockerfile(file: Path) -> Image:
    """Return what a Dockerfile makes; paths of COPY are below the file's folder. Raises TaskRefused."""
    image, stages = Image(), 0
    for number, line in _join_lines(file.read_text(errors="replace")):
        where, (word, rest) = f"{file}:{number}: `{line:.60}`", (*line.split(None, 1), "")[:2]
        word, stages = word.upper(), stages + (word.upper() == "FROM")
        if stages > 1:
            _refuse(where, "a box has no stages: write what the first stage makes into environment/")
        elif word == "WORKDIR":
            image.folder = _resolve(where, image, rest)
            image.written.add(image.folder)
        elif word == "ENV":
            image.env |= _read_variables(where, image, rest)
        elif word == "COPY":
            image.steps.append(Step(where, image.folder, copies=tuple(_read_copy(where, image, rest, file.parent))))
        elif word == "RUN":
            image.steps.append(Step(where, image.folder, _read_run(where, rest)))
        elif word != "FROM":
            _refuse(where, "a box replays only COPY, ENV, WORKDIR and RUN: delete the line if the task can do without")
    return image


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line of each instruction, and the instruction in one line."""
    begun, whole = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip() if begun else raw.strip()
        if line and not line.lstrip().startswith("#"):
            begun, whole = begun or number, whole + line.removesuffix("\\")
            if not line.endswith("\\"):
                yield begun, whole
                begun, whole = 0, ""
    if whole.strip():
        yield begun, whole


def _refuse(where: str, why: str) -> NoReturn:
    raise TaskRefused(f"{where} is refused: {why}")


def _split(where: str, rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        _refuse(where, f"its words cannot be read ({error}): mend its quotes")


def _expand(where: str, image: Image, text: str) -> str:
    path = f"{Path(find_python()).parent}:/usr/local/bin:/usr/bin:/bin"
    try:
        return Template(text).substitute({"PATH": path, "HOME": HOME, **image.env})
    except (KeyError, ValueError):
        _refuse(where, "a variable in it has no value here: write the value")


def _resolve(where: str, image: Image, path: str) -> str:
    """Return an absolute path that a box can have. Raises TaskRefused."""
    whole = posixpath.normpath(posixpath.join(image.folder, _expand(where, image, path.strip("\"' "))))
    try:
        check_new_folder(whole)
    except UsageError as error:
        _refuse(where, f"{error}; use one such as /app")
    return whole


def _read_variables(where: str, image: Image, rest: str) -> dict[str, str]:
    words = [_expand(where, image, word) for word in _split(where, rest)]
    if not all("=" in word for word in words):
        _refuse(where, "write it as ENV NAME=value")
    return dict(word.split("=", 1) for word in words)


def _read_copy(where: str, image: Image, rest: str, root: Path) -> Iterator[tuple[Path, str]]:
    words = [word for word in _split(where, rest) if not word.startswith("--chown=")]
    if len(words) < 2 or words[0].startswith(("-", "<<", "[")):
        _refuse(where, "only files below environment/ are copied: write it as COPY SOURCE TARGET")
    *names, target = words
    sources = [found for name in names for found in _find_sources(root, name)]
    if not sources:
        _refuse(where, f"{root} has no such file")
    whole = _resolve(where, image, target)
    is_folder = target.endswith(("/", ".")) or len(sources) > 1 or whole in {image.folder, *image.written}
    for source in sources:
        to = whole if source.is_dir() or not is_folder else posixpath.join(whole, source.name)
        image.written.add(_resolve(where, image, to if source.is_dir() else posixpath.dirname(to)))
        yield source, to


def _find_sources(root: Path, name: str) -> list[Path]:
    plain = posixpath.normpath(name.lstrip("/"))
    return [root] if plain == "." else [] if plain.startswith("..") else sorted(root.glob(plain))


def _read_run(where: str, command: str) -> str:
    if command.startswith(("-", "[")) or "<<" in command:
        _refuse(where, "only plain commands are run: put the rest into a script in environment/")
    if needs := NETWORK.search(" ".join(command.split())):
        _refuse(
            where,
            f"`{needs[0]}` needs a network, and boxes have none: install it on this machine, whose /usr is seen in "
            "boxes, and delete the line",
        )
    return command
