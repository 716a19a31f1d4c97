"""The autoscaler's Kubernetes scaler: the official client against a stub of the API, over real HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from install_libraries import LIBRARIES

from headrace.infra.errors import UsageError
from headrace.ops.autoscale.kubernetes_scaler import KubernetesScaler
from headrace.ops.autoscale.scalers import ScalerAway, ScalerRefused

pytestmark = [pytest.mark.libraries, pytest.mark.filterwarnings("ignore")]
PATH = "/apis/apps/v1/namespaces/rl/deployments/rollout-sums/scale"
POOL = "rollout-sums"


class Api(HTTPServer):
    """Answers for the scale of one Deployment; `status` is that of the next answers."""

    replicas, status = 2, 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[tuple[str, str, str]] = []


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Api

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.answer()

    def do_PATCH(self) -> None:
        assert "patch+json" in self.headers["Content-Type"]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status == 200:
            self.server.replicas = body["spec"]["replicas"]
        self.answer()

    def answer(self) -> None:
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
        spec = {"replicas": self.server.replicas} if self.server.replicas else {}  # as Go leaves zeros out
        scale = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": POOL}, "spec": spec}
        data = json.dumps(scale if self.server.status == 200 else {"kind": "Status"}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Api]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(LIBRARIES)])
    server = Api()
    Thread(target=server.serve_forever, daemon=True).start()
    named = {"cluster": "c", "user": "u"}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": named}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t0ken"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"), raising=False)
    yield server
    server.shutdown()
    server.server_close()


def test_it_reads_and_changes_the_scale_of_the_deployment_and_nothing_else(api: Api) -> None:
    scaler = KubernetesScaler("rl/rollout-sums")
    assert (scaler.name, scaler.read_count(POOL)) == ("kubernetes rl/rollout-sums", 2)
    for count in (7, 0):
        scaler.set_count(POOL, count)
        assert (api.replicas, scaler.read_count(POOL)) == (count, count)
    methods = ["GET", "PATCH", "GET", "PATCH", "GET"]
    assert api.asked == [(method, PATH, "Bearer t0ken") for method in methods]


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_says_what_right_is_missing(api: Api, status: int) -> None:
    scaler, api.status = KubernetesScaler("rl/rollout-sums"), status
    with pytest.raises(
        ScalerRefused, match=rf"{status} .*: give its user the verbs get and patch on deployments/scale"
    ):
        scaler.set_count(POOL, 3)


def test_a_server_that_fails_or_does_not_answer_is_away(api: Api) -> None:
    scaler, api.status = KubernetesScaler("rl/rollout-sums"), 503
    with pytest.raises(ScalerAway, match="cannot read the scale of kubernetes rl/rollout-sums: 503"):
        scaler.read_count(POOL)
    api.shutdown()
    api.server_close()
    with pytest.raises(ScalerAway, match="cannot change the scale of kubernetes rl/rollout-sums"):
        scaler.set_count(POOL, 3)


def test_settings_that_are_missing_and_names_that_cannot_be_are_told(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="give NAMESPACE/DEPLOYMENT, as in headrace/rollout-sums"):
        KubernetesScaler("rollout-sums")
    monkeypatch.setattr("kubernetes.config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="finds no settings of a cluster"):
        KubernetesScaler("rl/rollout-sums")
