"""What gets out of a box by sandlock alone is what docs/sandbox.md says it does not hold."""

from __future__ import annotations

import re

import pytest
from attacks import ATTACKS
from users import USERS, attack_all

from headrace.envs.sandbox.namespaces import SANDLOCK

NOT_HELD = {
    "many_files": ("ESCAPED [0-9]+$", "no limit counts all files together"),
    "many_empty_files": ("ESCAPED [0-9]+$|not done: 137", "no limit counts the files"),
    "useful": (".*bind on address .'127.0.0.1'", "a program cannot listen on 127.0.0.1"),
    "bombs_to_download": ("not done: 1 |left out: ", "there are no pipes and sockets that the attack could leave"),
    "signals_outside": ("ESCAPED pidfd", "a process outside can be named by a pidfd, and not be signalled"),
    "more_rights": ("ESCAPED CapBnd", "the bounding set is not empty, but no_new_privs holds"),
    "open_files": ("ESCAPED [0-9]+ (/lib|file:)", "the loader and the program stay open, read-only"),
    "devices": ("ESCAPED", "/dev can be listed, and only the devices of a box opened"),
    "udp": (".*PermissionError", "the attack ends early: no socket of UDP can be made"),
    "hidden_system_calls": ("not done: 159 ", "the attack ends early: such a call ends the program"),
    "memory_of_one": ("not done: 137 ", "the attack ends early: memory beyond the limit ends the program"),
    "next_box_is_clean": ("ESCAPED: 4$", "the first process of the box can be seen, too"),
}
"""Attack to what it says, and why."""


@pytest.mark.sandbox
@pytest.mark.parametrize("user", [user for user in USERS if user != "root"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_other_attack_gets_out_of_a_box(user: str, attack: str) -> None:
    found = attack_all(user, SANDLOCK)[attack]
    said, why = NOT_HELD.get(attack, ("", ""))
    if not why or not all(re.match(said, line, re.DOTALL) for line in found):
        assert not found, "\n".join(found)
    else:
        assert found, f"{attack} is held now: take it out of the list"
        pytest.xfail(why)
