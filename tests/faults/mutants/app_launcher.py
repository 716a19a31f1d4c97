"""Protections of what starts a run, taken out one each."""

from __future__ import annotations

from mutants.mutant import Mutant

BEGINNING = "tests/unit/test_beginning.py::"

APP_LAUNCHER = (
    Mutant(
        "begun-on-nothing",
        "a run does not begin on servers that end with the command",
        "app/launcher/beginning.py",
        "    if unnamed:\n",
        "    if False:\n",
        (f"{BEGINNING}test_a_run_does_not_begin_on_servers_that_would_end_with_the_command",),
    ),
    Mutant(
        "keys-for-all",
        "the keys of the servers are for their owner alone",
        "app/launcher/standing_servers.py",
        "mode=0o600",
        "mode=0o644",
        (f"{BEGINNING}test_the_lines_of_servers_are_of_a_recipe_and_the_keys_are_for_their_owner_alone",),
    ),
    Mutant(
        "watches-its-own-servers",
        "who watches a run starts no servers",
        "app/launcher/watch.py",
        'model_copy(update={"bootstrap": run.connection.bootstrap})',
        "model_copy()",
        (f"{BEGINNING}test_who_watches_asks_the_servers_of_the_run_and_starts_none",),
    ),
)
