"""Decodes token ids one by one, with the tokenizer published beside a policy's weights. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from headrace.infra.errors import HeadraceError
from headrace.infra.run.run import Run
from headrace.infra.weights.files import TOKENIZER_FILE
from headrace.schemas.records import NamedObject

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class NoTokenizer(HeadraceError):
    """No published version has a readable tokenizer."""


class TokenTexts:
    """Decodes sequences of one policy."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return each token's text; joined, they give the text of all tokens.

        A character of several tokens belongs to the last of them, and the texts of the others are empty. Each token is
        decoded together with the tokens since the last whole character, as byte-level and space-marking tokenizers
        need.
        """
        found: list[str] = []
        begin = read = 0
        for end in range(1, len(ids) + 1):
            before, now = self._decode(ids[begin:read]), self._decode(ids[begin:end])
            whole = not now.endswith(INCOMPLETE) or end == len(ids)
            found.append(now[len(before) :] if whole else "")
            if whole:
                begin, read = read, end
        return found

    def is_special(self, token: int) -> bool:
        """Return whether a token is a special token, such as an end of sequence, not text."""
        return token in self._special

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)


def token_texts(run: Run, policy: str, files: Iterable[NamedObject]) -> TokenTexts:
    """Return the decoder from the files beside an anchor. Raises NoTokenizer if they have none, and StoreError."""
    for file in files:
        if file.name == TOKENIZER_FILE and file.claim is not None:
            try:
                return TokenTexts(Tokenizer.from_str(run.get(file.claim).decode()))
            except Exception as error:  # the tokenizers library raises bare Exception
                raise NoTokenizer(f"cannot read the {TOKENIZER_FILE} of {policy}: {error}") from error
    raise NoTokenizer(
        f"the tokens of {policy} cannot be shown as text, because no published version has a {TOKENIZER_FILE}"
    )
