"""Tests that mutants of several rooms name."""

from __future__ import annotations

RUN_LOOP = "tests/integration/test_run_loop.py::"
READER = "tests/integration/test_topic_reader.py::"
PRODUCER = "tests/integration/test_producer.py::"
FEEDER = "tests/integration/test_feeder.py::"
PUBLISHED = (
    "tests/integration/test_published_versions.py::test_groups_of_unpublished_versions_are_dead_"
    "and_those_after_them_are_trained_on_live_archived_and_replayed"
)
CURATION = "tests/unit/test_curation.py::"
SWAP = "tests/unit/test_swap.py::"
AUDIT = "tests/unit/test_audit.py::"
OFFLINE = "tests/unit/test_offline_training.py::"
IN_STORE = "tests/integration/test_archive_in_store.py::"
ROUTING = "tests/unit/test_routing.py::"
REPLAYED = "tests/integration/test_replayed_groups.py::"
ORDERED = (
    "tests/unit/test_mechanics.py::"
    "test_first_come_first_served_loses_long_tasks_where_the_earliest_deadline_first_loses_none"
)
DEAD = f"{CURATION}test_what_cannot_be_read_becomes_a_dead_letter_with_its_bytes"
ISSUES = "tests/integration/test_issued_numbers.py::"
ISSUED = f"{ISSUES}test_groups_of_numbers_that_were_never_issued_conclude_nothing_live_archived_and_replayed"
END = "tests/integration/test_end_of_run.py::"
