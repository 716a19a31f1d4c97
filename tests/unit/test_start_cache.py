from __future__ import annotations

from pathlib import Path

from headrace.infra.embedded.kafka_server import EmbeddedKafka


def test_a_look_leaves_the_recording_of_kafkas_start_cache_to_runs(tmp_path: Path) -> None:
    look, run = (EmbeddedKafka(tmp_path / "kafka", cache=tmp_path, for_a_look=value) for value in (True, False))

    assert look._aot_flags() == [], "its stop would take longer than the look"
    [recording] = run._aot_flags()
    assert recording.startswith("-XX:AOTCacheOutput=")
    run._aot_cache().touch()
    assert look._aot_flags() == [f"-XX:AOTCache={run._aot_cache()}"]
