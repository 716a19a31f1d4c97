"""Runs a program on inputs; this file is the program that `headrace.envs.code.judge` starts in a box.

It imports only what starts at once, and nothing of Headrace. It never holds an expected output: it tells what the
program answered, and the judge compares outside of the box. So whatever the program does to this process, it can only
change its own answers.
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
"""What the form of LeetCode takes for granted; run before the program, which may begin with `from __future__`."""


def spell(value: Any) -> str:
    """Return a text that is the same for equal values of JSON: a tuple is a list, 2.0 is 2, and True is 1."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{key!s}: {spell(found)}' for key, found in value.items()))}}}"
    is_whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return repr(int(value) if is_whole else value)


def main() -> None:
    """Answer the request on stdin: for each input a line `kind length`, and a text of so many characters."""
    sys.set_int_max_str_digits(0)
    request = eval(sys.stdin.buffer.read(), {"inf": float("inf"), "nan": float("nan")})  # noqa: S307 - the judge's own
    code, function, inputs, is_exact, is_stopped_early, limit_s, most_bytes = request
    print(READY, flush=True)  # noqa: T201
    try:
        program = compile(code, "program", "exec")
    except Exception as error:  # noqa: BLE001 - the compiler has many ways to refuse a text
        inputs, said = [], f"{type(error).__name__}: {error}".encode(errors="replace").decode()
        sys.stdout.write(f"{RAISED} {len(said)}\n{said}")
    for given in inputs:
        kind, text = _run(program, function, given, is_exact, limit_s, most_bytes)
        sys.stdout.write(f"{kind} {len(text)}\n{text}")
        sys.stdout.flush()
        if kind != OK and is_stopped_early:
            break


def _run(
    program: CodeType, function: str, given: Any, is_exact: bool, limit_s: float, most_bytes: int
) -> tuple[str, str]:
    """Run the program on one input, in a process of its own; return what became of it, and its answer or error."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    source, answer = os.open("input", flags), os.open("answer", flags)
    os.pwrite(source, b"" if function else given.encode(errors="replace"), 0)
    if not (child := os.fork()):
        _become(program, function, given, is_exact, source, answer)
    handle, waiting = os.pidfd_open(child), select.poll()
    waiting.register(handle, select.POLLIN)
    is_late = not waiting.poll(limit_s * 1000)
    for kill in (os.kill, os.killpg):  # it may not have begun its group yet, or has ended
        try:  # noqa: SIM105 - contextlib takes long to import
            kill(child, signal.SIGKILL)
        except OSError:
            pass
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    data = os.pread(answer, most_bytes + 1, 0)
    for descriptor in (source, answer, handle):
        os.close(descriptor)
    if is_late:
        return LATE, f"no answer within {limit_s:g} s"
    if code not in {0, 1} or len(data) > most_bytes:
        return RAISED, f"it ended with {code}, after {len(data)} bytes of output"
    return RAISED if code else OK, data.decode(errors="replace")


def _become(program: CodeType, function: str, given: Any, is_exact: bool, source: int, answer: int) -> None:
    """Become the program; the process ends here."""
    status = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number, descriptor in enumerate((nowhere, nowhere, nowhere) if function else (source, answer, nowhere)):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.__stdout__ = sys.stdout  # type: ignore[misc]
        space: dict[str, Any] = {"__name__": "program" if function else "__main__", "exit": sys.exit, "quit": sys.exit}
        if function and LEETCODE in program.co_names:
            exec(_IMPORTS, space)  # noqa: S102
        try:
            exec(program, space)  # noqa: S102 - what this file is for
        except SystemExit:
            if function:
                raise
        if function:
            called = space[function] if function in space else getattr(space[LEETCODE](), function)
            os.write(answer, (repr if is_exact else spell)(called(*given)).encode(errors="replace"))
        else:
            _end_as_python()
        status = 0
    except BaseException as error:  # noqa: BLE001 - it must not return into the loop of the parent
        os.ftruncate(answer, 0)
        os.pwrite(answer, f"{type(error).__name__}: {error}"[:500].encode(errors="replace"), 0)
    finally:
        os._exit(status)


def _end_as_python() -> None:
    """Do what Python does at the end of a program, which `os._exit` leaves out: wait for threads, then call atexit."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # noqa: SLF001 - as Python itself calls it
    __import__("atexit")._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.__stdout__):
        if stream and not getattr(stream, "closed", False):
            stream.flush()


if __name__ == "__main__":
    main()
