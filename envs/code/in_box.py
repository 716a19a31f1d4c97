"""Runs a program on inputs; this file is the program that `headrace.envs.code.judge` starts in a box.

It has a file of its own to be read as text, and imports only what starts at once. It never holds an expected output:
it tells what the program answered, and the judge compares outside of the box. So whatever the program does to this
process, it can only change its own answers.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from types import CodeType
from typing import Any

READY = "ready"
"""The first line of the output: Python runs in the box."""
OK, RAISED, LATE = "ok", "raised", "late"
LEETCODE = "Solution"
"""Class whose method is called if there is no function of the name."""
_IMPORTS = "from typing import *\nfrom collections import *\nimport math\n"
"""What the form of LeetCode takes for granted."""


def spell(value: Any) -> str:
    """Return a text that is the same for equal values of JSON: a tuple is a list, 2.0 is 2, and True is 1."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{key!s}: {spell(found)}' for key, found in value.items()))}}}"
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return repr(int(value))
    return repr(value)


def main() -> None:
    """Answer the request on stdin: for each input a line `kind length`, and a text of so many characters."""
    sys.set_int_max_str_digits(0)
    asked = eval(sys.stdin.buffer.read(), {"inf": float("inf"), "nan": float("nan")})  # noqa: S307 - the judge's own
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    code, function = asked["code"], asked["function"]
    if function and LEETCODE in code:
        code = _IMPORTS + code
    try:
        program = compile(code, "program", "exec")
    except Exception as error:  # noqa: BLE001 - the compiler has many ways to refuse a text
        _tell(RAISED, f"{type(error).__name__}: {error}")
        return
    for given in asked["inputs"]:
        kind, text = _run(program, asked, given)
        _tell(kind, text)
        if kind != OK and asked["is_stopped_early"]:
            return


def _tell(kind: str, text: str) -> None:
    text = text.encode(errors="replace").decode()
    sys.stdout.write(f"{kind} {len(text)}\n{text}")
    sys.stdout.flush()


def _run(program: CodeType, asked: dict[str, Any], given: Any) -> tuple[str, str]:
    """Run the program on one input, in a process of its own; return what became of it, and its answer or error."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    source, answer = os.open("input", flags), os.open("answer", flags)
    if not asked["function"]:
        data = given.encode(errors="replace")
        while data:
            data = data[os.write(source, data) :]
        os.lseek(source, 0, os.SEEK_SET)
    child = os.fork()
    if not child:
        _become(program, asked, given, source, answer)
    handle = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    is_late = not waiting.poll(asked["limit_s"] * 1000)
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:  # it has not begun its group yet, or has ended
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    text = os.pread(answer, asked["most_bytes"] + 1, 0).decode(errors="replace")
    for descriptor in (source, answer, handle):
        os.close(descriptor)
    if is_late:
        return LATE, f"no answer within {asked['limit_s']:g} s"
    if status == 0 and len(text) > asked["most_bytes"]:
        return RAISED, f"more than {asked['most_bytes']} bytes of output"
    code = os.waitstatus_to_exitcode(status)
    return (OK, text) if code == 0 else (RAISED, text if code == 1 else f"it ended with {code}")


def _become(program: CodeType, asked: dict[str, Any], given: Any, source: int, answer: int) -> None:
    """Become the program; the process ends here."""
    status = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        name = asked["function"]
        for number, descriptor in enumerate((nowhere, nowhere, nowhere) if name else (source, answer, nowhere)):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        space: dict[str, Any] = {"__name__": "program" if name else "__main__", "exit": sys.exit, "quit": sys.exit}
        try:
            exec(program, space)  # noqa: S102 - what this file is for
            if name:
                called = space[name] if name in space else getattr(space[LEETCODE](), name)
                text = (repr if asked["is_exact"] else spell)(called(*given))
                os.write(answer, text.encode(errors="replace"))
        except SystemExit:
            if name:
                raise
        sys.stdout.flush()
        status = 0
    except BaseException as error:  # noqa: BLE001 - it must not return into the loop of the parent
        os.ftruncate(answer, 0)
        os.pwrite(answer, f"{type(error).__name__}: {error}"[:500].encode(errors="replace"), 0)
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
