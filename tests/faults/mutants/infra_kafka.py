"""Protections of how Kafka is read and written, and servers and processes are kept, taken out one each."""

from __future__ import annotations

from mutants.catchers import DEAD, PRODUCER, READER, RUN_LOOP
from mutants.mutant import Mutant

DELETED = "tests/unit/test_deleted_topics.py::"
TRANSACTIONS = "tests/unit/test_transactions.py::"
HANGING = "tests/integration/test_hanging_transactions.py::"
DECODING = "tests/unit/test_decoding.py::"

INFRA_KAFKA = (
    Mutant(
        "no-sweep",
        "a transaction that hangs is ended before another is committed",
        "infra/kafka/transactions.py",
        "self._sweep(held_back(connection, topics))",
        "pass",
        (f"{HANGING}test_what_hangs_is_ended_before_anything_is_written_and_never_committed_with_it",),
    ),
    Mutant(
        "no-fencing",
        "one holder of a transactional id",
        "infra/kafka/clients.py",
        "transactional_id=transactional_id,",
        'transactional_id=f"{transactional_id}.{time.time_ns()}",',
        (f"{RUN_LOOP}test_a_second_writer_of_the_same_id_fences_the_first",),
    ),
    Mutant(
        "lost-tail",
        "a reader whose log has lost its end does not begin again",
        "infra/kafka/clients.py",
        'auto_offset_reset="earliest" if group else "error",',
        'auto_offset_reset="earliest",',
        (f"{READER}test_a_log_that_ends_before_what_was_read_from_it_is_not_read_again_from_the_beginning",),
    ),
    Mutant(
        "implicit-acknowledgement",
        "a transaction is not committed when one of its records was acknowledged only because a later one was",
        "infra/kafka/transactions.py",
        "if error is None and not is_delivered(raw):",
        "if False:",
        (f"{TRANSACTIONS}test_a_record_that_is_not_delivered_aborts_and_what_is_refused_is_no_pause",),
    ),
    Mutant(
        "refused-for-good",
        "what Kafka refuses each time is no pause",
        "infra/kafka/transactions.py",
        "if cause.code() in REFUSED:",
        "if False:",
        (f"{PRODUCER}test_what_kafka_refuses_for_good_ends_the_transaction_with_what_was_refused_and_why",),
    ),
    Mutant(
        "read-uncommitted",
        "aborted and open records are not read",
        "infra/kafka/clients.py",
        'isolation_level="read_committed"',
        'isolation_level="read_uncommitted"',
        (f"{RUN_LOOP}test_a_record_that_was_aborted_is_not_there",),
    ),
    Mutant(
        "last-stable-offset",
        "a restore reads past open transactions",
        "infra/kafka/clients.py",
        "isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED",
        "isolation: IsolationLevel = IsolationLevel.READ_COMMITTED",
        (f"{RUN_LOOP}test_a_reader_waits_for_a_transaction_that_is_still_open",),
    ),
    Mutant(
        "believes-an-end",
        "the end of a topic is what a fetch has told",
        "infra/kafka/topic_reader.py",
        "return bool(unmet) or any(",
        "return any(",
        ("tests/integration/test_topic_reader.py::test_a_false_end_does_not_make_a_topic_look_empty",),
    ),
    Mutant(
        "told-to-stop-is-finished",
        "a component that ends before the run does is started again",
        "infra/process/supervisor.py",
        "life.exit_code == FINISHED and self._run_is_over()",
        "life.exit_code == FINISHED",
        ("tests/integration/test_supervisor.py::test_a_child_that_somebody_else_told_to_stop_is_started_again",),
    ),
    Mutant(
        "any-run",
        "a record of another run is a dead letter",
        "infra/kafka/decoding.py",
        "if stamp.run_id != run_id:",
        "if False:",
        (DEAD, f"{DECODING}test_the_headers_of_a_message_of_another_run_are_rejected"),
    ),
    Mutant(
        "record-of-any-run",
        "a record of another run is a dead letter, be it stamped or not",
        "infra/kafka/decoding.py",
        "    if record.run_id != run_id:",
        "    if False:",
        (f"{DECODING}test_a_record_of_another_run_is_rejected_with_the_worker_s_own_words",),
    ),
    Mutant(
        "event-of-any-run",
        "an event of another run is passed over",
        "infra/kafka/decoding.py",
        "if record is not None and record.run_id != run_id:",
        "if False:",
        (f"{DECODING}test_an_event_that_is_not_ours_is_passed_over_with_a_warning",),
    ),
    Mutant(
        "letter-of-any-run",
        "a letter about another run concludes nothing",
        "infra/kafka/dead_letters.py",
        "if stamp.run_id == run_id:",
        "if True:",
        (DEAD,),
    ),
    Mutant(
        "letters-of-replays",
        "a letter says which use of a group it is about",
        "infra/kafka/dead_letters.py",
        "        use=use,\n",
        "",
        ("tests/unit/test_dead_letter_listing.py::test_the_letter_of_a_replay_concludes_that_use_alone",),
    ),
    Mutant(
        "one-in-flight",
        "a curator far from its broker waits for many answers at a time",
        "infra/kafka/clients.py",
        "MOST_IN_FLIGHT = 5\n",
        "MOST_IN_FLIGHT = 1\n",
        (
            (
                "tests/integration/test_far_broker.py::test_a_transaction_with_131_kb_for_each_of_64_partitions_stays_"
                "under_half_of_its_limit"
            ),
        ),
    ),
    Mutant(
        "commit-asked-once",
        "a commit is asked for until its outcome is known",
        "infra/kafka/transactions.py",
        "if not (cause.retriable() or cause.code() in AWAY):",
        "if True:",
        ("tests/unit/test_transactions.py::test_a_coordinator_that_is_away_is_waited_for",),
    ),
    Mutant(
        "stuck-unwatched",
        "a process whose call to Kafka never returns ends",
        "infra/kafka/transactions.py",
        "if time.monotonic() - self._called_at > STUCK_S:",
        "if False:",
        ("tests/unit/test_transactions.py::test_a_call_that_never_returns_ends_the_process_as_no_failure_of_its_own",),
    ),
    Mutant(
        "stuck-blamed",
        "a process that a server left stuck ends with the code that is no failure of its own",
        "infra/kafka/transactions.py",
        "STUCK_EXIT = os.EX_TEMPFAIL",
        "STUCK_EXIT = 1",
        ("tests/unit/test_transactions.py::test_a_call_that_never_returns_ends_the_process_as_no_failure_of_its_own",),
    ),
    Mutant(
        "away-counted",
        "a component that a server left stuck is started again however often",
        "infra/process/patience.py",
        "if exit_code != AWAY:",
        "if True:",
        ("tests/integration/test_away.py::test_a_component_that_a_server_left_stuck_is_started_again_however_often",),
    ),
    Mutant(
        "server-stays-dead",
        "an embedded server that died is started again",
        "infra/embedded/servers.py",
        "            nurse.visit(server)\n",
        "            pass\n",
        ("tests/integration/test_revival.py::test_a_server_that_died_is_started_again_with_its_data",),
    ),
    Mutant(
        "server-tried-once",
        "a server that does not come up is tried until it does",
        "infra/embedded/servers.py",
        "self._due = time.monotonic() + pause",
        "self._due = float('inf')",
        (
            "tests/integration/test_revival.py::test_a_server_that_does_not_come_up_is_said_once_and_tried_until_it_does",
        ),
    ),
    Mutant(
        "overdue-at-once",
        "a broker ends no overdue transaction before it leads its partitions again",
        "infra/embedded/kafka_server.py",
        '"transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000"',
        '"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"',
        (
            "tests/unit/test_broker_settings.py::test_a_broker_ends_no_overdue_transaction_before_it_leads_its_partitions_again",
        ),
    ),
    Mutant(
        "gone-topic",
        "a topic that is gone ends who writes to it, and is no pause",
        "infra/kafka/transactions.py",
        "            if self._is_gone(record):\n",
        "            if False:\n",
        (
            f"{TRANSACTIONS}test_a_topic_that_stays_away_ends_the_component_and_one_that_comes_back_is_a_pause",
            f"{TRANSACTIONS}test_a_topic_that_is_gone_is_the_reason_also_where_the_broker_refuses_to_abort",
        ),
    ),
    Mutant(
        "deleted-unanswered",
        "a broker that does not answer has deleted no topic",
        "infra/kafka/deleted_topics.py",
        "            self.since = {}\n",
        "            pass\n",
        (f"{DELETED}test_a_broker_that_does_not_answer_or_does_not_know_its_topics_yet_has_deleted_none",),
    ),
    Mutant(
        "deleted-never-there",
        "a topic that was never there is waited for",
        "infra/kafka/deleted_topics.py",
        "for topic in self._topics if topic in self._seen - set(known)}",
        "for topic in self._topics if topic not in known}",
        (f"{DELETED}test_a_topic_that_was_never_there_is_waited_for",),
    ),
    Mutant(
        "deleted-at-once",
        "a topic that comes back within the patience was not deleted",
        "infra/kafka/deleted_topics.py",
        'if now - since >= self._patience_s), "")',
        '), "")',
        (
            f"{DELETED}test_a_topic_that_was_there_and_stays_away_while_kafka_answers_is_gone",
            f"{DELETED}test_a_broker_that_does_not_answer_or_does_not_know_its_topics_yet_has_deleted_none",
        ),
    ),
    Mutant(
        "gone-at-once",
        "a topic that comes back is a pause",
        "infra/kafka/transactions.py",
        "if time.monotonic() - begun >= GONE_S:",
        "if True:",
        (f"{TRANSACTIONS}test_a_topic_that_stays_away_ends_the_component_and_one_that_comes_back_is_a_pause",),
    ),
    Mutant(
        "gone-partition",
        "a topic that has come back with fewer partitions is gone",
        "infra/kafka/transactions.py",
        " and (record.partition < 0 or record.partition in topics[record.topic].partitions)",
        "",
        (f"{TRANSACTIONS}test_a_topic_that_stays_away_ends_the_component_and_one_that_comes_back_is_a_pause",),
    ),
)
