"""Trajectories of an archive as a Parquet file: tokens, rewards, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_offline_training import archive, curated, recipe

from headrace.app.views.offline_page import LEFT_OUT, export_page
from headrace.infra.archive.writing import ArchiveWriter
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.ops.offline import parquet_file
from headrace.ops.offline.exporter import _build_token_columns, export
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    ClaimCheck,
    CuratedGroup,
    GroupUse,
    NamedObject,
    Outcome,
    RecipeRevision,
    TrajectoryGroup,
    WeightsPublished,
)

PLAYED, OUTCOMES, BATCHES, WEIGHTS = (f"t.{name}.solver" for name in ("trajectories", "outcomes", "batches", "weights"))


def pyarrow_parquet() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="the optional extra parquet is not installed")


def played(number: int) -> Message:
    """The trajectories of the same group that `curated` makes."""
    made = curated(number, head=3)
    return replace(made, topic=PLAYED, value=codec.decode(made.value, CuratedGroup).group)


def outcome(number: int, verdict: str, reason: str = "", trajectory: str = "") -> Message:
    level = "trajectory" if trajectory else "group"
    record = Outcome("run-1", "sums", number, level=level, trajectory_id=trajectory, verdict=verdict, reason=reason)
    return Message(OUTCOMES, 0, 0, b"", codec.encode(record))


def batch(version: int, *uses: tuple[int, int]) -> Message:
    """A version of groups, each a number and a use."""
    groups = tuple(GroupUse("sums", number, use, 0, 0) for number, use in uses)
    return Message(BATCHES, 0, 0, b"", codec.encode(BatchTrained("run-1", "solver", version=version, groups=groups)))


def written(
    root: Path, messages: Sequence[Message], objects: dict[str, bytes] | None = None, of: Recipe | None = None
) -> Path:
    told = RecipeRevision(run_id="run-1", recipe=(of or recipe()).to_json(), schemas=codec.schema_texts())

    def fetch(claim: ClaimCheck, path: Path) -> None:
        path.write_bytes((objects or {})[claim.key])

    def claims(_: str, fields: dict[str, Any]) -> list[ClaimCheck]:
        return [ClaimCheck(**file["claim"]) for file in fields.get("files", ()) if file["claim"]]

    with ArchiveWriter(root, "t", "run-1", fetch, claims) as writer:
        for topic in ("t.recipe", PLAYED, OUTCOMES, BATCHES, WEIGHTS):
            writer.add_topic(topic, 1, {})
        writer.write(Message("t.recipe", 0, 0, b"", codec.encode(told)))
        for offset, message in enumerate(messages):
            writer.write(replace(message, offset=offset))
        writer.save()
    return root


def rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pyarrow_parquet().read_table(file).to_pylist()
    return found


def test_a_row_holds_the_tokens_of_a_sequence_and_what_became_of_it(tmp_path: Path) -> None:
    parquet = pyarrow_parquet()
    words = [
        *(played(number) for number in range(5)),
        played(1),
        outcome(0, "kept"),
        outcome(1, "kept"),
        outcome(2, "dropped", "zero_variance"),
        outcome(3, "kept"),
        outcome(3, "dropped", "overlong", trajectory="sums:3:2"),
        batch(4, (0, 0), (3, 0)),
        batch(-1, (1, 0)),
        batch(6, (3, 1)),
        outcome(1, "expired", "expired"),
    ]

    done = plain(export(written(tmp_path / "a", words), None, tmp_path / "out.parquet"))

    assert (done["rows"], done["trajectories"], done["texts"], done["skipped"]) == (24, 24, False, {})
    assert done["outcomes"] == {"dropped": 5, "expired": 4, "repeated": 4, "trained": 7, "unknown": 4}
    found = rows(tmp_path / "out.parquet")
    assert {name: str(kind) for name, kind in zip(*_columns(parquet, tmp_path / "out.parquet"), strict=True)} == {
        name: kind.replace("list<", "list<element: ").replace("float64", "double")
        for name, kind in parquet_file.PARQUET_COLUMNS.items()
    }
    by_id = {row["trajectory"]: row for row in reversed(found)}
    one = by_id["sums:3:1"]
    group = codec.decode(played(3).value, TrajectoryGroup)
    [sequence] = group.trajectories[1].sequences
    assert one["prompt_ids"] + one["completion_ids"] == sequence.ids.tolist()
    assert len(one["prompt_ids"]) == 2
    assert one["completion_logprobs"] == sequence.logprobs[2:].tolist()
    assert (one["completion_mask"], one["completion_versions"]) == ([True] * 4, [2] * 4)
    assert (one["reward"], one["finish_reason"], one["stream"], one["number"]) == (1.0, "stop", "sums", 3)
    assert (one["outcome"], one["trained_versions"]) == ("trained", [4, 6])
    assert (by_id["sums:3:2"]["outcome"], by_id["sums:3:2"]["reason"]) == ("dropped", "overlong")
    assert (by_id["sums:2:0"]["outcome"], by_id["sums:2:0"]["reason"]) == ("dropped", "zero_variance")
    assert one["prompt"] is None


def _columns(parquet: Any, file: Path) -> tuple[list[str], list[Any]]:
    schema = parquet.read_schema(file)
    return schema.names, schema.types


def test_curated_groups_serve_where_no_trajectories_are_archived_and_replays_are_no_rows(tmp_path: Path) -> None:
    pyarrow_parquet()
    archive(tmp_path / "a", [[curated(0), curated(1), curated(0, use=1, back=2)]])

    done = plain(export(tmp_path / "a", "solver", tmp_path / "out.parquet"))

    assert (done["topic"], done["rows"]) == ("curated.solver", 8)
    assert {row["number"] for row in rows(tmp_path / "out.parquet")} == {0, 1}


def test_texts_are_those_of_the_tokenizer_beside_the_weights(tmp_path: Path) -> None:
    pyarrow_parquet()
    from blake3 import blake3
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    text = Tokenizer(WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0")).to_str().encode()
    import hashlib

    claim = ClaimCheck("main", f"files/{blake3(text).hexdigest()}", hashlib.sha256(text).hexdigest(), len(text))
    event = WeightsPublished("run-1", "solver", files=(NamedObject("tokenizer.json", claim),))
    told = Message(WEIGHTS, 0, 0, b"", codec.encode(event))

    done = plain(export(written(tmp_path / "a", [played(0), told], {claim.key: text}), None, tmp_path / "out.parquet"))

    assert done["texts"] is True
    for row in rows(tmp_path / "out.parquet"):
        assert row["completion"] == " ".join(f"w{i}" for i in row["completion_ids"])


def test_what_cannot_be_read_is_counted_and_the_rest_is_there(tmp_path: Path) -> None:
    pyarrow_parquet()
    group = codec.decode(played(2).value, TrajectoryGroup)
    [sequence] = group.trajectories[0].sequences
    torn, foreign = replace(sequence, spans=sequence.spans[:1]), replace(sequence, ids=sequence.ids - 100)
    member = replace(group.trajectories[0], sequences=(torn, foreign))
    words = [
        played(0),
        replace(played(1), value=b"junk"),
        replace(played(2), value=codec.encode(replace(group, trajectories=(member, *group.trajectories[1:])))),
        replace(played(3), value=codec.encode(replace(group, run_id="run-2"))),
        replace(played(4), value=codec.encode(replace(group, claim=ClaimCheck("main", "gone", "0" * 64, 4)))),
    ]

    table = export(written(tmp_path / "a", words), None, tmp_path / "out.parquet")
    done = plain(table)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(export_page(table))

    assert (
        "Left out as missing_object, 1 in all: groups whose object is not in the archive, or is damaged." in shown.get()
    )
    assert LEFT_OUT.keys() == {*done["skipped"], "empty"}, "documents of ATIF alone leave empty trajectories out"
    assert done["skipped"] == {"malformed": 2, "missing_object": 1, "other_run": 1, "undecodable": 1}
    assert len(rows(tmp_path / "out.parquet")) == done["rows"] == 7


def test_no_tokenizer_is_asked_to_decode_a_negative_id() -> None:
    [sequence] = codec.decode(played(2).value, TrajectoryGroup).trajectories[0].sequences
    with pytest.raises(ValueError, match=r"token id -.* is negative"):
        _build_token_columns(replace(sequence, ids=sequence.ids - 100))


def test_rows_are_written_in_parts_and_the_file_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pyarrow_parquet()
    monkeypatch.setattr(parquet_file, "ROWS_OF_GROUP", 10)
    folder = written(tmp_path / "a", [played(number) for number in range(6)])

    export(folder, None, tmp_path / "out.parquet")
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3

    with pytest.raises(UsageError, match="already exists"):
        export(folder, None, tmp_path / "out.parquet")
    with pytest.raises(UsageError, match="cannot write"):
        export(folder, None, tmp_path / "none" / "out.parquet")
    with pytest.raises(KeyError), parquet_file.ParquetFile(tmp_path / "failed.parquet"):
        raise KeyError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out.parquet"]
