"""docs/shared-cluster.md lists the settings of topics that the code requires."""

from __future__ import annotations

from pathlib import Path

from headrace.ops.topic_settings_page import BEGIN, PAGE, put_into_page


def test_the_table_of_topic_settings_is_what_the_code_requires() -> None:
    text = (Path(__file__).parents[2] / PAGE).read_text()
    assert BEGIN in text
    assert put_into_page(text) == text, "run `python -m headrace.ops.topic_settings_page`"
