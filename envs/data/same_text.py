"""The form of a problem's text that decides whether two problems are the same; policies see the text as it is written.

Rows of one problem differ in what no reader sees: `What is 1+1?` with a blank or a CRLF at its end, a no-break space,
an accent that is a character of its own.
"""

from __future__ import annotations

import json
import unicodedata

from headrace.envs.messages import Prompt

_BLANKS = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u200b\u2060\ufeff"
"""Zero-width characters that join or separate nothing, such as a byte order mark."""
_CHARACTERS = str.maketrans(dict.fromkeys(_BLANKS, " ") | dict.fromkeys(_INVISIBLE, ""))


def canonicalise(text: str) -> str:
    """Return a text in NFC, with one kind of blank and of line end, and without blanks at its ends or those of lines.

    Blanks within a line and tabs stay, because in code they have a meaning.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).translate(_CHARACTERS)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def identify_prompt(prompt: Prompt) -> str:
    """Return the same text for all spellings of a prompt: a text, or messages, of which one of a user is a text."""
    if isinstance(prompt, str):
        return canonicalise(prompt)
    messages = [{**message, "content": canonicalise(message["content"])} for message in prompt]
    if len(messages) == 1 and messages[0].keys() == {"role", "content"} and messages[0]["role"] == "user":
        return canonicalise(prompt[0]["content"])
    return json.dumps(messages, sort_keys=True)
