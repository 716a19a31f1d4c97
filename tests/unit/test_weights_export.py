"""Which event of a version is exported."""

from __future__ import annotations

from dataclasses import replace

from headrace.infra.weights.paths import find_newest_events
from headrace.schemas.records import WeightsPublished


def test_a_version_that_was_published_again_is_the_last_one_and_a_merged_delta_is_no_version() -> None:
    lost = WeightsPublished("r", "solver", version=3, epoch=0, kind="delta", weights_hash="lost")
    again = WeightsPublished("r", "solver", version=3, epoch=1, kind="anchor", weights_hash="again")
    merged = replace(again, kind="merged", base_version=1)
    assert find_newest_events([WeightsPublished("r", "solver", version=2), lost, again, merged]) == {
        2: WeightsPublished("r", "solver", version=2),
        3: again,
    }
