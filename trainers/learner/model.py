"""Builds or loads the policy as a Hugging Face causal LM, and turns it into published files."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.core_model_loading import revert_weight_conversion

from headrace.infra.errors import UsageError
from headrace.infra.git_lfs import describe_pointer
from headrace.infra.recipe.settings import Policy
from headrace.infra.weights.experts import split_by_files
from headrace.infra.weights.files import ADAPTER_CONFIG
from headrace.infra.weights.model_config import (
    add_former_keys,
    read_config,
    refuse_longrope,
    refuse_other_media,
    refuse_quantised,
)
from headrace.infra.weights.prompt_tokens import CannotEncode, encode_plain, encode_rendered, render_messages
from headrace.infra.weights.tensors import Tensor

TORCH_DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16}
"""Torch dtypes by safetensors' names."""
_DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_UNDECLARED = {"qwen3_moe": ("head_dim",)}
"""Settings that models read and published config files hold, although no config class declares them."""


class ModelError(UsageError):
    """A model or tokenizer cannot be built or read, or the two do not fit."""


def character_tokenizer(alphabet: str) -> transformers.PreTrainedTokenizerFast:
    """Build a tokenizer with one token per character of `alphabet`, after <pad> = 0 and <eos> = 1, for tiny models.

    There is no unknown token: encoding any other character raises an error (see `encode`).
    """
    if not alphabet:
        raise ModelError("a policy's alphabet must have at least one character; it is empty")
    if doubled := "".join(sorted({character for character in alphabet if alphabet.count(character) > 1})):
        raise ModelError(f"a policy's alphabet must have each character only once; it has {doubled!r} more than once")
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet])}
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary))
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    characters.decoder = tokenizers.decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>"}
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        tokenizer_object=characters, clean_up_tokenization_spaces=False, **names
    )


def encode(
    tokenizer: transformers.PreTrainedTokenizerBase,
    prompt: str | Sequence[Mapping[str, Any]],
    template_arguments: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Return a prompt's token ids as an actor encodes it, with template and start tokens. A text is a user's turn.

    Raises ModelError, which names the characters that the tokenizer cannot encode.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    rendered = render_messages(tokenizer, messages, tools, template_arguments or {})
    try:
        return encode_rendered(tokenizer, rendered)
    except CannotEncode as error:
        raise ModelError(str(error)) from error


def encode_completion(tokenizer: transformers.PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the token ids of a text after a prompt, without special tokens. Raises ModelError as `encode`."""
    try:
        return encode_plain(tokenizer, text)
    except CannotEncode as error:
        raise ModelError(str(error)) from error


def build_model(
    architecture: Mapping[str, Any], tokenizer: transformers.PreTrainedTokenizerBase, *, seed: int
) -> transformers.PreTrainedModel:
    """Build a new fp32 model from `{"architecture": "qwen3", "hidden_size": 64, ...}`; the other keys are HF config.

    The vocabulary size and special tokens come from the tokenizer unless given. Raises ModelError for an unknown
    architecture, a key that its config lacks, or a vocabulary smaller than the tokenizer's.
    """
    options = dict(architecture)
    name = options.pop("architecture", None)
    try:
        default = transformers.AutoConfig.for_model(str(name))
    except ValueError as error:
        raise ModelError(
            f"model.architecture = {name!r} is unknown to transformers: give the `model_type` of one of its models"
        ) from error
    known = {*default.to_dict(), *default.attribute_map, *_UNDECLARED.get(str(name), ())}
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ModelError(f"model.{key} is not a setting of the architecture {name!r}{hint}")
    specials = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    refuse_other_media(default.to_dict(), f"model.architecture = {name!r}")
    config = transformers.AutoConfig.for_model(str(name), **{"vocab_size": len(tokenizer), **specials, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # untyped there
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
    return _check_model(model, tokenizer, "raise `vocab_size` in the policy's `model`, or leave it out")


def config_of(policy: Policy) -> transformers.PreTrainedConfig:
    """Return the config in a policy's folder, or the config in the policy's settings. Raises ModelError."""
    config: transformers.PreTrainedConfig
    try:
        if policy.path:
            config = transformers.AutoConfig.from_pretrained(
                policy.folder, local_files_only=True, trust_remote_code=False
            )
        else:
            options = {key: value for key, value in policy.model.items() if key != "architecture"}
            config = transformers.AutoConfig.for_model(str(policy.model.get("architecture")), **options)
    except (OSError, ValueError) as error:
        what = f"the config of the model in {policy.folder}" if policy.path else "the policy's `model`"
        raise ModelError(f"transformers cannot read {what}: {error}") from error
    return config


def empty_model(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    """Return an fp32 model of a config with arbitrary weights."""
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # untyped there
        config, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.train(mode=False)
    return model


def load_model(path: Path) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Load an fp32 model and its tokenizer from a local folder in HF layout. Raises ModelError; never downloads."""
    if not path.is_dir():
        raise ModelError(
            f"there is no folder {path} on this machine, and Headrace never downloads a model: download it, for "
            "example by `hf download OWNER/NAME --local-dir FOLDER`, and give the path of that folder, without ~"
        )
    if (path / ADAPTER_CONFIG).exists():
        raise ModelError(
            f"{path} holds an adapter ({ADAPTER_CONFIG}): merge it into its model, for example with peft's "
            "merge_and_unload, and give the folder of the merged model"
        )
    config = read_config(path) or {}
    refuse_other_media(config, str(path))
    refuse_quantised(config, str(path))
    refuse_longrope(config, str(path))
    only_here = {"local_files_only": True, "trust_remote_code": False}
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would be in every output
    load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its stub has only one of the two result types
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, **only_here)
        model, found = load(
            path, **only_here, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True
        )
    except Exception as error:  # transformers raises KeyError, AttributeError and others for bad files
        own = (
            ". Its config.json names Python code (auto_map), which Headrace does not run"
            if "auto_map" in config
            else ""
        )
        pointers = [one for file in sorted(path.iterdir()) if (one := describe_pointer(file))]
        raise ModelError(
            pointers[0]
            if pointers
            else f"{path} is not a folder with config.json, tokenizer and safetensors that transformers reads: "
            f"{type(error).__name__}: {error}{own}"
        ) from error
    _check_loaded(path, model, found["missing_keys"])
    _check_tokenizer(path, tokenizer)
    return _check_model(model, tokenizer, "use the tokenizer that came with the model"), tokenizer


def _check_loaded(path: Path, model: transformers.PreTrainedModel, missing: Collection[str]) -> None:
    """Refuse missing weights, which transformers draws at random, and weights that are not finite."""
    if missing:
        raise ModelError(
            f"{path} lacks {len(missing)} of the weights of a {type(model).__name__}, such as {min(missing)!r}: fetch "
            "all of its files again, or check `architectures` and `tie_word_embeddings` in its config.json"
        )
    for name, tensor in model.named_parameters():
        if not torch.isfinite(tensor).all():
            raise ModelError(
                f"{path} holds NaN or an infinity in {name!r}: fetch it again, or use an earlier checkpoint"
            )


def _check_tokenizer(path: Path, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """Refuse the empty tokenizer that transformers makes for a folder without one, and a broken chat template."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    if not tokenizer.get_vocab().keys() - added:
        raise ModelError(f"{path} holds no tokenizer: put its tokenizer.json beside the weights")
    try:
        render_messages(tokenizer, [{"role": "user", "content": "1"}], (), {})
    except Exception as error:
        if type(error).__name__ == "TemplateSyntaxError":  # others may come from missing arguments
            raise ModelError(f"the chat template in {path} is not a valid Jinja template: {error}") from error


def encode_model_files(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase
) -> dict[str, bytes]:
    """Return all files of the HF layout except the weights, by name; with `model.safetensors` they are complete."""
    config = model.config.__class__.from_dict(model.config.to_dict())
    config.architectures = [type(model).__name__]
    config.dtype = torch.bfloat16
    with tempfile.TemporaryDirectory() as folder:
        # Several templates would go into a folder of files; inside tokenizer_config.json they work as well.
        tokenizer.save_pretrained(folder, save_jinja_files=not isinstance(tokenizer.chat_template, dict))
        config.save_pretrained(folder)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(add_former_keys(json.loads(file.read_text())), indent=2, sort_keys=True) + "\n")
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def round_to_bf16(masters: Mapping[str, torch.Tensor], into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return fp32 masters rounded to bf16, as they are published; tied weights appear once, as in `masters`.

    Names and shapes are those of Hugging Face files: one matrix per expert.

    Args:
        masters: Masters by the model's own names, on any device.
        into: Result of an earlier call that is no longer needed. Reused memory costs a third of new memory, because the
        system has no pages to clear.
    """
    return {
        name: _to_bf16(part.detach(), into[name] if into else None) for name, part in split_by_files(masters).items()
    }


def _to_bf16(master: torch.Tensor, spare: Tensor | None) -> Tensor:
    if spare is not None and spare.data.nbytes:
        room = torch.frombuffer(spare.data, dtype=torch.bfloat16).reshape(master.shape)
    else:
        room = torch.empty(master.shape, dtype=torch.bfloat16, pin_memory=master.is_cuda)
    return from_torch(room.copy_(master))


def from_torch(tensor: torch.Tensor) -> Tensor:
    """Return the bytes of a tensor; a view if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Tensor(_DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), memoryview(flat.numpy().data))


def to_torch(tensor: Tensor) -> torch.Tensor:
    """Make a CPU tensor with its own memory."""
    dtype = TORCH_DTYPES[tensor.dtype]
    if tensor.data.nbytes == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)


def pin_threads(count: int = 0) -> None:
    """Compute with this number of threads from now on (0: as many as before); the order of sums depends on it.

    The number is set even if it does not change, because only then MKL keeps to it instead of using fewer threads.
    """
    torch.set_num_threads(count or torch.get_num_threads())


def choose_attention(device: torch.device, dtype: torch.dtype) -> list[SDPBackend]:
    """Return the attention kernels to use, in order of preference; the choice depends on shapes alone.

    On a GPU flash attention supports no mask (padded passes over a sliding window have one) and no large heads.
    """
    if device.type == "cpu":
        return [SDPBackend.FLASH_ATTENTION]
    return [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH] if dtype is torch.bfloat16 else [SDPBackend.MATH]


@contextmanager
def deterministic(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Use deterministic algorithms, also for attention: equal inputs give bit-equal results on equal machines.

    A GPU becomes this thread's current device, and stays it afterwards.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with sdpa_kernel(choose_attention(device, dtype), set_priority=True):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def _check_model(
    model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerBase, remedy: str
) -> transformers.PreTrainedModel:
    vocabulary = model.config.get_text_config().vocab_size
    if vocabulary < len(tokenizer):
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model's vocabulary has only {vocabulary}: {remedy}"
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the tokenizer has no end-of-sequence token, so no completion would ever end: set `eos_token` in its "
            "tokenizer_config.json"
        )
    parameters = {tensor.data_ptr() for tensor in model.parameters()}
    stray = [name for name, tensor in model.state_dict().items() if tensor.data_ptr() not in parameters]
    if stray:
        raise ModelError(
            f"the model keeps state outside its weights, which would not be published: {', '.join(stray)}. Use another "
            "model"
        )
    _check_layout(model)
    # Dropout would make the ratio of an unchanged policy differ from 1.
    model.train(False)
    return model


def _check_layout(model: transformers.PreTrainedModel) -> None:
    """Refuse a mixture of experts whose files store experts in another layout than the published one."""
    shapes = {name: torch.empty(tensor.shape, device="meta") for name, tensor in model.named_parameters()}
    if all(tensor.ndim < 3 for tensor in shapes.values()):  # tensors of experts have three dimensions
        return
    ours, theirs = split_by_files(shapes), revert_weight_conversion(model, shapes)
    if {name: tensor.shape for name, tensor in ours.items()} != {name: part.shape for name, part in theirs.items()}:
        every = sorted(ours.keys() | theirs.keys())
        other = [
            name for name in every if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape
        ]
        raise ModelError(
            f"model type {model.config.model_type} stores its experts in a layout that Headrace cannot publish "
            f"(differing tensors: {', '.join(other[:4])}): use a model with the layout of qwen3_moe"
        )
