"""Deltas between folders, from the command line: what a user of plain Hugging Face folders meets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from headrace.app.cli.weights import app
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.weights import folder as folders
from headrace.infra.weights import offline
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.folder import HASH_KEY, INDEX, SINGLE, open_weights, write_weights
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, WeightsError, hash_weights

SHAPES = {"embed": (50, 16), "norm": (16,), "head": (16, 50)}


def saved(folder: Path, seed: int, change: float = 0.0) -> Path:
    """Write a folder as Hugging Face's own tools do; `change` of its items differ from those of the seed alone."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in SHAPES.items()}
    for array in arrays.values():
        array.view(np.uint16)[rng.random(array.shape) < change] += 1
    folder.mkdir()
    safetensors.numpy.save_file(arrays, folder / SINGLE, metadata={"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "none"}')
    return folder


def loaded(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / SINGLE)


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, list[Path], Path]:
    """A base, the deltas to two versions after it, and the last of those."""
    versions = [saved(tmp_path / f"v{n}", 3, change) for n, change in enumerate((0.0, 0.02, 0.3))]
    deltas = [tmp_path / "1.delta", tmp_path / "2.delta"]
    for n, out in enumerate(deltas):
        offline.encode(versions[n], versions[n + 1], out, Label("p", 0, n, n + 1))
    return versions[0], deltas, versions[2]


def test_what_the_commands_make_of_a_folder_is_what_was_encoded(
    chain: tuple[Path, list[Path], Path], tmp_path: Path
) -> None:
    base, deltas, last = chain
    run = CliRunner()
    made = run.invoke(app, ["apply", str(base), *map(str, deltas), str(tmp_path / "out")])
    assert made.exit_code == 0, made.output
    again, wanted = loaded(tmp_path / "out"), loaded(last)
    assert all((again[name].view(np.uint16) == wanted[name].view(np.uint16)).all() for name in SHAPES)
    assert (tmp_path / "out" / "config.json").read_text() == '{"model_type": "none"}'
    told = json.loads(run.invoke(app, ["verify", str(tmp_path / "out"), "--json"]).output)
    assert told == {"ok": True, "kind": "weights", "weights_hash": told["weights_hash"], "checked": True}
    assert told["weights_hash"] in made.output
    delta = json.loads(run.invoke(app, ["verify", str(deltas[1]), "--json"]).output)
    assert (delta["kind"], delta["weights_hash"]) == ("delta", told["weights_hash"])
    encoded = run.invoke(app, ["encode", str(base), str(last), str(tmp_path / "both.delta"), "--json"])
    assert json.loads(encoded.output)["weights_hash"] == told["weights_hash"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "1.delta", "2.delta", "both.delta", "out", "v0", "v1", "v2",
    ]  # fmt: skip


def test_a_delta_applied_to_its_own_result_changes_nothing(
    chain: tuple[Path, list[Path], Path], tmp_path: Path
) -> None:
    _, deltas, last = chain
    made = CliRunner().invoke(app, ["apply", str(last), str(deltas[1]), str(tmp_path / "out")])
    assert made.exit_code == 0
    assert f"{deltas[1]}: not needed, because BASE_DIR or an earlier delta already gave its weights" in made.output
    assert offline.verify(tmp_path / "out").weights_hash == hash_weights(open_weights(last).tensors)
    assert offline.apply(chain[0], [deltas[0], *deltas], tmp_path / "twice").unneeded == (deltas[0],)
    assert offline.apply(chain[0], deltas, tmp_path / "once").unneeded == ()


def refused(call: object, *words: object) -> str:
    with pytest.raises(HeadraceError) as caught:
        call(*words)  # type: ignore[operator]
    assert caught.value.exit_code == (2 if isinstance(caught.value, UsageError) else 1)
    return str(caught.value)


def test_what_is_not_there_at_all_is_a_usage_error_and_no_damage(
    chain: tuple[Path, list[Path], Path], tmp_path: Path
) -> None:
    base, deltas, _ = chain
    nowhere, out = tmp_path / "nothere", tmp_path / "out"
    for call, words in (
        (offline.verify, (nowhere,)),
        (offline.encode, (base, nowhere, out, Label())),
        (offline.encode, (nowhere, base, out, Label())),
        (offline.apply, (nowhere, deltas, out)),
        (offline.apply, (base, [deltas[0], nowhere], out)),
    ):
        with pytest.raises(UsageError, match=f"^{nowhere} does not exist: "):
            call(*words)  # type: ignore[operator]
    assert not out.exists()


def test_a_folder_with_an_adapter_beside_its_base_is_refused_and_the_adapter_itself_is_read(
    chain: tuple[Path, list[Path], Path], tmp_path: Path
) -> None:
    base, deltas, _ = chain
    both = tmp_path / "both"
    shutil.copytree(base, both)
    adapter = both / "adapter_model.safetensors"
    shutil.copy(both / "model.safetensors", adapter)
    for call, words in (
        (offline.verify, (both,)),
        (offline.encode, (base, both, tmp_path / "out", Label())),
        (offline.apply, (both, deltas, tmp_path / "out")),
    ):
        with pytest.raises(UsageError, match=f"{both} holds an adapter: name its file, {adapter}"):
            call(*words)  # type: ignore[operator]
    assert offline.verify(adapter).weights_hash == offline.verify(base).weights_hash


@pytest.mark.parametrize("damage", ["flipped", "swapped", "missing", "folder"])
def test_a_damaged_delta_is_refused_and_nothing_is_written(
    damage: str, chain: tuple[Path, list[Path], Path], tmp_path: Path
) -> None:
    base, deltas, _ = chain
    data = deltas[1].read_bytes()
    deltas[1].unlink()
    if damage == "flipped":
        deltas[1].write_bytes(data[:99] + bytes([data[99] ^ 4]) + data[100:])
    elif damage == "swapped":
        deltas[1].write_bytes(data)
        deltas.reverse()
    elif damage == "folder":
        deltas[1].mkdir()
    refused(offline.apply, base, deltas, tmp_path / "out")
    if damage != "swapped":
        refused(offline.verify, deltas[1])
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_weights_that_were_altered_are_found_by_the_hash_that_they_carry(
    chain: tuple[Path, list[Path], Path], tmp_path: Path
) -> None:
    base, deltas, last = chain
    offline.apply(base, deltas, tmp_path / "out")
    file = tmp_path / "out" / SINGLE
    data = bytearray(file.read_bytes())
    for at in (len(data) - 1, len(data) // 2, data.index(b"headrace.weights_hash") + 30):
        altered = data.copy()
        altered[at] ^= 1
        file.write_bytes(altered)
        refused(offline.verify, tmp_path / "out")
        refused(offline.encode, tmp_path / "out", last, tmp_path / "new.delta", Label())
        with pytest.raises(WeightsError, match=r"/out: the weights have hash .* the weights were changed"):
            offline.apply(tmp_path / "out", deltas[1:], tmp_path / "again")
    file.write_bytes(data[:-1])
    refused(offline.verify, tmp_path / "out")


def test_large_weights_are_several_files_and_an_index_that_transformers_tools_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    named = {f"t{n}": Tensor("F32", (100,), memoryview(rng.bytes(400))) for n in range(5)}
    folder = tmp_path / "sharded"
    folder.mkdir()
    write_weights(named, folder, hash_weights(named), shard_bytes=1000)
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"]["total_size"] == 2000
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    again = {
        name: array
        for file in set(index["weight_map"].values())
        for name, array in safetensors.numpy.load_file(folder / file).items()
    }
    assert {name: array.tobytes() for name, array in again.items()} == {n: bytes(t.data) for n, t in named.items()}
    assert offline.verify(folder).promised
    monkeypatch.setattr(folders, "SHARD_BYTES", 1000)

    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(WeightsError, match="does not exist"):
        open_weights(folder)
    write_weights({"t9": named["t0"]}, tmp_path, "")
    (tmp_path / SINGLE).rename(folder / "model-00002-of-00003.safetensors")
    with pytest.raises(WeightsError, match="do not agree on whether"):
        open_weights(folder)


def test_weights_that_stand_there_twice_are_refused(tmp_path: Path) -> None:
    named = {f"t{n}": Tensor("F32", (10,), memoryview(bytes(40))) for n in range(2)}
    write_weights(named, tmp_path, hash_weights(named), shard_bytes=40)
    (tmp_path / SINGLE).write_bytes((tmp_path / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(WeightsError, match="remove the wrong one"):
        open_weights(tmp_path)


def test_a_shard_does_not_speak_for_all_of_them(tmp_path: Path) -> None:
    named = {f"t{n}": Tensor("F32", (10,), memoryview(bytes(40))) for n in range(2)}
    write_weights(named, tmp_path, "", shard_bytes=40)
    first = {"t0": named["t0"]}
    metadata = {"format": "pt", HASH_KEY: hash_weights(first)}
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(encode_safetensors(first, metadata))
    assert offline.verify(tmp_path) == offline.Verified("weights", hash_weights(named), promised=False)


def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    for text in ('{"weight_map": {"a": "../a.safetensors"}}', "[]", "{", '{"weight_map": [1]}'):
        (tmp_path / INDEX).write_text(text)
        with pytest.raises(WeightsError):
            open_weights(tmp_path)
