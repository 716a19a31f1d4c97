"""What a user's shell, home folder and file systems may be like."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest

from headrace.infra.embedded.data_folder import UP, DataFolder
from headrace.infra.environment import (
    CACHE_VARIABLE,
    KAFKA_CLIENT_VARIABLE,
    USER_CACHE_VARIABLE,
    cache_folder,
    server_environment,
)
from headrace.infra.errors import UsageError
from headrace.infra.kafka.client_settings import read_client_settings
from headrace.infra.whole_folder import write_new_folder
from headrace.ops.compare.sweep_file import load_sweep
from headrace.ops.preflight.table import examine_machine


def test_nothing_of_the_shell_reaches_an_embedded_server_but_what_any_program_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "KAFKA_OPTS", "CLASSPATH", "RCLONE_ADDR", "MINIO_ROOT_USER", "AWS_PROFILE"):
        monkeypatch.setenv(name, "of the user")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PATH", "/bin")
    given = server_environment()
    assert "of the user" not in given.values()
    assert (given["LC_ALL"], given["PATH"]) == ("C.UTF-8", "/bin")


def test_a_user_without_a_home_folder_is_given_the_name_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.delenv(USER_CACHE_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=f"has no home folder.*set {CACHE_VARIABLE}"):
        cache_folder()
    findings = {finding.what: finding for finding in examine_machine()}
    assert CACHE_VARIABLE in findings["cache folder"].detail
    assert findings["file locks"].ok
    monkeypatch.setenv(CACHE_VARIABLE, "/somewhere")
    assert cache_folder() == Path("/somewhere")


def test_a_folder_of_a_user_that_there_is_not_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"the data folder ~nosuchuser/x: .*the full path"):
        DataFolder(Path("~nosuchuser/x"))
    with pytest.raises(UsageError, match=r"the sweep ~nosuchuser/x: .*the full path"):
        load_sweep("~nosuchuser/x")
    monkeypatch.setenv(KAFKA_CLIENT_VARIABLE, "~nosuchuser/x")
    with pytest.raises(UsageError, match=rf"{KAFKA_CLIENT_VARIABLE} ~nosuchuser/x: .*the full path"):
        read_client_settings()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_named_with_the_remedy(
    code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(code, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(UsageError, match=f"{tmp_path}: this file system does not support flock") as refused,
        DataFolder(tmp_path).hold(UP),
    ):
        pass
    assert "Errno" not in str(refused.value)
    with (
        pytest.raises(UsageError, match=f"cannot make {tmp_path}/out: this file system does not support flock"),
        write_new_folder(tmp_path / "out"),
    ):
        pass
    assert [finding.what for finding in examine_machine() if "does not support flock" in finding.detail] == [
        "file locks"
    ]
