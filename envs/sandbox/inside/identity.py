"""Who the processes of a box are: a user of the box that is nobody outside, without a right over anything there."""

from __future__ import annotations

import os

from headrace.envs.sandbox.inside import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

USER = 1000
"""Number of the user in the box."""
_JOIN_SESSION_KEYRING = 1


def enter_user_namespace(plan: dict[str, Any], own: int, settings: int) -> None:
    """Give up the rights over the namespaces of the box, and forbid more user namespaces. Raises OSError.

    Started by root, the first process and the programs become two users that nobody else is (`init_uid`, `uid`).
    Started by anyone else, both stay this user: only root can give a box more than one.
    `own` and `settings` are descriptors of /proc/1 and /proc/sys/user; they are closed.
    """
    kernel.call_kernel("keyctl", _JOIN_SESSION_KEYRING, None)  # the owner's keys stay out
    if plan["uid"] is None:
        kernel.call("unshare", kernel.CLONE_NEWUSER)
        _write("setgroups", "deny", own)
        _write("uid_map", f"{USER} 0 1", own)
        _write("gid_map", f"{USER} 0 1", own)
    else:
        _enter_with_map(f"0 {plan['init_uid']} 1\n{USER} {plan['uid']} 1\n", own)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    _write("max_user_namespaces", "0", settings)
    os.close(own)
    os.close(settings)
    kernel.forbid_capabilities()
    kernel.hide_memory()


def become_user() -> None:
    """Become the user of the box, without rights that could be got back."""
    if os.getuid() != USER:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    kernel.give_up_capabilities()


def _enter_with_map(users: str, own: int) -> None:
    """Enter a user namespace; a child that stays outside, where it has the right to, says who is who."""
    may_write, entered = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(entered)
            os.read(may_write, 1)
            for kind in ("uid_map", "gid_map"):
                _write(kind, users, own)
            code = 0
        finally:
            os._exit(code)
    kernel.call("unshare", kernel.CLONE_NEWUSER)
    os.write(entered, b".")
    os.close(entered)
    os.close(may_write)
    if os.waitpid(child, 0)[1]:
        raise PermissionError(f"no user namespace can have the users {users.split()[1::3]}")


def _write(name: str, text: str, folder: int) -> None:
    descriptor = os.open(name, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
