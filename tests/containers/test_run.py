"""A whole small run whose recipe names a Kafka and a store: both in containers, both disturbed while it trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from command import headrace
from faults import FAULTS
from servers import Server
from tampered_command import wait_for_version

from headrace.infra.environment import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from headrace.infra.store.object_store import StoreAddress

STEPS = 6
QUICK = (
    f"trainer.steps={STEPS}",
    "trainer.checkpoint_every=2",
    "policies.solver.warm_start.reward_low=0.05",
    "policies.solver.warm_start.held_out=64",
    "evaluate.every=0",
)
FAULT_S = 3.0
PATIENCE_S = 240.0


def test_a_run_on_a_named_kafka_and_store_ends_with_a_closed_audit_though_both_fail_in_the_middle(
    kafka_server: Server, minio_server: tuple[Server, StoreAddress], tmp_path: Path
) -> None:
    server, address = minio_server
    data, summary = tmp_path / "data", tmp_path / "summary.json"
    named = (f'kafka.bootstrap="{kafka_server.link.address}"', f'store.endpoint="{address.endpoint}"')
    sets = [word for change in (*named, f'store.bucket="{address.bucket}"', *QUICK) for word in ("--set", change)]
    keys = {ACCESS_KEY_VARIABLE: address.access_key, SECRET_KEY_VARIABLE: address.secret_key}
    words = ["up", "arithmetic", *sets, "--data", str(data), "--summary", str(summary), "--plain"]
    with (tmp_path / "up.txt").open("wb") as out:
        command = [sys.executable, "-m", "headrace", *words]
        up = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **keys})
    try:
        for fault, victim, version in (("killed", server, 1), ("cut", kafka_server, 2)):
            wait_for_version(data, up, version)
            with FAULTS[fault](victim):
                time.sleep(FAULT_S)
        assert up.wait(PATIENCE_S) == 0, (tmp_path / "up.txt").read_text()
    finally:
        up.terminate()
        up.wait(30)
    told = json.loads(summary.read_text())
    assert told["versions"] == STEPS
    assert told["groups"]["trained"] == STEPS * 32
    audit = headrace("audit", "--run", f"kafka://{kafka_server.link.address}/arithmetic", "--json", **keys)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    closed = json.loads(audit.stdout)
    assert (closed["ok"], closed["lost"], closed["doubled"]) == (True, 0, 0)
