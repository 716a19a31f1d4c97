"""The code of docs/chat.md, as a user copies it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import transformers
from chat_models import chat_tokenizer
from typer.testing import CliRunner

from headrace.app.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "chat.md").read_text()
[CODE], [RECIPE], [SHOWN] = (
    re.findall(rf"^```{kind}\n(.*?)^```\n", PAGE, re.DOTALL | re.MULTILINE) for kind in ("python", "toml", r"(?=\n\$)")
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "products.py").write_text(CODE)
    (tmp_path / "products.toml").write_text(RECIPE.replace("/models/Qwen3-0.6B", str(tmp_path / "model")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "products", raising=False)
    return tmp_path


def test_the_page_shows_what_try_shows(folder: Path) -> None:
    tokenizer = chat_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    command, page = SHOWN.split("\n\n", 1)

    words = shlex.split(command.removeprefix("$ headrace ").replace("\\\n", ""))
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120"})

    assert done.exit_code == 0, done.output
    assert page.rstrip() in "\n".join(line.rstrip() for line in done.stdout.splitlines())
