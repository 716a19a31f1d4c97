"""Checks a policy's folder before a trainer reads it: model, weights, tokenizer, chat template.

Neither torch nor transformers is imported, because the headers of the files are enough.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.infra.errors import UsageError
from headrace.infra.git_lfs import describe_pointer
from headrace.infra.recipe.recipe_paths import describe_places
from headrace.infra.recipe.settings import Policy
from headrace.infra.weights.files import ADAPTER_CONFIG, TOKENIZER_FILE
from headrace.infra.weights.folder import INDEX, SINGLE, open_weights
from headrace.infra.weights.model_config import read_config, refuse_longrope, refuse_other_media, refuse_quantised
from headrace.infra.weights.tensors import Tensor, WeightsError

if TYPE_CHECKING:  # the import is slow, and a recipe with an alphabet does not need it
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from tokenizers import Tokenizer

TOKENIZERS = (TOKENIZER_FILE, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""Every tokenizer has at least one of these files."""
TRAINABLE = frozenset({"F64", "F32", "BF16", "F16"})
GENERATION_TAG = re.compile(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}")
"""A tag that transformers adds to Jinja, around the assistant's text."""


def check_model(name: str, policy: Policy) -> None:
    """Raise UsageError for a folder whose model cannot be trained, as far as its config shows.

    A folder that does not exist here is accepted: it may exist where the trainer runs.
    """
    config = read_config(policy.folder) if policy.path else policy.model
    if config is not None:
        what = f"policy {name}: {policy.path or 'its model'}"
        refuse_other_media(config, what)
        refuse_longrope(config, what)


def check_model_files(name: str, policy: Policy) -> None:
    """Raise UsageError for a folder that no trainer on this machine can begin with. Reads no weights."""
    where, folder = f"policies.{name}.path", policy.folder
    if not folder.is_dir():
        looks_like_hub = not Path(policy.path).is_absolute() and policy.path.count("/") == 1
        hint = (
            ", and Headrace never downloads a model: download it, for example by "
            f"`hf download {policy.path} --local-dir FOLDER`, and "
        )
        raise UsageError(
            f"{where}: there is no folder {policy.path}{hint if looks_like_hub else ': '}name a folder with "
            f"config.json, tokenizer and safetensors ({describe_places(policy.path)})"
        )
    config = _read_object(folder / "config.json", where)
    if (folder / ADAPTER_CONFIG).exists():
        raise UsageError(
            f"{where}: {policy.path} holds an adapter beside its model: merge the two, for example with peft's "
            "merge_and_unload"
        )
    refuse_quantised(config, f"{where}: {policy.path}")
    if not any((folder / file).exists() for file in TOKENIZERS):
        raise UsageError(f"{where}: {policy.path} holds no tokenizer: put its {TOKENIZER_FILE} beside the weights")
    _check_weights(folder, where, config)


def read_tensors(folder: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a folder, as views of mapped files: their shapes are known, but no value is read.

    None if the weights are not safetensors. Raises WeightsError for a damaged file, and OSError.
    """
    if not (folder / SINGLE).exists() and not (folder / INDEX).exists() and any(folder.glob("pytorch_model*.bin")):
        return None
    return open_weights(folder / SINGLE if (folder / SINGLE).exists() else folder).tensors


def _check_weights(folder: Path, where: str, config: Mapping[str, Any]) -> None:
    try:
        tensors = read_tensors(folder) or {}
    except (WeightsError, OSError) as error:
        raise UsageError(f"{where}: the weights cannot be read: {error}") from error
    weights = {name: tensor for name, tensor in tensors.items() if name.endswith("weight")}  # others may be buffers
    odd = {name: tensor.dtype for name, tensor in weights.items() if tensor.dtype not in TRAINABLE}
    if odd:
        first, dtype = next(iter(odd.items()))
        raise UsageError(
            f"{where}: weights must be BF16, F16, F32 or F64 to be trained, but {len(odd)} in {folder} are not, such "
            f"as {first} ({dtype}): name a folder with weights that are not quantized"
        )
    _check_tied(tensors, config, f"{where}: {folder}")


def _check_tied(tensors: Mapping[str, Tensor], config: Mapping[str, Any], what: str) -> None:
    """Raise UsageError for a head in the files that a config with tied embeddings leaves out.

    Engines differ in which of the two they use, so engine and trainer would have two models.
    """
    head = tensors.get("lm_head.weight")
    embeddings = next((one for name, one in tensors.items() if name.endswith("embed_tokens.weight")), None)
    tied = config.get("tie_word_embeddings") is True
    if not tied or head is None or embeddings is None:
        return
    if (head.dtype, head.shape) != (embeddings.dtype, embeddings.shape) or head.data != embeddings.data:
        raise UsageError(
            f"{what}: config.json says tie_word_embeddings: true, but the files have a lm_head.weight that differs "
            "from the embeddings. If the head was trained by itself, write tie_word_embeddings: false; if not, save "
            "the model without lm_head.weight"
        )


def check_tokenizer(name: str, policy: Policy) -> None:
    """Raise UsageError for a tokenizer or a chat template that cannot be read, or belongs to another model.

    A folder that does not exist here is accepted: it may exist where the trainer runs.
    """
    folder = policy.folder
    if not policy.path or not folder.is_dir():
        return
    tokenizer, config = read_tokenizer(folder), read_config(folder) or {}
    vocabulary = (config.get("text_config") or config).get("vocab_size")
    if tokenizer is not None and isinstance(vocabulary, int) and tokenizer.get_vocab_size() > vocabulary:
        raise UsageError(
            f"policies.{name}.path: the tokenizer in {folder} has {tokenizer.get_vocab_size()} tokens, but the model "
            f"has only {vocabulary}: use the tokenizer that came with the model"
        )
    for text in _read_templates(folder, f"policies.{name}.path").values():
        _check_template(text, f"policies.{name}.path: the chat template in {folder}")


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a folder; None if there is no `tokenizer.json`. Raises UsageError for a broken file."""
    file = folder / TOKENIZER_FILE
    return _load_tokenizer(file, file.stat().st_mtime_ns) if file.is_file() else None


@lru_cache(maxsize=8)
def _load_tokenizer(file: Path, _changed_ns: int) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise UsageError(describe_pointer(file) or f"{file} cannot be read as a tokenizer: {error}") from error


def read_default_template(folder: Path) -> str | None:
    """Return the chat template that renders conversations; None without one. Raises UsageError for a broken file."""
    return _read_templates(folder, str(folder)).get("default")


def _read_templates(folder: Path, where: str) -> dict[str, str]:
    """Return chat templates by name; the only one is `default`."""
    if (file := folder / "chat_template.jinja").is_file():
        return {"default": file.read_text(errors="replace")}
    file = folder / "tokenizer_config.json"
    found = _read_object(file, where).get("chat_template") if file.is_file() else None
    if isinstance(found, list):
        named = [one for one in found if isinstance(one, dict) and isinstance(one.get("template"), str)]
        return {str(one.get("name")): one["template"] for one in named}
    return {"default": found} if isinstance(found, str) else {}


def make_jinja() -> ImmutableSandboxedEnvironment:
    """Return an environment for chat templates with the options of transformers, which is not imported."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])


def drop_generation_tags(template: str) -> str:
    """Return a chat template without a tag that only transformers knows."""
    return GENERATION_TAG.sub("", template)


def _check_template(text: str, what: str) -> None:
    from jinja2 import TemplateSyntaxError

    try:
        make_jinja().parse(drop_generation_tags(text))
    except TemplateSyntaxError as error:
        raise UsageError(f"{what} is not a valid Jinja template: {error.message} (line {error.lineno})") from error


def _read_object(file: Path, where: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{where}: cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{where}: {file} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{where}: {file} must hold a JSON object, got {type(found).__name__}")
    return found
