"""A run over two regions, each with a Kafka and a MinIO in containers; the link between them is cut while it trains."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from command import headrace
from servers import both
from tampered_command import wait_for_version
from test_run import PATIENCE_S, QUICK

from headrace.infra.environment import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE

RECIPE = Path(__file__).parents[2] / "examples" / "two-regions.toml"
STEPS = 60
LATENCY_S = 0.15
CUT_S = 10.0


def test_a_mirror_and_a_relay_bring_a_region_in_containers_through_a_cut_and_the_audit_closes(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "up.txt"
    with (
        both(tmp_path / "home.log", "home") as (kafka, (_, store)),
        both(tmp_path / "west.log", "west") as (far_kafka, (far_minio, far_store)),
    ):
        for link in (far_kafka.link, far_minio.link):
            link.delay(LATENCY_S)
        named = (
            (f'kafka.bootstrap="{kafka.link.address}"', f'store.endpoint="{store.endpoint}"'),
            ('store.bucket="home"', 'regions.west.store.bucket="west"'),
            (f'regions.west.kafka.bootstrap="{far_kafka.link.address}"',),
            (f'regions.west.store.endpoint="{far_store.endpoint}"',),
        )
        sets = [setting for pair in named for setting in pair] + [*QUICK, f"trainer.steps={STEPS}"]
        keys = {ACCESS_KEY_VARIABLE: store.access_key, SECRET_KEY_VARIABLE: store.secret_key}
        words = ["up", str(RECIPE), "--plain", "--data", str(data), *(w for one in sets for w in ("--set", one))]
        with output.open("wb") as out:
            command = [sys.executable, "-m", "headrace", *words]
            up = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **keys})
        try:
            wait_for_version(data, up, 2)
            for link in (far_kafka.link, far_minio.link):
                link.cut()
            time.sleep(CUT_S)
            for link in (far_kafka.link, far_minio.link):
                link.heal()
            assert up.wait(PATIENCE_S) == 0, output.read_text()
        finally:
            up.terminate()
            up.wait(30)
        audit = headrace("audit", "--data", data, "--json", **keys)
    assert audit.returncode == 0, audit.stdout + audit.stderr
    closed = json.loads(audit.stdout)
    assert (closed["ok"], closed["lost"], closed["doubled"]) == (True, 0, 0)
    with closing(sqlite3.connect(f"file:{data / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
        trained = dict(ledger.execute("SELECT stream, count(*) FROM trained GROUP BY 1"))
    assert trained["sums.west"] > 0, trained
