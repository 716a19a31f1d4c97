"""Protections of the curator and the evaluator, taken out one each."""

from __future__ import annotations

from mutants.catchers import CURATION, DEAD, ISSUED, ISSUES, PUBLISHED, SWAP
from mutants.mutant import Mutant

FIRST = (
    "tests/integration/test_published_versions.py::test_a_group_that_comes_before_the_first_version_moves_no_clock_"
    "and_a_restore_decides_the_same"
)
LATE = (
    "tests/integration/test_published_versions.py::test_a_partition_that_sees_no_group_for_thousands_of_versions_"
    "takes_the_next_one_live_archived_and_replayed"
)
NEVER_ISSUED = "test_a_group_of_a_number_that_was_never_issued_concludes_nothing_and_is_no_first_of_its_number"
CHAIN_REPLAYS = "tests/unit/test_replays.py::"

CONSUMERS_CURATE = (
    Mutant(
        "errors-unbounded",
        "an outcome carries a bounded number of errors, whatever a worker wrote",
        "schemas/episode_errors.py",
        "key=lambda kind: -counts[kind])[:MOST_KINDS]",
        "key=lambda kind: -counts[kind])",
        ("tests/unit/test_failures.py::test_an_outcome_carries_each_error_once_the_most_frequent_first_and_bounded",),
    ),
    Mutant(
        "unpublished-clock",
        "a group of a version that is not published moves no clock",
        "consumers/curate/curator.py",
        "elif version > self._clock and not is_published(message, group):",
        "elif False:",
        (f"{CURATION}test_a_group_of_a_version_that_is_not_published_is_dead_and_moves_nothing", PUBLISHED),
    ),
    Mutant(
        "published-by-now",
        "a version counts from the moment that it is published",
        "consumers/curate/published_versions.py",
        "        if version > self._newest:\n            ends",
        "        if version > self._newest and self._reader is None:\n            ends",
        (
            f"{PUBLISHED.partition('::')[0]}::test_a_version_counts_as_published_from_the_moment_that_it_stands_on_its_topic",
        ),
    ),
    Mutant(
        "shadow-letters",
        "a shadow concludes no number of its policy",
        "consumers/curate/curator.py",
        "if not context.is_shadow or",
        "if True or",
        (f"{CURATION}test_what_a_shadow_cannot_read_it_concludes_as_the_policy_does_and_without_a_letter",),
    ),
    Mutant(
        "shadow-sent-back",
        "a shadow concludes a number once, be it sent back to its policy or not",
        "consumers/curate/curator.py",
        "was_sent_back(message) and not self._context.is_shadow",
        "was_sent_back(message)",
        (f"{CURATION}test_what_is_sent_back_is_a_repetition_to_a_shadow",),
    ),
    Mutant(
        "unread-without-snapshot",
        "a snapshot follows what could not be read, be it told by a letter or by an outcome",
        "consumers/curate/curator.py",
        "        self.was_unread = True\n",
        "        self.was_unread = not self._context.is_shadow\n",
        (f"{CURATION}test_what_a_shadow_cannot_read_it_concludes_as_the_policy_does_and_without_a_letter",),
    ),
    Mutant(
        "shadow-before-its-chain",
        "groups of before a shadow was there have a chain",
        "consumers/curate/context.py",
        "return next(later, recipes[revision])",
        "return recipes[revision]",
        (f"{CURATION}test_groups_of_before_a_shadow_was_there_go_through_the_first_chain_that_it_had",),
    ),
    Mutant(
        "swap-early-end",
        "an old chain stays while groups for it may come",
        "consumers/curate/chain_ends.py",
        "return min(later, default=settled + 1) <= settled",
        "return min(later, default=settled + 1) <= settled + 100",
        (f"{SWAP}test_an_old_chain_ends_when_all_below_the_first_number_of_the_new_one_is_concluded",),
    ),
    Mutant(
        "swap-other-stream",
        "an old chain stays while another stream may still have groups for it",
        "consumers/curate/chain_ends.py",
        "if revision == newest or not all(",
        "if revision == newest or not any(",
        (f"{SWAP}test_a_chain_does_not_end_while_another_stream_of_its_policy_may_still_have_groups_for_it",),
    ),
    Mutant(
        "algorithm-that-fails",
        "a group over which an algorithm fails does not end the curator",
        "consumers/curate/curator.py",
        "        except AlgorithmFailed as error:\n            return self._failed(message, stamp, error)",
        "        except ZeroDivisionError:\n            raise",
        (f"{CURATION}test_a_group_over_which_an_algorithm_fails_is_dead_and_the_next_one_is_kept",),
    ),
    Mutant(
        "algorithm-that-fails-each-time",
        "an algorithm that fails over every group ends the curator, and no rollouts are used up for it",
        "consumers/curate/curator.py",
        "if self._failures >= MOST_FAILURES:",
        "if False:",
        (f"{CURATION}test_an_algorithm_that_fails_over_one_group_after_the_other_ends_the_curator_with_its_words",),
    ),
    Mutant(
        "no-dedupe",
        "a number concludes once",
        "consumers/curate/dedupe.py",
        "if after and index < runs[after - 1][1]:\n            return False\n",
        "if after and index < runs[after - 1][1]:\n            return True\n",
        (
            "tests/unit/test_dedupe.py::test_each_number_is_concluded_once_in_any_order_and_with_any_repetition",
            f"{CURATION}test_a_repetition_gives_nothing_even_after_a_restore",
        ),
    ),
    Mutant(
        "any-partition",
        "a number belongs to one partition",
        "consumers/curate/curator.py",
        "if not self._dedupe.belongs(stamp.number):",
        "if False:",
        (DEAD,),
    ),
    Mutant(
        "silent-skip",
        "what cannot be read becomes a dead letter",
        "consumers/curate/curator.py",
        "            return self._dead(message, rejected)\n        self._clock",
        "            return []\n        self._clock",
        (DEAD,),
    ),
    Mutant(
        "old-chains-stay-full",
        "a chain through which no group comes any more forgets with the clock",
        "consumers/curate/revision_chains.py",
        "            chain.forget_stale(clock)\n",
        "            pass\n",
        (f"{CHAIN_REPLAYS}test_a_chain_of_an_old_revision_forgets_what_is_stale_though_no_group_comes_through_it",),
    ),
    Mutant(
        "snapshots-ahead-of-the-clock",
        "a snapshot changes nothing of what follows",
        "consumers/curate/revision_chains.py",
        "            chain.forget_stale(clock)\n",
        "            chain.forget_stale(clock + 1)\n",
        (f"{CHAIN_REPLAYS}test_a_snapshot_at_any_time_changes_nothing_of_what_follows",),
    ),
    Mutant(
        "time-travel",
        "the clock of a run of before that rule takes no leap",
        "consumers/curate/curator.py",
        "if version > max(self._clock, 0) + LARGEST_LEAP:",
        "if False:",
        (f"{CURATION}test_a_head_version_from_far_ahead_is_dead_and_moves_nothing",),
    ),
    Mutant(
        "replays-counted",
        "a replay is the next use of its group, and no other",
        "consumers/curate/uses.py",
        "if use.use != known.uses:",
        "if False:",
        (f"{CHAIN_REPLAYS}test_what_is_no_next_use_of_a_group_that_was_kept_is_refused",),
    ),
    Mutant(
        "replays-restored",
        "a curator that comes back knows what it curated",
        "consumers/curate/curator.py",
        '        self._uses.restore(state["uses"])\n',
        "",
        (f"{CHAIN_REPLAYS}test_the_same_records_give_the_same_replays_whether_live_or_restored_half_way",),
    ),
    Mutant(
        "replays-forgotten-late",
        "a group is forgotten after the last use that its chain asked for",
        "consumers/curate/curator.py",
        "        outgoing = self._messages_of(results, group, message.value)\n",
        "        self._uses.forget(first, chain)\n"
        "        outgoing = self._messages_of(results, group, message.value)\n",
        (f"{CHAIN_REPLAYS}test_what_a_chain_holds_no_more_is_forgotten_but_not_before_its_last_use",),
    ),
    Mutant(
        "chain-of-each-revision",
        "revisions in a row that have one chain share what it remembers",
        "consumers/curate/revision_chains.py",
        "        while revision > 0 and built(revision - 1) == own:\n",
        "        while False:\n",
        ("tests/unit/test_swap.py::test_revisions_in_a_row_that_have_one_chain_share_what_it_remembers",),
    ),
    Mutant(
        "leap-of-published",
        "any version that is published moves the clock, however far ahead it is",
        "consumers/curate/curator.py",
        "        if is_published is None:\n            if version",
        "        if True:\n            if version",
        (f"{CURATION}test_a_published_version_moves_the_clock_however_far_ahead_it_is", LATE),
    ),
    Mutant(
        "before-the-first",
        "before the first version is published a group of any is dead",
        "consumers/curate/published_versions.py",
        "        return version <= self._newest\n",
        "        return version <= self._newest or self._newest < 0\n",
        (FIRST,),
    ),
    Mutant(
        "replayed-verdict",
        "a replay goes by what the run decided, not by what is published where it is replayed",
        "consumers/curate/published_versions.py",
        "self.has(group.head_version) if verdict is None else verdict != TIME_TRAVEL",
        "self.has(group.head_version)",
        (PUBLISHED, LATE),
    ),
    Mutant(
        "any-number",
        "a group of a number that was never issued concludes nothing",
        "consumers/curate/curator.py",
        "if is_issued is not None and not is_issued(message, stamp):",
        "if False:",
        (f"{CURATION}{NEVER_ISSUED}", ISSUED),
    ),
    Mutant(
        "concluded-unissued",
        "the dead letter of a number that was never issued concludes none",
        "consumers/curate/curator.py",
        'if rejected.reason in {"misrouted", NOT_ISSUED} else',
        'if rejected.reason in {"misrouted"} else',
        (f"{CURATION}{NEVER_ISSUED}", ISSUED),
    ),
    Mutant(
        "issued-by-now",
        "a number counts from the moment that its task is committed",
        "consumers/curate/issued_numbers.py",
        "        if number >= self._next[stream]:\n            self._follow",
        "        if False:\n            self._follow",
        (f"{ISSUES}test_a_number_counts_as_issued_from_the_moment_that_its_task_stands_there",),
    ),
    Mutant(
        "issued-before",
        "numbers count whose tasks were deleted",
        "consumers/curate/issued_numbers.py",
        'json.loads(snapshot.body)["next"] if snapshot is not None else {}',
        "{}",
        (f"{ISSUES}test_a_number_counts_as_issued_from_the_moment_that_its_task_stands_there",),
    ),
    Mutant(
        "issued-in-an-open-transaction",
        "tasks are read from where the last transaction ended that is in the feeder's snapshot",
        "consumers/curate/issued_numbers.py",
        "stable_ends(connection, places)",
        "__import__('headrace.infra.kafka.clients', fromlist=['x']).end_offsets(connection, places)",
        (f"{ISSUES}test_a_number_whose_transaction_is_open_when_the_curator_begins_counts_once_it_is_committed",),
    ),
)
