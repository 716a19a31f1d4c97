"""Named points in a component's work at which a test can stop or kill it, which no outside clock can time.

Without the environment variable a point costs one comparison. The variable names a folder. A file in it with the name
of a point arms the point: the content `kill` ends the process by SIGKILL, `stop` suspends it by SIGSTOP, and `kill 3`
kills it the third time that one process passes. The first process that acts on an armed point uses it up: its file is
renamed to `<point>.hit` and then holds the pid.

Points are `<component>.<moment>`, the component as in the transactional id. In every turn of the run loop that has
something to write: `handled` (records are in memory, nothing is produced), then of its transaction `begun`, `produced`
(after each flush: records have their offsets), `offsets_sent`, `committing`, `committed`. Beside those:

    train.warm_start_step                              a supervised step is taken, or its reward measured
    train.stepped, train.copied                        a version is made, and its values copied
    train.before_upload, train.after_upload            around the weights' way into the store
    train.before_checkpoint, train.after_checkpoint    around a checkpoint's
    rollout.started                                    a task's start is committed, nothing is played
    rollout.played, rollout.delivered                  before a group is produced, after it is acknowledged
    rollout.committing, rollout.committed              around a commit of starts and ends of tasks
    rollout.before_swap, rollout.after_swap            new weights are fetched, and served
    archive.object, archive.written                    an object is copied; a record is in a growing file
    archive.cut, archive.saved                         a file has its name; the manifest names it
    archive.manifest                                   in a store, the next manifest is made and not yet put
    folder.made                                        all that a new folder is to hold is in it; it has no name yet
    gc.deleted                                         an object is deleted; `gc.committed`: none is yet
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from headrace.infra.environment import FAILPOINTS_VARIABLE, read_environment

ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

_folder = read_environment(FAILPOINTS_VARIABLE)
_passed: Counter[str] = Counter()


def reach(point: str) -> None:
    """Pass a point, and run the action armed there."""
    if _folder:
        _act(Path(_folder), point)


def _act(folder: Path, point: str) -> None:
    armed = folder / point
    try:
        action, _, count = armed.read_text().partition(" ")
    except FileNotFoundError:
        return
    _passed[point] += 1
    if _passed[point] < int(count or 1):
        return
    try:
        armed.rename(folder / f"{point}.hit")
    except FileNotFoundError:  # another process was faster
        return
    (folder / f"{point}.hit").write_text(str(os.getpid()))
    os.kill(os.getpid(), ACTIONS[action])
