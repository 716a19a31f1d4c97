"""One look at a real cluster: what is sound, and what somebody has set wrong."""

from __future__ import annotations

import pytest
from stoppable import until
from topic_limits import set_limit

from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops.preflight.cluster import ClusterUnfit, Wanted, examine_cluster, examine_run, find_needs, refuse_unfit

pytestmark = pytest.mark.tools


def test_a_cluster_is_looked_at_once_and_a_setting_that_would_refuse_records_is_named(
    bootstrap: str, run_name: str
) -> None:
    connection = Connection(bootstrap)
    recipe = load_recipe("arithmetic", [f"name={run_name}"])
    assert all(finding.ok for finding in examine_cluster(connection, Wanted()))
    assert all(finding.ok for finding in examine_run(f"kafka://{connection.bootstrap}/{run_name}"))

    wanted = find_needs(recipe, recipe.topic_specs)
    found = examine_cluster(connection, wanted)
    assert [finding.detail for finding in found if not finding.ok] == []
    ensure_topics(connection, recipe.topic_specs)
    refuse_unfit(connection, wanted)

    batches = recipe.topics.batches("solver")
    set_limit(connection, batches, 200)
    until(lambda: not all(finding.ok for finding in examine_cluster(connection, wanted)), "the broker knows it")
    with pytest.raises(ClusterUnfit, match=rf"topics: {batches} has max\.message\.bytes=200: set it to"):
        refuse_unfit(connection, wanted)
