"""The workers of a Kubernetes Deployment, by the subresource `scale`, with the official client (extra `kubernetes`)."""

from __future__ import annotations

import re
from typing import Any

from headrace.infra.errors import UsageError
from headrace.ops.autoscale.scalers import ScalerAway, ScalerRefused

FORM = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)/([a-z0-9]([-.a-z0-9]*[a-z0-9])?)")
TIMEOUT_S = 10.0
REFUSED = frozenset({400, 401, 403, 404, 405, 422})
"""Statuses that the same request gets again; all others may pass."""


class KubernetesScaler:
    """A Deployment whose Pods each run `headrace rollout`. It is one pool, whatever the pool's name.

    The client's own settings hold: those of a Pod's service account, or the kubeconfig (`KUBECONFIG`).

    Args:
        where: `NAMESPACE/DEPLOYMENT`.

    Raises UsageError for another text, without the package or without settings.
    """

    def __init__(self, where: str) -> None:
        if (parts := FORM.fullmatch(where)) is None:
            raise UsageError(f"--kubernetes {where!r}: give NAMESPACE/DEPLOYMENT, as in headrace/rollout-sums")
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise UsageError("--kubernetes needs the package kubernetes: make install EXTRAS=kubernetes") from error
        try:
            _load_settings(config)
        except config.ConfigException as error:
            raise UsageError(
                f"--kubernetes finds no settings of a cluster ({error}): run it in a Pod, or let KUBECONFIG name a file"
            ) from error
        self.name = f"kubernetes {where}"
        self._deployment = {"namespace": parts[1], "name": parts[3], "_request_timeout": TIMEOUT_S}
        self._apps = client.AppsV1Api()

    def read_count(self, pool: str) -> int:  # noqa: ARG002 - the Deployment is the pool
        """See `Scaler`."""
        return int(self._call(self._apps.read_namespaced_deployment_scale, "read").spec.replicas or 0)

    def set_count(self, pool: str, count: int) -> None:  # noqa: ARG002
        """See `Scaler`."""
        self._call(self._apps.patch_namespaced_deployment_scale, "change", body={"spec": {"replicas": count}})

    def _call(self, method: Any, doing: str, **words: Any) -> Any:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return method(**self._deployment, **words)
        except ApiException as error:
            why = f"cannot {doing} the scale of {self.name}: {error.status} {error.reason}"
            if error.status in REFUSED:
                rights = "give its user the verbs get and patch on deployments/scale, and check the two names"
                raise ScalerRefused(f"{why}: {rights}") from error
            raise ScalerAway(why) from error
        except HTTPError as error:
            raise ScalerAway(f"cannot {doing} the scale of {self.name}: {error}") from error


def _load_settings(config: Any) -> None:
    """Take the settings of the Pod that this runs in, else the user's. `load_config` of the client prints."""
    try:
        config.load_incluster_config()
    except config.ConfigException:
        config.load_kube_config()
