"""Protections of records and their codec, taken out one each."""

from __future__ import annotations

from mutants.mutant import Mutant

BUILDS = "tests/integration/test_other_builds.py::"

SCHEMAS = (
    Mutant(
        "deaf-to-other-builds",
        "a schema that is unknown is looked for where its writer told it",
        "schemas/codec.py",
        "        for find in _finders:\n            find()\n",
        "        pass\n",
        (f"{BUILDS}test_a_newer_builds_record_is_read_as_soon_as_its_schema_is_told_and_not_before",),
    ),
    Mutant(
        "short-of-bytes",
        "a message that ends before its record does is refused",
        "schemas/codec.py",
        "        if end == len(data):",
        "        if end >= len(data):",
        ("tests/unit/test_codec.py::test_a_message_cut_short_anywhere_is_refused",),
    ),
    Mutant(
        "foreign-recursive",
        "a schema that holds itself is not learnt",
        "schemas/writers.py",
        "elif not isinstance(schema, str) or schema not in {*SCALARS.values(), *named}:",
        "elif not isinstance(schema, str):",
        ("tests/fuzz/test_readers.py::test_a_schema_that_would_break_the_decoder_is_not_learnt",),
    ),
    Mutant(
        "foreign-of-nothing",
        "a schema whose items take no byte is not learnt",
        "schemas/writers.py",
        " or not isinstance(fields, list) or not fields:",
        " or not isinstance(fields, list):",
        ("tests/fuzz/test_readers.py::test_a_schema_that_would_break_the_decoder_is_not_learnt",),
    ),
    Mutant(
        "foreign-logical",
        "a schema with logical types is not learnt",
        "schemas/writers.py",
        'if "logicalType" in schema or any',
        "if any",
        ("tests/fuzz/test_readers.py::test_a_schema_that_would_break_the_decoder_is_not_learnt",),
    ),
    Mutant(
        "foreign-deep",
        "a schema of types within types without end is not learnt",
        "schemas/writers.py",
        "if len(above) > DEEPEST:",
        "if False:",
        ("tests/fuzz/test_readers.py::test_types_in_types_without_end_are_not_learnt",),
    ),
    Mutant(
        "foreign-unseen",
        "schemas that others wrote are looked at before the decoder gets them",
        "schemas/codec.py",
        "schema = foreign_schema(text)",
        "schema = json.loads(text)",
        ("tests/fuzz/test_readers.py::test_a_schema_that_would_break_the_decoder_is_not_learnt",),
    ),
    Mutant(
        "unweighed",
        "a large message is walked before anything is built of it",
        "schemas/writers.py",
        "if len(body) > LARGE_BYTES:",
        "if False:",
        ("tests/fuzz/test_readers.py::test_a_message_of_millions_of_tiny_items_is_refused_before_they_are_made",),
    ),
)
