"""The files beside a policy's weights: config for the engine, tokenizer for the actors. Nothing is downloaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.files import TOKENIZER_FILE, FilesError, choose_files_to_serve, write_files
from headrace.infra.weights.model_config import read_context
from headrace.infra.weights.prompt_tokens import encode_plain, encode_prompt, encode_rendered, render_messages
from headrace.schemas.records import WeightsPublished

NAMES_OF_EOS = ("config.json", "generation_config.json")


def fetch_policy_files(store: ObjectStore, published: WeightsPublished, folder: Path) -> Path:
    """Write config and tokenizer into a folder, and the base of an adapter; all verified. Return the folder.

    Raises FilesError, StoreError and Unavailable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_files(choose_files_to_serve(published.files), folder, Uncached(store).get)
    return folder


class Tokenizer:
    """Converts text to tokens and back, for the actors of one policy."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            self.hash = blake3((folder / TOKENIZER_FILE).read_bytes()).hexdigest()
        except (OSError, ValueError) as error:
            raise FilesError(f"no tokenizer can be loaded from the files of the policy: {error}") from error
        self.stop_ids = _stop_ids(folder, self._tokenizer.eos_token_id)
        """Tokens that end a generation, the tokenizer's own EOS first."""
        self.context = read_context(_read_json(folder / "config.json")) or sys.maxsize
        """Most tokens of one sequence, by the model's config; unlimited where it names no number."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return messages and the prompt for an answer as text, by the model's own chat template.

        Raises NoChatTemplate for tools without a chat template, and what the template raises.
        """
        return render_messages(self._tokenizer, messages, tools, template_arguments or {})

    def encode(self, text: str) -> list[int]:
        """Return the ids of a user's turn and the prompt for an answer, by the chat template if there is one.

        It begins a sequence: special tokens that the tokenizer puts there, such as one BOS, come first.
        """
        return encode_prompt(self._tokenizer, text)

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of text as it is, no special token added."""
        return encode_plain(self._tokenizer, text)

    def encode_rendered(self, text: str) -> list[int]:
        """Return the ids of a rendered conversation that begins a sequence, start tokens once before it."""
        return encode_rendered(self._tokenizer, text)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, special_tokens: bool = False) -> str:
        """Return the text, special tokens left out unless they are asked for."""
        text: str = self._tokenizer.decode(list(map(int, ids)), skip_special_tokens=not special_tokens)
        return text


def _stop_ids(folder: Path, tokenizer_eos: int | None) -> tuple[int, ...]:
    found: set[int] = set()
    for name in NAMES_OF_EOS:
        named = _read_json(folder / name).get("eos_token_id")
        given = named if isinstance(named, list) else [named]
        found.update(stop for stop in given if isinstance(stop, int) and stop >= 0)  # some have -1 or null for no token
    others = sorted(found - {tokenizer_eos})
    return (*([] if tokenizer_eos is None else [tokenizer_eos]), *others)


def _read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found
