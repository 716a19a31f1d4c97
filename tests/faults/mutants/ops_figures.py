"""Protections of what is shown of a run, of its processes and of its servers, taken out one each."""

from __future__ import annotations

from mutants.mutant import Mutant

DEATHS = "tests/unit/test_patience.py::"
PROBE = "tests/unit/test_server_probe.py::"
STANDSTILL = "tests/unit/test_standstill.py::"
STORE_ACCESS = "tests/unit/test_store_access.py::"
SUPERVISOR = "tests/integration/test_supervisor.py::"

ADVICE = "tests/unit/test_advice.py::"

OPS_FIGURES = (
    Mutant(
        "one-reward-unsaid",
        "rewards of one value throughout are reported",
        "ops/figures/advice.py",
        "len(set(rewards)) > 1:",
        "True:",
        (f"{ADVICE}test_one_reward_throughout_is_told_before_the_first_version_and_ends_with_the_first_other_one",),
    ),
    Mutant(
        "held-out-noise",
        "a fall of held-out reward that may be noise is no sign of reward hacking",
        "ops/figures/advice.py",
        "max(MATTERS, SIGMAS * error)",
        "0.0",
        (f"{ADVICE}test_training_reward_that_rises_while_held_out_falls_is_told",),
    ),
    Mutant(
        "workflows-compared",
        "evaluations of several workflows are not compared with one another",
        "ops/figures/advice.py",
        "[result for result in evals if result.workflow == workflow]",
        "evals",
        (f"{ADVICE}test_evaluations_of_several_workflows_are_not_compared_with_one_another",),
    ),
    Mutant(
        "advice-on-other-words",
        "advice rests on first uses of training groups alone",
        "ops/first_word.py",
        'return outcome.level == "group" and outcome.component',
        "return outcome.component",
        (f"{ADVICE}test_only_a_curators_word_on_the_first_use_of_a_training_group_counts",),
    ),
    Mutant(
        "mean-of-policies",
        "the closing page has the rewards of each policy",
        "app/views/closing.py",
        'whose = f"{policy}, {block.versions} versions: " if len(policies) > 1 else ""',
        'whose = ""',
        ("tests/unit/test_summary.py::test_the_closing_page_has_the_rewards_of_each_policy_and_no_mean_of_them",),
    ),
    Mutant(
        "failing-for-ever",
        "a run in which nothing ever succeeds is given up after the recipe's time",
        "ops/figures/standstill.py",
        "hopeless = never and 0 < limit_s",
        "hopeless = False and 0 < limit_s",
        (f"{STANDSTILL}test_a_run_in_which_nothing_ever_succeeds_is_hopeless_after_the_recipes_time",),
    ),
    Mutant(
        "given-up-though-some-succeeded",
        "a run in which an episode has succeeded is not given up",
        "ops/figures/standstill.py",
        "hopeless = never and 0 < limit_s",
        "hopeless = 0 < limit_s",
        (f"{STANDSTILL}test_a_run_in_which_nothing_ever_succeeds_is_hopeless_after_the_recipes_time",),
    ),
    Mutant(
        "failures-of-before",
        "failures from before the run was started again do not count against it",
        "ops/figures/standstill.py",
        "self.seen.episodes.failing(self.variant, self.around.began_ms)",
        "self.seen.episodes.failing(self.variant, 0)",
        (f"{STANDSTILL}test_a_run_in_which_nothing_ever_succeeds_is_hopeless_after_the_recipes_time",),
    ),
    Mutant(
        "succeeds-and-fails",
        "an episode that succeeds ends the report that all fail",
        "ops/figures/failing.py",
        "            self._succeed(variant, at_ms)\n",
        "            pass\n",
        (f"{STANDSTILL}test_one_episode_that_succeeds_ends_it_and_failures_after_it_count_anew",),
    ),
    Mutant(
        "hopeless-goes-on",
        "`up` ends a run that is hopeless",
        "app/launcher/launcher.py",
        "            if page.hopeless:\n",
        "            if False:\n",
        ("tests/unit/test_launcher.py::test_a_run_in_which_no_episode_ever_succeeds_is_given_up_with_exit_code_1",),
    ),
    Mutant(
        "errors-twice",
        "a failed episode counts once, however many policies play it",
        "ops/episode_errors.py",
        "count=max(self._counts[kind].values())",
        "count=sum(self._counts[kind].values())",
        ("tests/unit/test_failures.py::test_errors_are_counted_over_groups_and_once_for_all_policies_of_a_task",),
    ),
    Mutant(
        "silent-server",
        "a server that takes connections and says nothing is reported",
        "infra/embedded/server_probe.py",
        "self._missed += 1",
        "self._missed += 0",
        (f"{PROBE}test_a_server_is_silent_after_two_questions_in_a_row_without_an_answer",),
    ),
    Mutant(
        "unasked-with-patience",
        "a question to a server ends",
        "infra/embedded/server_probe.py",
        "asked = kind(address.endpoint, timeout=timeout_s)",
        "asked = kind(address.endpoint, timeout=60)",
        (f"{PROBE}test_a_server_that_takes_connections_and_says_nothing_does_not_answer",),
    ),
    Mutant(
        "overdue-for-ever",
        "a version that does not come is overdue",
        "ops/figures/standstill.py",
        "if at_once or one.overdue_ms > 0",
        "if at_once",
        (f"{STANDSTILL}test_a_worker_that_rolls_beside_one_that_waits_is_not_what_is_short",),
    ),
    Mutant(
        "rest-is-a-version",
        "times at rest do not make a version late for ever",
        "ops/figures/standstill.py",
        "took[(len(took) - 1) * 3 // 4]",
        "took[-1]",
        (f"{STANDSTILL}test_a_version_is_overdue_after_five_times_what_most_took_and_after_a_minute_at_least",),
    ),
    Mutant(
        "burnt-unseen",
        "a run of which nearly all groups are dropped says so while versions come",
        "ops/figures/standstill.py",
        "return next(filter(None, (one.hardly_any_group() for one in stands)), None)",
        "return None",
        (f"{STANDSTILL}test_drops_of_nearly_all_groups_are_told_while_versions_come",),
    ),
    Mutant(
        "given-up-unexplained",
        "a run that is given up says what it stood still for",
        "app/launcher/launcher.py",
        "(str(error), page.standstill)",
        "(str(error),)",
        ("tests/unit/test_launcher.py::test_a_run_that_is_given_up_says_what_it_stood_still_for",),
    ),
    Mutant(
        "deaths-at-one-place",
        "a component that dies while the run gets no further is given up, whatever its lives and exit codes",
        "infra/process/patience.py",
        " or self.stuck >= self.patience.most_deaths",
        "",
        (
            SUPERVISOR
            + "test_a_child_that_dies_while_the_run_gets_no_further_is_given_up_whatever_its_lives_and_exit_code",
        ),
    ),
    Mutant(
        "deaths-of-an-outage",
        "deaths count for nothing while a server is away",
        "infra/process/patience.py",
        "if progress is not None:",
        "if True:",
        (f"{DEATHS}test_deaths_while_nobody_can_get_further_count_for_nothing",),
    ),
    Mutant(
        "death-in-silence",
        "the first death of a component is reported with its error and its log",
        "infra/process/supervisor.py",
        "self._report(child, life, reported)",
        "pass",
        (f"{SUPERVISOR}test_a_death_is_told_with_the_last_error_and_the_log_and_told_again_only_for_another_error",),
    ),
    Mutant(
        "death-without-its-line",
        "the death of a component is reported with the line of the user's own code",
        "infra/process/supervisor.py",
        "        place = own_place_in(lines)\n",
        '        place = ""\n',
        (f"{SUPERVISOR}test_a_death_in_the_users_own_code_is_told_with_its_line_and_stays_with_the_child",),
    ),
    Mutant(
        "keys-on-a-topic",
        "no record holds the keys of a store",
        "infra/run/run.py",
        '"access_key": "", "secret_key": ""}',
        '"access_key": address.access_key, "secret_key": address.secret_key}',
        (f"{STORE_ACCESS}test_the_keys_of_an_embedded_store_are_in_no_record_and_are_read_where_it_keeps_them",),
    ),
    Mutant(
        "keys-of-another-store",
        "an embedded store is asked with its own keys, whatever the environment holds",
        "infra/run/run.py",
        "access_key, secret_key = kept_keys(keys_file)",
        "pass",
        (f"{STORE_ACCESS}test_the_keys_of_an_embedded_store_are_in_no_record_and_are_read_where_it_keeps_them",),
    ),
)
