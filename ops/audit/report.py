"""`headrace audit`: checks from the topics and the store that nothing was lost, trained twice or broken."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.infra.errors import HeadraceError
from headrace.infra.run.run import Run
from headrace.ledger.ledger import LedgerRemade
from headrace.ops.audit.audited_log import AuditedLog
from headrace.ops.audit.findings import AuditReport
from headrace.ops.audit.whole_audit import AuditRequest, WholeAudit


def report(
    run: Run, *, rests: bool = False, deep: bool = False, use_store: bool = True, log: AuditedLog | None = None
) -> AuditReport:
    """Audit a run, topics and store.

    Args:
        run: The run.
        rests: Whether no launcher holds it. If its recipe names a Kafka, components may still run on other machines.
        deep: Also decode the values of groups, and read every object.
        use_store: Whether to check objects.
        log: Log to read; None for the run's cluster.

    Raises:
        KafkaAway, KafkaRefused: The topics cannot be read. An unreachable store is told in the report, as `unchecked`.
        HeadraceError: The temporary files of the audit cannot be written.
    """
    with TemporaryDirectory(prefix="headrace-audit-") as folder:
        request = AuditRequest(rests and not run.recipe.kafka.bootstrap, deep, use_store)
        try:
            return WholeAudit.of(run, request, Path(folder), log or AuditedLog(run)).perform()
        except LedgerRemade as error:
            raise HeadraceError(
                f"the audit cannot write its rows into a temporary file ({error}): make room in the folder for "
                "temporary files, or name another one by SQLITE_TMPDIR"
            ) from error
