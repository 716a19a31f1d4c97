"""The environment `jsonl` of earlier recipes: a `dataset` from one file with `problem` and `answer`."""

from __future__ import annotations

from typing import Literal

from headrace.envs.data.rows import TaskFileError
from headrace.envs.data.scorers import BOX_INSTRUCTION as INSTRUCTION
from headrace.envs.dataset import Dataset
from headrace.envs.math_judge import require_math_verify

__all__ = ["COMPARISONS", "INSTRUCTION", "JsonLines", "TaskFileError"]

COMPARISONS = {"exact": "exact", "math_verify": "math"}
"""Names of scorers by their names in earlier recipes."""


class JsonLines(Dataset):
    """A `Dataset` whose file is read at once, with problems and order as in earlier versions.

    `compare` says how answers are compared: as exact numbers or normalised text, or by math-verify, an extra. Raises
    ValueError if math-verify is not installed, and TaskFileError for a missing, malformed or too small file.
    """

    name = "jsonl"

    def __init__(
        self,
        seed: int,
        path: str,
        held_out: float = 0.1,
        instruction: str = INSTRUCTION,
        compare: Literal["exact", "math_verify"] = "exact",
    ) -> None:
        if compare not in COMPARISONS:
            raise ValueError(f"compare must be one of {', '.join(COMPARISONS)}; got {compare!r}")
        if compare == "math_verify":
            require_math_verify('compare = "math_verify"')
        super().__init__(seed, path, held_out=held_out, instruction=instruction, scorer=COMPARISONS[compare])
        self.read_data()
