"""The jars of the embedded Kafka and of MirrorMaker: pinned by coordinate and sha256, fetched once into a shared cache.

`kafka-jars.json` and `mirror-jars.json` beside this file are lock files. `--write-lock` rewrites them from the POMs.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from headrace.infra.environment import CACHE_VARIABLE, cache_folder
from headrace.infra.errors import Unavailable, UsageError
from headrace.infra.file_locks import take_lock

if TYPE_CHECKING:
    from jgo.maven import MavenContext

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"
LOCK_FILE = Path(__file__).with_name("kafka-jars.json")
MIRROR_LOCK = LOCK_FILE.with_name("mirror-jars.json")
ROOTS = {
    LOCK_FILE: f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    MIRROR_LOCK: f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
}
LOGGING = f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}!"
"""Kafka's artifacts bring no slf4j binding. Without the "!" jgo takes log4j's dependencyManagement for all of them, and
an older kafka-clients ends up beside the broker."""
FIXED_MTIME = 1_000_000_000
"""File time of every jar, in seconds since the epoch: another time would invalidate the JVM's AOT cache."""
OF_THE_CACHE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of the cache folder, not of the network."""
FETCH_THREADS = 8
FETCH_TIMEOUT_S = 60

_log = structlog.get_logger()


class JarUnavailable(Unavailable):
    """A jar is not in the cache and cannot be fetched."""


def read_lock(lock: Path = LOCK_FILE) -> dict[str, str]:
    """Return the pinned jars: `group:artifact:version` -> sha256."""
    pins: dict[str, str] = json.loads(lock.read_text())
    return pins


def jar_path(cache: Path, coordinate: str) -> Path:
    """Return the cache path of the jar of `group:artifact:version` (the layout of a Maven repository)."""
    group, artifact, version = coordinate.split(":")
    return cache / "m2" / group.replace(".", "/") / artifact / version / f"{artifact}-{version}.jar"


def fetch_class_path(
    cache: Path, progress: Callable[[str], None] | None = None, *, pins: Mapping[str, str] | None = None
) -> list[str]:
    """Return the paths of all pinned jars, verified; fetch missing and broken ones first, in parallel.

    If all are in the cache, no network is used. `progress` gets a sentence about the fetch. Raises JarUnavailable.
    """
    pins = read_lock() if pins is None else pins
    if _find_lacking(cache, pins):
        with _lock_cache(cache):
            lacking = _find_lacking(cache, pins)  # another run may have fetched them while we waited
            if lacking:
                _fetch_all(cache, {coordinate: pins[coordinate] for coordinate in lacking}, progress)
    return [str(jar_path(cache, coordinate)) for coordinate in pins]


def write_lock(cache: Path, lock: Path, root: str) -> None:
    """Walk the POMs of an artifact (slow: one request after the other) and pin the jars that it needs."""
    context = _maven(cache)
    dependencies = [context.create_dependency(artifact) for artifact in (root, LOGGING)]
    for dependency in dependencies:
        dependency.scope = dependency.scope or "compile"
    with _lock_cache(cache):
        resolved = [dependency for part in context.resolver.resolve(dependencies) for dependency in part]
        artifacts = [dependency.artifact for dependency in resolved if dependency.scope in {"compile", "runtime"}]
        with ThreadPoolExecutor(FETCH_THREADS) as pool:
            sums = pool.map(lambda artifact: _hash_file(artifact.resolve()), artifacts)
            pins = {f"{a.groupId}:{a.artifactId}:{a.version}": s for a, s in zip(artifacts, sums, strict=True)}
    lock.write_text(json.dumps(dict(sorted(pins.items())), indent=1) + "\n")
    _log.info("jars.locked", jars=len(pins), lock=str(lock))


def _find_lacking(cache: Path, pins: Mapping[str, str]) -> list[str]:
    with ThreadPoolExecutor(FETCH_THREADS) as pool:
        good = pool.map(lambda pin: _is_good(jar_path(cache, pin[0]), pin[1]), pins.items())
        return [coordinate for coordinate, ok in zip(pins, good, strict=True) if not ok]


def _is_good(jar: Path, want: str) -> bool:
    try:
        if _hash_file(jar) != want:
            return False
        if jar.stat().st_mtime != FIXED_MTIME:
            with suppress(OSError):  # of a cache that cannot be written the jar serves as well
                os.utime(jar, (FIXED_MTIME, FIXED_MTIME))
    except OSError:
        return False
    return True


def _fetch_all(cache: Path, pins: Mapping[str, str], progress: Callable[[str], None] | None) -> None:
    say = progress or (lambda _: None)
    say(f"fetching {len(pins)} jars of Kafka {KAFKA_VERSION} (all jars: 45 MB) into {cache}")
    context = _maven(cache)
    with ThreadPoolExecutor(FETCH_THREADS) as pool:
        fetched = pool.map(lambda pin: _fetch(context, cache, *pin), pins.items())
        for n, coordinate in enumerate(fetched, start=1):
            say(f"Kafka jars: {n} of {len(pins)} ({coordinate.split(':')[1]})")


def _fetch(context: MavenContext, cache: Path, coordinate: str, want: str) -> str:
    """Fetch and verify one jar; replace a broken one, which a killed download may leave."""
    jar = jar_path(cache, coordinate)
    group, artifact, version = coordinate.split(":")
    reason = remedy = ""
    for _ in range(3):
        jar.unlink(missing_ok=True)
        try:
            context.project(group, artifact).at_version(version).artifact().resolve()
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            reason, remedy = str(error), "connect this machine to the network and try again"
            if getattr(error, "errno", None) in OF_THE_CACHE:
                remedy = f"make {cache} writable, with room for the jars, and try again"
            continue
        if _is_good(jar, want):
            return coordinate
        reason = f"the sha256 of the fetched jar is not the one in {LOCK_FILE}"
        remedy = "check whether a proxy or mirror changes jars, and try again"
    jar.unlink(missing_ok=True)
    raise JarUnavailable(
        f"cannot fetch {coordinate} from Maven Central to {jar}: {reason}. Kafka needs its jars (45 MB) once: "
        f"{remedy}. Or copy the cache folder of a machine that has the jars to {cache}; HEADRACE_CACHE can name "
        "another place"
    )


def _maven(cache: Path) -> MavenContext:
    from jgo.maven import MavenContext  # half a second of imports, needed once

    return MavenContext(repo_cache=cache / "m2", timeout=FETCH_TIMEOUT_S)


@contextmanager
def _lock_cache(cache: Path) -> Iterator[None]:
    """Lock the cache, so that only one process at a time fetches into it."""
    with ExitStack() as open_files:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            file = open_files.enter_context((cache / "jars.lock").open("ab"))
            take_lock(file.fileno(), wait=True)
        except OSError as error:
            raise UsageError(
                f"Kafka's jars cannot be fetched into the cache folder {cache}: {error}; set {CACHE_VARIABLE} to "
                "another folder"
            ) from error
        yield


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Fetch the pinned jars into the cache, or with `--write-lock` pin them again."""
    parser = argparse.ArgumentParser(prog="python -m headrace.infra.embedded.jars", description=main.__doc__)
    parser.add_argument(
        "--write-lock", action="store_true", help="find all jars anew from their POM files, and write the lock files"
    )
    if parser.parse_args().write_lock:
        for lock, root in ROOTS.items():
            write_lock(cache_folder(), lock, root)
    fetch_class_path(cache_folder(), lambda words: _log.info("jars.progress", detail=words))


if __name__ == "__main__":
    main()
