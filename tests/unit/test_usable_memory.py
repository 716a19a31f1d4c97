"""A container's limit counts, whatever the machine has: control groups of version 1 and 2."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from headrace.ops.preflight import machine
from headrace.ops.preflight.usable_memory import Memory, measure_memory

GIB = 1 << 30
V2 = {"memory.max": "max\n", "memory.current": f"{3 * GIB}\n", "memory.stat": f"anon 5\ninactive_file {GIB}\n"}
V2_NESTED = {"memory.max": f"{4 * GIB}\n", "memory.swap.max": f"{GIB}\n", "memory.swap.current": f"{GIB // 2}\n"}
V1 = {
    "memory.limit_in_bytes": f"{4 * GIB}\n",
    "memory.usage_in_bytes": f"{3 * GIB}\n",
    "memory.stat": f"total_inactive_file {GIB}\n",
}
V1_SWAP = {"memory.memsw.limit_in_bytes": f"{6 * GIB}\n", "memory.memsw.usage_in_bytes": f"{4 * GIB}\n"}
V1_NONE = {"memory.limit_in_bytes": "9223372036854771712\n"}


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=500 * GIB, total=512 * GIB))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=8 * GIB, total=8 * GIB))


@pytest.mark.parametrize(
    ("groups", "path", "found"),
    [
        ("", {}, Memory(500 * GIB, 512 * GIB, 8 * GIB, 8 * GIB)),
        ("0::/a/b", {"": {}, "a": V2 | V2_NESTED, "a/b": V2}, Memory(2 * GIB, 4 * GIB, GIB // 2, GIB, 4 * GIB)),
        ("0::/a", {"a": V2}, Memory(500 * GIB, 512 * GIB, 8 * GIB, 8 * GIB)),
        ("9:name=x:/\n4:cpu,memory:/d", {"memory/d": V1, "memory": V1_NONE}, Memory(2 * GIB, 4 * GIB, limit=4 * GIB)),
        ("4:memory:/d", {"memory/d": V1 | V1_SWAP}, Memory(2 * GIB, 4 * GIB, GIB, 2 * GIB, 4 * GIB)),
        ("4:memory:/d\n0::/", {"memory/d": V1_NONE}, Memory(500 * GIB, 512 * GIB, 8 * GIB, 8 * GIB)),
    ],
    ids=[
        "none",
        "nested",
        "no limit",
        "version 1",
        "version 1 with swap",
        "version 1 without a limit",
    ],
)
def test_the_memory_is_the_least_of_the_machine_and_the_groups_around_the_process(
    groups: str, path: dict[str, dict[str, str]], found: Memory, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for folder, files in path.items():
        (tmp_path / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / "sys/fs/cgroup" / folder / name).write_text(text)
    assert measure_memory(tmp_path) == found


def test_doctor_sees_that_a_container_has_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure_memory", lambda: Memory(GIB, 2 * GIB, limit=2 * GIB))
    finding = machine.check_memory()
    assert not finding.ok
    assert finding.detail.startswith("1.0 GiB free (this container or job may use 2.0 GiB), ")
