"""Lets the CUDA build of torch import on a machine without a GPU and without the libraries of CUDA.

Each library that torch's own shared objects need and that is not installed becomes a small one with that name beside
them. It has the names that torch refers to; each returns an error code. The real `nvidia-cuda-runtime` has to be
installed: torch asks it whether there is a GPU. readelf, nm and gcc are needed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

LIBRARY_NAMES = {
    "cublas": "cublas(?!Lt)",
    "cublasLt": "cublasLt",
    "cudnn": "cudnn",
    "cufft": "cufft",
    "cufile": "cuFile",
    "cupti": "cupti",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusparse": "cusparse(?!Lt)",
    "cusparseLt": "cusparseLt",
    "nccl": "p?nccl",
    "nvJitLink": "nvJitLink",
    "nvToolsExt": "nvtx",
    "nvrtc": "nvrtc",
    "nvshmem_host": "nvshmem",
}
"""Library to how the names in it begin."""


class _Needed(NamedTuple):
    """What the shared objects of a folder need of others."""

    libraries: set[str]
    symbols: dict[str, str]
    """Name to the version that it is asked for by, or an empty text."""
    versions: dict[str, set[str]]
    """Library to the versions that it has to define."""


def write_stand_ins(packages: Path) -> int:
    """Write what is missing for the torch in a folder of packages; return how many libraries that was."""
    folder = packages / "torch" / "lib"
    installed = {library.name for library in packages.glob("nvidia/**/lib/*.so*")}
    needed = _read_needed(folder)
    written = 0
    for library in sorted(needed.libraries - installed):
        found = re.match(r"lib(\w+)\.so\.\d+$", library)
        if found and found[1] in LIBRARY_NAMES:
            begins = LIBRARY_NAMES[found[1]]
            symbols = {name: version for name, version in needed.symbols.items() if re.match(begins, name)}
            _write_library(folder / library, symbols, needed.versions.get(library, set()))
            written += 1
    return written


def _read_needed(folder: Path) -> _Needed:
    needed = _Needed(set(), {}, {})
    for file in sorted(folder.glob("*.so")):
        needed.libraries.update(re.findall(r"NEEDED.*\[(\S+)\]", _read("readelf", "-d", file)))
        for line in _read("nm", "-D", "--undefined-only", file).splitlines():
            name, _, version = line.split()[-1].partition("@")
            needed.symbols[name] = version.lstrip("@") or needed.symbols.get(name, "")
        library = ""
        for line in _read("readelf", "-V", "-W", file).splitlines():
            if begins := re.search(r"Version:\s*1\s+File:\s*(\S+)", line):
                library = begins[1]
            elif library and (found := re.search(r"Name:\s*(\S+)\s+Flags", line)):
                needed.versions.setdefault(library, set()).add(found[1])
    return needed


def _write_library(path: Path, symbols: dict[str, str], versions: set[str]) -> None:
    lines = [".text", ".type stub,@function", "stub: mov $1,%eax", "ret", ".size stub,.-stub"]
    for name in symbols:
        lines += [f".globl {name}", f".type {name},@function", f".set {name},stub"]
    lines.append('.section .note.GNU-stack,"",@progbits\n')
    nodes: dict[str, list[str]] = {version: [] for version in versions}
    for name, version in symbols.items():
        if version:
            nodes.setdefault(version, []).append(name)
    with NamedTemporaryFile("w", suffix=".map") as file:
        for version, names in sorted(nodes.items()):
            exported = f"global: {'; '.join(names)};" if names else ""
            file.write(f"{version} {{ {exported} }};\n")
        file.flush()
        script = [f"-Wl,--version-script={file.name}"] if nodes else []
        command = [
            "gcc",
            "-shared",
            "-nostdlib",
            f"-Wl,-soname,{path.name}",
            *script,
            "-o",
            path,
            "-x",
            "assembler",
            "-",
        ]
        subprocess.run(command, input="\n".join(lines), text=True, check=True)


def _read(program: str, *words: str | Path) -> str:
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout
