"""docs/settings.md is what the settings classes say."""

from __future__ import annotations

from pathlib import Path

from headrace.infra.recipe.settings_page import SETTINGS_PAGE, render_page


def test_the_page_is_what_the_settings_classes_say() -> None:
    text = (Path(__file__).parents[2] / SETTINGS_PAGE).read_text()

    assert render_page() == text, "run `python -m headrace.infra.recipe.settings_page`"
