"""Special tokens as the tokenizer says: exactly one BOS, in rollouts and in the warm start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers.processors import Sequence as InOrder
from tokenizers.processors import TemplateProcessing

from headrace.infra.weights.policy_files import Tokenizer
from headrace.infra.weights.prompt_tokens import CannotEncode, encode_plain, encode_rendered, render_messages
from headrace.trainers.learner.model import ModelError, encode, encode_completion
from headrace.trainers.learner.warm_start import PromptAndCompletion, _sequence

TWICE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}="
BARE = TWICE.removeprefix("{{ bos_token }}")


def a_tokenizer(single: str = "<s> $A", template: str | None = None) -> Any:
    """One token per character; a post-processor adds what `single` names."""
    vocabulary = {"<s>": 0, "</s>": 1, "2": 2, "+": 3, "=": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.post_processor = InOrder(
        [TemplateProcessing(single=single, special_tokens=[("<s>", 0), ("</s>", 1)])] if single != "$A" else []
    )
    fast: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    return fast


def saved(tokenizer: Any, folder: Path) -> Tokenizer:
    tokenizer.save_pretrained(folder)
    return Tokenizer(folder)


def test_a_prompt_begins_with_the_bos_that_transformers_puts_there(tmp_path: Path) -> None:
    tokenizer = a_tokenizer()
    ours = saved(tokenizer, tmp_path)
    assert ours.encode("2+2") == encode(tokenizer, "2+2") == tokenizer("2+2").input_ids == [0, 2, 3, 2]
    assert ours.encode_plain("2+2") == encode_completion(tokenizer, "2+2") == [2, 3, 2]


@pytest.mark.parametrize("template", [TWICE, BARE])
def test_a_chat_template_that_writes_the_bos_does_not_double_it(tmp_path: Path, template: str) -> None:
    tokenizer = a_tokenizer(template=template)
    assert saved(tokenizer, tmp_path).encode("2+2") == encode(tokenizer, "2+2") == [0, 2, 3, 2, 4]


def test_a_tokenizer_that_adds_nothing_stays_as_it_is(tmp_path: Path) -> None:
    tokenizer = a_tokenizer("$A")
    assert saved(tokenizer, tmp_path).encode("2+2") == encode(tokenizer, "2+2") == tokenizer("2+2").input_ids


def test_no_eos_ends_a_prompt_that_a_generation_goes_on_from(tmp_path: Path) -> None:
    assert saved(a_tokenizer("<s> $A </s>"), tmp_path).encode("2+2") == [0, 2, 3, 2]
    for single, bos, before in (
        ("</s> $A", "<s>", [1]),
        ("</s> $A </s>", "</s>", [1]),
        ("$A </s>", "</s>", []),
        ("$A </s>", None, []),
    ):
        tokenizer = a_tokenizer(single)
        tokenizer.bos_token = bos
        assert encode(tokenizer, "2+2") == [*before, 2, 3, 2], (single, bos)


def test_a_worked_example_has_one_bos_and_it_is_not_before_the_completion() -> None:
    made = _sequence(a_tokenizer(), PromptAndCompletion("2+2=", "2"), 0)
    assert (made.ids.tolist(), made.mask.tolist()) == ([0, 2, 3, 2, 4, 2, 1], [False] * 5 + [True] * 2)


def test_what_a_tokenizer_cannot_encode_is_blamed_on_its_alphabet_only_where_that_lacks_it() -> None:
    characters = a_tokenizer(template="<s>{% for message in messages %}{{ message['content'] }}{% endfor %}")
    with pytest.raises(ModelError, match=r"cannot encode '<s>2-2': its alphabet lacks '-'; add these characters"):
        encode(characters, "2-2")
    with pytest.raises(CannotEncode, match=r"lacks '-1'; add .* the policy's `alphabet` .* at index 2 of the text"):
        encode_plain(characters, "2+1-=")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "two": 1, "plus": 2}))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    of_words = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
    with pytest.raises(ModelError, match=r"cannot encode 'two plus three': Exception: WordLevel error"):
        encode_completion(of_words, "two plus three")


def test_a_worked_example_of_messages_is_rendered_as_a_run_renders_them() -> None:
    tokenizer = a_tokenizer(template=TWICE)
    messages = [{"role": "system", "content": "2+"}, {"role": "user", "content": "2"}]
    made = _sequence(tokenizer, PromptAndCompletion(messages, "2"), 0)
    asked = encode_rendered(tokenizer, render_messages(tokenizer, messages, (), {}))
    assert made.ids[: len(asked)].tolist() == asked
    assert int(made.mask.sum()) == len(made.ids) - len(asked)
    assert PromptAndCompletion(messages, "2").content != PromptAndCompletion("2+2=", "2").content


def test_a_worked_example_gives_its_arguments_to_the_chat_template() -> None:
    tokenizer = a_tokenizer(template="{{ messages[0]['content'] }}{% if add_two %}2{% endif %}")
    plain, more = (PromptAndCompletion("2+2=", "2", arguments) for arguments in ({}, {"add_two": True}))
    assert more.encode_prompt(tokenizer) == [*plain.encode_prompt(tokenizer), *encode_plain(tokenizer, "2")]
