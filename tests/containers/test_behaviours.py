"""Behaviours that tests/integration shows on the embedded servers, shown again on Kafka and MinIO in containers.

The tests and their own fixtures are taken from there; `bootstrap` and `store` are those of this folder.
"""

from test_feeder import (
    make,
    test_an_evaluation_concludes_once_over_restarts_claims_and_bytes_that_cannot_be_read,
    test_over_kills_in_the_middle_of_a_transaction_no_number_is_skipped_or_given_twice,
)
from test_large_objects import (
    behind,
    between,
    direct,
    test_an_object_of_several_parts_is_sent_once,
    test_an_upload_over_a_killed_store_ends_with_the_object_whole_and_is_not_seen_before,
    test_of_an_upload_that_is_broken_off_nothing_is_left,
)
from test_rollout_worker import (
    test_after_kill_9_the_next_worker_redoes_only_what_was_unfinished,
    work,
)
from test_run_loop import (
    connection,
    spawn,
    test_a_reader_waits_for_a_transaction_that_is_still_open,
    test_a_record_that_was_aborted_is_not_there,
    test_a_second_writer_of_the_same_id_fences_the_first,
    test_every_record_is_counted_exactly_once_over_kills_and_joins,
)
from test_servers import (
    test_a_bucket_without_rights_gives_one_clear_error,
    test_a_missing_object_is_told,
    test_an_empty_object_is_right,
    test_an_object_comes_back_whole_and_as_a_file,
)
from test_trainer import test_a_killed_trainer_comes_back_to_the_same_bits_and_trains_every_group_once, train
