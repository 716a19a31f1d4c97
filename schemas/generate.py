"""Write the `.avsc` files from the record classes, with the text under each field.

Run it as `python -m headrace.schemas.generate`.

They are for producers in other languages, and for the test that holds them true.
"""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

from headrace.schemas import records
from headrace.schemas.avro import schema_of


def docs_of_records() -> dict[str, dict[str, str]]:
    """Return class name to field name to the text under it; the class's own text is under ""."""
    docs: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(records)).body:
        if isinstance(node, ast.ClassDef):
            texts = {"": ast.get_docstring(node) or ""}
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    texts[field.target.id] = ast.literal_eval(text.value)  # type: ignore[attr-defined]  # its text
            docs[node.name] = texts
    return docs


def avsc_texts() -> dict[str, str]:
    """Return file name to text, one per record that stands alone."""
    docs = docs_of_records()
    return {f"{r.__name__}.avsc": json.dumps(schema_of(r, docs), indent=2) + "\n" for r in records.RECORDS}


def main() -> None:
    """Write the files beside this module."""
    folder = Path(__file__).parent / "avsc"
    folder.mkdir(exist_ok=True)
    for name, text in avsc_texts().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
