"""Protections of the evaluator, and of what is alone in its role as it is, taken out one each."""

from __future__ import annotations

from mutants.mutant import Mutant

FENCES = "tests/unit/test_evaluator.py::test_an_evaluator_fences_any_other_before_it_reads_where_that_one_was"

CONSUMERS_EVALUATE = (
    Mutant(
        "alone-unfenced",
        "of two evaluators, as of two feeders, the newer one fences the other",
        "infra/run/own_positions.py",
        'f"{address.run}.{component}"',
        'f"{address.run}.{component}.{id(stop)}"',
        (FENCES,),
    ),
    Mutant(
        "alone-reads-first",
        "an evaluator fences any other before it reads where that one was",
        "infra/run/own_positions.py",
        'writer = TransactionalWriter(joined.connection, f"{address.run}.{component}", joined.topic_names)\n'
        "            life.enter_context(closing(writer))\n"
        "            run_loop(life.enter_context(closing(build(joined, writer))), writer",
        "built = build(joined, None)\n            "
        'writer = TransactionalWriter(joined.connection, f"{address.run}.{component}", joined.topic_names)\n'
        "            life.enter_context(closing(writer))\n"
        "            run_loop(life.enter_context(closing(built)), writer",
        (FENCES,),
    ),
    Mutant(
        "evaluator-positions",
        "a result and the positions that it follows from are written in one turn",
        "consumers/evaluate/evaluator.py",
        "if not self._said and not (self._changed and now >= self._snapshot_due):",
        "if not (self._changed and now >= self._snapshot_due):",
        ("tests/unit/test_evaluator.py::test_a_result_and_the_positions_that_it_follows_from_are_written_in_one_turn",),
    ),
    Mutant(
        "own-positions",
        "who keeps its own positions goes on where it was",
        "infra/run/own_positions.py",
        "if snapshot else {}\n",
        "if snapshot and not snapshot else {}\n",
        (
            "tests/integration/test_feeder.py::test_an_evaluation_concludes_once_over_restarts_claims_and_bytes_that_cannot_be_read",
        ),
    ),
)
