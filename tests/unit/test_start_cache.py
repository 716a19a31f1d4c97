from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.infra.embedded import kafka_server
from headrace.infra.embedded.kafka_server import EmbeddedKafka


def test_a_look_leaves_the_recording_of_kafkas_start_cache_to_runs(tmp_path: Path) -> None:
    look, run = (EmbeddedKafka(tmp_path / "kafka", cache=tmp_path, for_a_look=value) for value in (True, False))

    assert look._aot_flags() == [], "its stop would take longer than the look"
    [recording] = run._aot_flags()
    assert recording.startswith("-XX:AOTCacheOutput=")
    run._aot_cache().touch()
    assert look._aot_flags() == [f"-XX:AOTCache={run._aot_cache()}"]


def test_a_cache_that_cannot_be_written_costs_only_what_it_would_have_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file, in which nothing can be made by anybody")
    server = EmbeddedKafka(tmp_path / "kafka", cache=tmp_path / "cache")

    def format_folder(_words: list[str], *, cwd: str, **_how: object) -> SimpleNamespace:
        (Path(cwd) / "data").mkdir()
        (Path(cwd) / "data" / "bootstrap.checkpoint").write_bytes(b"features")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(kafka_server.subprocess, "run", format_folder)
    server.folder.mkdir()
    server._format_log_folder([])

    assert (server.folder / "data" / "bootstrap.checkpoint").read_bytes() == b"features"
    assert server._aot_flags() == []
