"""All environment variables that Headrace reads: their names are only here."""

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
"""Endpoint of archives named by s3://BUCKET/PREFIX; a run's recipe names the run's store."""
AWS_ACCESS_KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
"""Access key as of other S3 clients, used if HEADRACE_S3_ACCESS_KEY is not set."""
AWS_SECRET_KEY_VARIABLE = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable
"""Secret key as of other S3 clients, used if HEADRACE_S3_SECRET_KEY is not set."""
AWS_CREDENTIALS_VARIABLE = "AWS_SHARED_CREDENTIALS_FILE"
"""File of keys by profile, used if no variable holds keys; by default ~/.aws/credentials."""
AWS_PROFILE_VARIABLE = "AWS_PROFILE"
"""Name of the profile to take from the credentials file."""
CA_VARIABLES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")
"""PEM file of the authorities that may sign a store's certificate, instead of the system's; the first that is set."""
USER_CACHE_VARIABLE = "XDG_CACHE_HOME"
"""The user's cache folder (XDG base directories), by default with Headrace's cache folder in it."""
KAFKA_CLIENT_VARIABLE = "HEADRACE_KAFKA_CLIENT"
"""Further librdkafka settings, especially secrets: a JSON object, or the path of a file that holds one."""
LOG_LEVEL_VARIABLE = "HEADRACE_LOG"
"""debug | info | warning | error."""
FAILPOINTS_VARIABLE = "HEADRACE_FAILPOINTS"
"""Folder in which tests arm failpoints (`infra/failpoints.py`)."""
PLUG_INS_VARIABLE = "HEADRACE_PLUG_INS"
"""Folders of plug-ins, searched after everything importable, separated as in PATH; `headrace up` passes them to its
components."""
KEYS_FILE_VARIABLE = "HEADRACE_S3_KEYS_FILE"
"""File with the keys of a store that another process on this machine embeds. `headrace compare` sets it for its runs,
which record it like the keys file of their own embedded store."""
END_REPORT_VARIABLE = "HEADRACE_END_REPORT"
"""File in which a trainer's processes report their failure; `headrace up` sets it for its components."""
PROCESSES_VARIABLE, LOCAL_RANK_VARIABLE, RESTARTS_VARIABLE = "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"
"""Set by torchrun: its processes for one trainer, this process's number on its machine, and the number of restarts."""

API_KEY_VARIABLE = "OPENAI_API_KEY"
TEMPORARY_VARIABLE = "TMPDIR"
"""Folder of temporary files, for Headrace and for the servers that it starts."""

FOR_ANY_PROGRAM = ("PATH", "HOME", "USER", "LOGNAME", TEMPORARY_VARIABLE, "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Variables of the user's shell that embedded servers get."""

FOR_USERS = {
    CACHE_VARIABLE: "folder of jars, other downloads and weights that all runs share; by default below XDG_CACHE_HOME",
    KAFKA_CLIENT_VARIABLE: "more librdkafka settings, such as passwords: a JSON object, or the path of a file with it",
    ACCESS_KEY_VARIABLE: "access key of a store that the recipe names",
    SECRET_KEY_VARIABLE: "secret key of a store that the recipe names",
    AWS_ACCESS_KEY_VARIABLE: "access key of the store, if HEADRACE_S3_ACCESS_KEY is not set",
    AWS_SECRET_KEY_VARIABLE: "secret key of the store, if HEADRACE_S3_SECRET_KEY is not set",
    "AWS_SESSION_TOKEN": "session token that belongs to AWS_ACCESS_KEY_ID, if this key needs one",
    AWS_CREDENTIALS_VARIABLE: "file of keys by profile, read if no variable holds keys; by default ~/.aws/credentials",
    AWS_PROFILE_VARIABLE: "profile in the file of keys (AWS_SHARED_CREDENTIALS_FILE)",
    ENDPOINT_VARIABLE: "endpoint of archives that are named s3://BUCKET/PREFIX",
    CA_VARIABLES[0]: "PEM file of the authorities that may sign a store's certificate",
    CA_VARIABLES[1]: "PEM file of the authorities that may sign a store's certificate, if AWS_CA_BUNDLE is not set",
    API_KEY_VARIABLE: "key of the endpoint of `headrace try --api`, if it needs one",
    PLUG_INS_VARIABLE: "folders of your own modules, separated as in PATH; `up` sets it for its components",
    LOG_LEVEL_VARIABLE: "lowest level that is logged: debug, info, warning or error",
    "HF_HOME": "folder in which `datasets` keeps data sets of the hub; by default ~/.cache/huggingface",
    "HF_HUB_OFFLINE": "1 takes data sets of the hub from the folder HF_HOME alone, without the network",
    USER_CACHE_VARIABLE: "folder of all caches of this user; by default ~/.cache",
    TEMPORARY_VARIABLE: "folder of temporary files, also of the started servers; by default /tmp",
}
"""Variables that a user may set, with their purpose, as in `docs/processes.md` and `headrace doctor`."""


def read_environment(name: str, default: str = "") -> str:
    """Return an environment variable; `name` must be one of those above."""
    return os.environ.get(name, default)


def is_single_process() -> bool:
    """Return whether torchrun started no other process for the same work."""
    return read_environment(PROCESSES_VARIABLE, "1") == "1"


def cache_folder() -> Path:
    """Return the folder of jars and start-up caches, shared by all runs of this user.

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
            "this user may write to"
        ) from error


def temporary_folder() -> Path:
    """Return the folder of temporary files. Raises UsageError if it is unusable; Python would use another folder."""
    given = read_environment(TEMPORARY_VARIABLE)
    if given and not (Path(given).is_dir() and os.access(given, os.W_OK | os.X_OK)):
        why = "cannot be written" if Path(given).is_dir() else "is not a folder"
        raise UsageError(f"{TEMPORARY_VARIABLE} is {given}, which {why}: set it to a writable folder, or unset it")
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise UsageError(
            f"temporary files cannot be made: {error.strerror}; set {TEMPORARY_VARIABLE} to a writable folder with room"
        ) from error


def expand_user(path: Path, what: str) -> Path:
    """Return the path with `~` expanded. Raises UsageError, which names `what`, if the home folder is unknown."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(f"{what} {path}: the home folder for ~ is unknown; give the full path") from error


def server_environment() -> dict[str, str]:
    """Return the environment of an embedded server: general variables, and UTF-8 for file names.

    It leaves out the user's variables for other JVMs and stores (JAVA_TOOL_OPTIONS, KAFKA_OPTS, RCLONE_*, MINIO_*,
    AWS_*).
    """
    kept = {name: os.environ[name] for name in FOR_ANY_PROGRAM if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8"}
