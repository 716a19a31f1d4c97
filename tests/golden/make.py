"""Write one encoded example of every record, to be read for ever: `python tests/golden/make.py <release>`.

Run it once per release, after its `.avsc` files were copied to `schemas/past/<release>/`; a folder that is there is
never written again. An example is made from a schema alone: every value comes from the path of its field, so the
example of an old schema does not change when fields are added.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from headrace.schemas import codec, records

GOLDEN = Path(__file__).parent
PAST = Path(codec.__file__).parent / "past"


def example(schema: dict[str, Any]) -> Any:
    """Return the example record of a schema; fields that the schema lacks keep their default."""
    return _value(schema, schema["name"], {})


def _value(schema: Any, path: str, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return _value(schema[1], path, named)
    if isinstance(schema, str):
        return _value(named[schema], path, named) if schema in named else _scalar(schema, path)
    match schema["type"]:
        case "record":
            named[f"{schema['namespace']}.{schema['name']}"] = schema
            record = getattr(records, schema["name"])
            known = {field.name for field in dataclasses.fields(record)}
            columns = {f["name"]: _value(f["type"], f"{path}.{f['name']}", named) for f in schema["fields"]}
            return record(**{name: value for name, value in columns.items() if name in known})
        case "array":
            return tuple(_value(schema["items"], f"{path}[{index}]", named) for index in range(2))
        case "map":
            return {key: _value(schema["values"], f"{path}[{key}]", named) for key in ("first", "second")}
        case _:
            return (np.arange(6) - zlib.crc32(path.encode()) % 1000).astype(np.dtype(schema["dtype"]))


def _scalar(kind: str, path: str) -> Any:
    drawn = zlib.crc32(path.encode())
    match kind:
        case "string":
            return f"{path} ü"
        case "long":
            return drawn - 2**31
        case "double":
            return drawn / 1024 - 7.0
        case "boolean":
            return bool(drawn % 2)
        case _:
            return path.encode() + b"\x00\xff"


def main(release: str) -> None:
    folder = GOLDEN / release
    folder.mkdir()
    for file in sorted((PAST / release).glob("*.avsc")):
        record = example(json.loads(file.read_text()))
        (folder / f"{file.stem}.avro").write_bytes(codec.encode(record))


if __name__ == "__main__":
    main(sys.argv[1])
