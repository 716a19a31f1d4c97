"""Write the `.avsc` files from the record classes, with the text under each field.

Run it as `python -m headrace.schemas.generate`.

The files are for producers in other languages; a test checks that they are up to date.
"""

from __future__ import annotations

import json
from pathlib import Path

from headrace.schemas import field_types, group_records, records, run_records, version_records
from headrace.schemas.avro import schema_of
from headrace.schemas.field_texts import read_field_texts


def read_record_docs() -> dict[str, dict[str, str]]:
    """Return class name to field name to the text under it; the class's own text is under ""."""
    docs: dict[str, dict[str, str]] = {}
    for module in (field_types, group_records, run_records, version_records):
        docs |= read_field_texts(module)
    return docs


def render_avsc() -> dict[str, str]:
    """Return file name to text, one per record that can be a message of its own."""
    docs = read_record_docs()
    return {f"{r.__name__}.avsc": json.dumps(schema_of(r, docs), indent=2) + "\n" for r in records.RECORDS}


def main() -> None:
    """Write the files beside this module."""
    folder = Path(__file__).parent / "avsc"
    folder.mkdir(exist_ok=True)
    for name, text in render_avsc().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
