"""Writes the table of topic settings into `docs/shared-cluster.md`, from what the code requires.

Run it as `python -m headrace.ops.topic_settings_page`, in a clone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from headrace.ops.preflight.cluster import LEAST
from headrace.schemas.topics import LARGEST, Topics

PAGE = Path("docs") / "shared-cluster.md"
BEGIN = "<!-- Written by `python -m headrace.ops.topic_settings_page`. -->\n"
END = "<!-- End of the table. -->\n"


def render_table() -> str:
    """Return the table: the topics with equal settings, what a run requires of them, and what is better."""
    return "\n".join(["| topics | required | better |", "|---|---|---|", *_render_rows()]) + "\n"


def put_into_page(page: str) -> str:
    """Return the text of the page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render_table()}\n{END}{after}"


def _render_rows() -> Iterator[str]:
    rows: dict[tuple[str, str], list[str]] = {}
    for spec in Topics("RUN").all(("WORKFLOW",), ("POLICY",), 1):
        cells = _render_settings(spec.config), _render_settings(spec.made_with)
        rows.setdefault(cells, []).append(f"`{spec.name.split('.')[1]}`")
    for (required, better), names in rows.items():
        yield f"| {', '.join(names)} | {required} | {better} |"
    least = (f"`{key}` {value} or more" for key, value in LEAST.items())
    yield f"| all | {', '.join(least)}, as by default | |"


def _render_settings(settings: Mapping[str, str]) -> str:
    shown = (f"`{key}` {value} or more" if key == LARGEST else f"`{key}={value}`" for key, value in settings.items())
    return ", ".join(shown)


def main() -> None:
    """Write the table into the page of the clone that is the working folder."""
    PAGE.write_text(put_into_page(PAGE.read_text()))


if __name__ == "__main__":
    main()
