"""Weights that deltas are applied to, in one buffer, checked by the hashes of base and result."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.infra.stopwatch import Stopwatch
from headrace.infra.weights.delta import Delta, apply_delta, require_fits
from headrace.infra.weights.tensors import Tensor, WeightsError, hash_weights

_ALIGNED = 64


class WrongBase(WeightsError):
    """A delta's base is not the weights that are held."""


class HeldWeights:
    """Verified weights: each delta is checked before and after it is applied to them.

    Args:
        named: Tensors to begin with.
        expected: Their `hash_weights`.
        copy: Whether to copy them into a new buffer; if not, their memory must be writable and is changed.
        watch: Measures the time of `apply` and `verify`.

    Raises WeightsError when they do not hash to `expected`.
    """

    def __init__(
        self,
        named: Mapping[str, Tensor],
        expected: str | None = None,
        *,
        copy: bool = True,
        watch: Stopwatch | None = None,
    ) -> None:
        self._watch = watch or Stopwatch()
        with self._watch.measure("apply"):
            self.tensors: dict[str, Tensor] = _copy_into_one(named) if copy else dict(named)
        self.weights_hash = self._hash()
        """Hash of the weights held now; empty when a delta damaged them, and they must not be used any more."""
        if expected is not None and self.weights_hash != expected:
            raise WeightsError(f"these weights have hash {self.weights_hash}, but hash {expected} was recorded")

    def apply(self, delta: Delta, *, just_verified: bool = False) -> bool:
        """Change the base into the result. Return whether anything changed: a delta that is applied again does nothing.

        Args:
            delta: What to apply.
            just_verified: Whether the weights were hashed just before, when the previous delta was applied.

        Raises WrongBase when the held weights are not the delta's base, and WeightsError when the held weights or the
        result do not have their hash. After WeightsError the weights are damaged; after WrongBase they are unchanged.
        """
        header = delta.header
        if self.weights_hash == header.weights_hash:
            return False
        if self.weights_hash != header.base_hash:
            raise WrongBase(
                f"the delta needs weights with hash {header.base_hash} to make {header.weights_hash}, but the "
                f"weights here have {self.weights_hash or 'no hash, because a delta damaged them'}"
            )
        require_fits(header, self.tensors)
        if not just_verified and (found := self._hash()) != self.weights_hash:
            broken, self.weights_hash = self.weights_hash, ""
            raise WeightsError(
                f"the weights in memory have hash {found}, but had {broken} before: something changed them"
            )
        self.weights_hash = ""
        with self._watch.measure("apply"):
            apply_delta(delta, self.tensors)
        if (found := self._hash()) != header.weights_hash:
            raise WeightsError(f"the delta made weights with hash {found}, but its header says {header.weights_hash}")
        self.weights_hash = found
        return True

    def _hash(self) -> str:
        with self._watch.measure("verify"):
            return hash_weights(self.tensors)


def _copy_into_one(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy all tensors into one buffer, each aligned for a vector unit, in name order."""
    starts, end = {}, 0
    for name in sorted(named):
        starts[name] = end
        end += -(-named[name].data.nbytes // _ALIGNED) * _ALIGNED
    buffer = np.empty(end, np.uint8)
    copies = {}
    for name, start in starts.items():
        tensor = named[name]
        target = buffer[start : start + tensor.data.nbytes]
        target[:] = np.frombuffer(tensor.data, np.uint8)
        copies[name] = Tensor(tensor.dtype, tensor.shape, target.data)
    return copies
