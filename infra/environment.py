"""The environment variables that Headrace reads: their names are here and nowhere else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headrace.infra.errors import UsageError

CACHE_VARIABLE = "HEADRACE_CACHE"
"""Folder of jars and other downloads shared by all runs."""
ACCESS_KEY_VARIABLE = "HEADRACE_S3_ACCESS_KEY"
"""Access key of a store that the recipe names; an embedded store makes its own."""
SECRET_KEY_VARIABLE = "HEADRACE_S3_SECRET_KEY"  # noqa: S105 - the name of a variable
"""Secret key of a store that the recipe names."""
ENDPOINT_VARIABLE = "HEADRACE_S3_ENDPOINT"
"""Endpoint of archives that are named by s3://BUCKET/PREFIX; a run's store is named by its recipe."""
AWS_ACCESS_KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
"""Access key where ours is not set, as other clients of S3 take it."""
AWS_SECRET_KEY_VARIABLE = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable
"""Secret key where ours is not set."""
AWS_CREDENTIALS_VARIABLE = "AWS_SHARED_CREDENTIALS_FILE"
"""File of keys by profile, where no variable holds any; ~/.aws/credentials when it is not named."""
AWS_PROFILE_VARIABLE = "AWS_PROFILE"
"""Name of the profile to take from the credentials file."""
CA_VARIABLES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")
"""PEM file of the authorities that may sign a store's certificate, instead of the system's; the first that is set."""
USER_CACHE_VARIABLE = "XDG_CACHE_HOME"
"""The user's own cache folder (XDG base directories), where ours is when it is not named."""
KAFKA_CLIENT_VARIABLE = "HEADRACE_KAFKA_CLIENT"
"""Further librdkafka settings, secrets above all: a JSON object, or the path of a file that holds one."""
LOG_LEVEL_VARIABLE = "HEADRACE_LOG"
"""debug | info | warning | error."""
FAILPOINTS_VARIABLE = "HEADRACE_FAILPOINTS"
"""Folder in which tests arm failpoints (`infra/failpoints.py`)."""
PLUG_INS_VARIABLE = "HEADRACE_PLUG_INS"
"""Folders where plug-ins are looked for after all that can be imported, separated as in PATH; `headrace up` hands them
to its components."""
KEYS_FILE_VARIABLE = "HEADRACE_S3_KEYS_FILE"
"""File of the keys of a store that somebody else of this machine embeds; `headrace compare` sets it for its runs, which
record it, as a run with a store of its own does."""
END_REPORT_VARIABLE = "HEADRACE_END_REPORT"
"""File to which a trainer's processes report how they failed; `headrace up` sets it for its components."""
PROCESSES_VARIABLE, LOCAL_RANK_VARIABLE, RESTARTS_VARIABLE = "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"
"""Set by torchrun: its processes for one trainer, this process's number on its machine, and the number of restarts."""

TEMPORARY_VARIABLE = "TMPDIR"
"""Folder of temporary files, for us and for the servers that we start."""

FOR_ANY_PROGRAM = ("PATH", "HOME", "USER", "LOGNAME", TEMPORARY_VARIABLE, "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Variables of the user's shell that embedded servers get."""

FOR_USERS = {
    CACHE_VARIABLE: "folder of jars, other downloads and weights that all runs share; by default below XDG_CACHE_HOME",
    KAFKA_CLIENT_VARIABLE: "more librdkafka settings, such as passwords: a JSON object, or the path of a file with it",
    ACCESS_KEY_VARIABLE: "access key of a store that the recipe names",
    SECRET_KEY_VARIABLE: "secret key of that store",
    AWS_ACCESS_KEY_VARIABLE: "access key if HEADRACE_S3_ACCESS_KEY is not set",
    AWS_SECRET_KEY_VARIABLE: "secret key if HEADRACE_S3_SECRET_KEY is not set",
    "AWS_SESSION_TOKEN": "session token, if these two keys need one",
    AWS_CREDENTIALS_VARIABLE: "file of keys by profile, read if no variable holds keys; by default ~/.aws/credentials",
    AWS_PROFILE_VARIABLE: "profile in that file",
    ENDPOINT_VARIABLE: "endpoint of archives that are named s3://BUCKET/PREFIX",
    CA_VARIABLES[0]: "PEM file of the authorities that may sign a store's certificate",
    CA_VARIABLES[1]: "the same, used if AWS_CA_BUNDLE is not set",
    PLUG_INS_VARIABLE: "folders of your own modules, separated as in PATH; `up` sets it for its components",
    LOG_LEVEL_VARIABLE: "debug, info, warning or error",
    USER_CACHE_VARIABLE: "folder of all caches of this user; by default ~/.cache",
    TEMPORARY_VARIABLE: "folder of temporary files, also of the started servers; by default /tmp",
}
"""What a user may set, and what for, as `docs/processes.md` and `headrace doctor` show it."""


def read_environment(name: str, default: str = "") -> str:
    """Return an environment variable; a name of those above."""
    return os.environ.get(name, default)


def is_single_process() -> bool:
    """Return whether torchrun started no other process beside this one, for the same work."""
    return read_environment(PROCESSES_VARIABLE, "1") == "1"


def cache_folder() -> Path:
    """Where jars and start-up caches live, for all runs of this user.

    `$HEADRACE_CACHE`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`.
    """
    if own := read_environment(CACHE_VARIABLE):
        return expand_user(Path(own), CACHE_VARIABLE).absolute()
    base = read_environment(USER_CACHE_VARIABLE)
    if base:
        return Path(base).absolute() / "headrace"
    try:
        return Path.home() / ".cache" / "headrace"
    except RuntimeError as error:
        raise UsageError(
            f"user {os.getuid()} has no home folder, where downloads are kept: set {CACHE_VARIABLE} to a folder that "
            "it may write to"
        ) from error


def temporary_folder() -> Path:
    """Return where temporary files go. Raises UsageError where none can be made; Python would take another folder."""
    given = read_environment(TEMPORARY_VARIABLE)
    if given and not (Path(given).is_dir() and os.access(given, os.W_OK | os.X_OK)):
        why = "cannot be written" if Path(given).is_dir() else "is not a folder"
        raise UsageError(f"{TEMPORARY_VARIABLE} is {given}, which {why}: set it to a writable folder, or unset it")
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise UsageError(f"temporary files cannot be made: {error.strerror}; set {TEMPORARY_VARIABLE}") from error


def expand_user(path: Path, what: str) -> Path:
    """Return the path with `~` put in. Raises UsageError, which names `what`, where there is no such home folder."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(f"{what} {path}: the home folder for ~ is unknown; give the full path") from error


def server_environment() -> dict[str, str]:
    """Return the environment of an embedded server: what any program needs, and file names in UTF-8.

    What a user's shell sets for other JVMs and stores (JAVA_TOOL_OPTIONS, KAFKA_OPTS, RCLONE_*, MINIO_*, AWS_*) does
    not reach ours.
    """
    kept = {name: os.environ[name] for name in FOR_ANY_PROGRAM if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8"}
