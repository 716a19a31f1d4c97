"""Reads what of a Dockerfile a box can replay: COPY, ENV, WORKDIR, and RUN without a network.

FROM is read, but its image is not used: a box shows the programs of this machine.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from headrace.envs.sandbox.inside.tree import HOME
from headrace.envs.sandbox.namespace_box import check_new_folder
from headrace.envs.sandbox.namespaces import find_python
from headrace.infra.errors import UsageError

FOLDER = "/app"
"""Where commands begin if there is no WORKDIR."""
READ = "FROM, WORKDIR, ENV, COPY and RUN"
_NETWORK = re.compile(
    r"\b(apt-get|apt|apk|yum|dnf|curl|wget|pip3? install|uv (pip|sync|add|tool)|conda install|npm (i|ci|install)|yarn|"
    r"git clone|cargo install|gem install|go (get|install))\b"
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


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
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskRefused(f"{file}: cannot be read: {error}") from error
    for number, line in _join_lines(text):
        where, (word, _, rest) = f"{file}:{number}", line.partition(" ")
        match word.upper():
            case "FROM":
                stages += 1
                if stages > 1:
                    _refuse(where, line, "a box has no stages", "write what the first stage makes into environment/")
            case "WORKDIR":
                image.folder = _join(where, image, rest.strip())
                image.written.add(image.folder)
            case "ENV":
                image.env |= _read_variables(where, image, rest)
            case "COPY":
                image.steps.append(_read_copy(where, image, rest, file.parent))
            case "RUN":
                image.steps.append(Step(where, image.folder, _read_run(where, rest)))
            case _:
                _refuse(
                    where, line, f"only {READ} are replayed in a box", "delete the line if the task works without it"
                )
    return image


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line of each instruction, and the instruction in one line."""
    begun, parts = 0, list[str]()
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = raw.strip()
        if line.startswith("#") or (not line and number <= len(text.splitlines())):
            continue
        begun = begun or number
        parts.append(line.removesuffix("\\").rstrip())
        if not line.endswith("\\"):
            if whole := " ".join(parts).strip():
                yield begun, whole.replace("\t", " ")
            begun, parts = 0, []


def _refuse(where: str, line: str, why: str, remedy: str) -> NoReturn:
    raise TaskRefused(f"{where}: `{line:.60}` is refused: {why}; {remedy}")


def _expand(where: str, image: Image, text: str) -> str:
    path = f"{Path(find_python()).parent}:/usr/local/bin:/usr/bin:/bin"
    known = {"PATH": path, "HOME": HOME, **image.env}

    def find_value(found: re.Match[str]) -> str:
        if (name := found[1] or found[2]) not in known:
            _refuse(where, text, f"the variable {name} has no value here", "write the value")
        return known[name]

    return _VARIABLE.sub(find_value, text)


def _join(where: str, image: Image, path: str) -> str:
    """Return an absolute path that a box can have. Raises TaskRefused."""
    whole = posixpath.normpath(posixpath.join(image.folder, _expand(where, image, path.strip("\"'"))))
    try:
        check_new_folder(whole)
    except UsageError as error:
        _refuse(where, path, str(error), "use a folder such as /app")
    return whole


def _read_variables(where: str, image: Image, rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:  # the old form, `ENV NAME a value`
        words = [f"{words[0]}={' '.join(words[1:])}"]
    pairs = [_expand(where, image, word).partition("=") for word in words]
    return {name: value for name, _, value in pairs}


def _read_copy(where: str, image: Image, rest: str, root: Path) -> Step:
    words = [word for word in shlex.split(rest) if not word.startswith("--chown=")]
    if rest.startswith("["):
        words = json.loads(rest)
    if len(words) < 2 or words[0].startswith(("-", "<<")):
        _refuse(where, f"COPY {rest}", "only files of environment/ are copied", "use `COPY SOURCE TARGET`")
    *names, target = words
    sources = [found for name in names for found in _find_sources(where, name, root)]
    whole = _join(where, image, target)
    is_folder = target.endswith(("/", ".")) or len(sources) > 1 or whole in {image.folder, *image.written}
    copies = []
    for source in sources:
        to = whole if source.is_dir() or not is_folder else posixpath.join(whole, source.name)
        copies.append((source, to))
        image.written.add(to if source.is_dir() else posixpath.dirname(to))
        _join(where, image, posixpath.dirname(to) if source.is_file() else to)
    return Step(where, image.folder, copies=tuple(copies))


def _find_sources(where: str, name: str, root: Path) -> list[Path]:
    plain = posixpath.normpath(name.lstrip("/"))
    found = [root] if plain == "." else [] if plain.startswith("..") else sorted(root.glob(plain))
    if not found:
        _refuse(where, f"COPY {name}", f"there is no {name} in {root}", "copy what is there")
    return found


def _read_run(where: str, rest: str) -> str:
    if rest.startswith("-") or "<<" in rest:
        _refuse(where, f"RUN {rest}", "options and here-documents are not read", "put a script into environment/")
    command = shlex.join(json.loads(rest)) if rest.startswith("[") else rest
    if needs := _NETWORK.search(command):
        remedy = "install it on this machine, whose /usr is seen in boxes, and delete the line"
        _refuse(where, f"RUN {rest}", f"`{needs[0]}` needs a network, and boxes have none", remedy)
    return command
