"""One call of a policy: sampling of its own, and where its text ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from chat_models import END, prepare_actor, save_tokenizer

from headrace.envs.contract import Generation
from headrace.infra.weights.policy_files import Tokenizer
from headrace.producers.engines.stop_texts import find_stop
from headrace.producers.rollout.play.actor import EngineActor
from headrace.schemas.records import Sampling


def call(actor: EngineActor, **sampling: Any) -> Generation:
    return asyncio.run(actor.generate(actor.encode_plain("?"), **sampling))


def test_a_call_may_have_sampling_of_its_own_and_it_is_recorded(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    actor = prepare_actor(tokenizer, "abc", "abc")
    usual = call(actor)
    own = call(actor, max_tokens=7, temperature=0.5, top_p=0.9, stop=["x"], stop_ids=[5, 256])
    assert usual.sampling == Sampling(max_tokens=100, stop_ids=(256,))
    assert own.sampling == Sampling(0.5, 0.9, max_tokens=7, stop_ids=(256, 5), stop=("x",))
    engine: Any = actor.engine
    assert engine.sampled == [usual.sampling, own.sampling]


def test_a_generation_ends_with_the_token_that_completes_a_stop_text(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    actor = prepare_actor(tokenizer, f"ab</x>cdef{END}", f"abc{END}", f"a{END}")
    cut = call(actor, stop=["</x>", "f"])
    assert (tokenizer.decode(cut.ids), cut.finish_reason) == ("ab</x>", "stop")
    assert (len(cut.logprobs), cut.version_runs) == (6, ((3, 2), (4, 4)))
    assert cut.routing is not None
    assert len(cut.routing) == 1 + 6 - 1, "the prompt's token, and its own but the last"
    assert actor.tokens == 11, "what the engine made is counted"
    whole = call(actor, stop=["</x>"])
    assert (tokenizer.decode(whole.ids, special_tokens=True), len(whole.ids)) == (f"abc{END}", 4)
    assert call(actor, stop=["a"]).version_runs == ((3, 1),)


def test_a_stop_text_may_end_within_a_token_and_none_is_found_where_there_is_none(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path)
    ids = tokenizer.encode_plain("é.é.")
    assert find_stop(ids, ["é"], tokenizer) == 2
    assert find_stop(ids, ["é.é"], tokenizer) == 5
    assert find_stop(ids, ["x"], tokenizer) is None
    assert find_stop([], ["x"], tokenizer) is None


def test_a_stop_that_would_end_everything_is_refused(tmp_path: Path) -> None:
    actor = prepare_actor(save_tokenizer(tmp_path))
    with pytest.raises(TypeError, match=r"write stop=\['x'\]"):
        call(actor, stop="x")
    with pytest.raises(ValueError, match="empty"):
        call(actor, stop=[""])


def test_several_eos_end_a_generation_the_tokenizers_own_is_first(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"eos_token_id": 7, "text_config": {"max_position_embeddings": 9}})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 3]}))
    tokenizer = Tokenizer(tmp_path)
    assert (tokenizer.stop_ids, tokenizer.context) == ((256, 3, 7, 257), 9)


def test_text_is_decoded_with_special_tokens_or_without(tmp_path: Path) -> None:
    actor = prepare_actor(save_tokenizer(tmp_path))
    ids = actor.encode_plain(f"a{END}")
    assert (actor.decode(ids), actor.decode(ids, special_tokens=True)) == ("a", f"a{END}")
