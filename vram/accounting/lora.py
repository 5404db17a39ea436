"""What adapters on a frozen base keep for backward, and what the frozen base then need not keep.

A frozen matrix needs no input for its backward, so those rows of a block that
exist for a weight's gradient are left out; an adapter brings back its own
input, in a copy of its own where it casts or drops it.

References
----------
.. [1] peft 0.21, ``tuners/lora/layer.py``; bitsandbytes 0.50, ``autograd/_functions.py``: MatMul4Bit keeps no input
.. [2] measured: every saved tensor of 4,278 scenarios
"""

from __future__ import annotations

from typing import NamedTuple

from ..formulas import pytorch_activations as size
from ..scenario import Recipe
from ..shape import Shape
from ..states import adapted
from ..terms import N_
from .blocks import NORM_INPUT, NORM_ROOTS, STATISTICS, Q
from .formats import Formats
from .saved import ACTIVATION, ALWAYS, SCORES, START, Saved

__all__ = ["AdapterRow", "adapted_inputs", "adapter_rows", "first_layer_lacks", "frozen"]


class AdapterRow(NamedTuple):
    """A saved tensor of the adapters, and the numbers that only it has."""

    saved: Saved
    numbers: dict[str, float]


_GROUPS = {
    "qkv": (("q_proj", "k_proj", "v_proj", "qkv_proj", "q_a_proj", "kv_a_proj_with_mqa"), SCORES, size.hidden),
    "out": (("o_proj",), ACTIVATION, size.queries),
    "up": (("gate_proj", "up_proj", "gate_up_proj"), ACTIVATION, size.hidden),
    "down": (("down_proj",), START, size.inner),
}
"""Adapters that read the same input: their matrices, how long it lives, and its size."""

_SHARED = {
    "qkv": N_("Adapters: input of those on Q, K, V"),
    "out": N_("Adapters: input of the one behind attention"),
    "up": N_("Adapters: input of those on gate and up"),
    "down": N_("Adapters: input of the one on down"),
}
_OWN = {
    "qkv": N_("Adapters: inputs of those on Q, K, V, a copy each"),
    "out": N_("Adapters: input of the one behind attention, a copy"),
    "up": N_("Adapters: inputs of those on gate and up, a copy each"),
    "down": N_("Adapters: input of the one on down, a copy"),
}
_MASKS = {
    "qkv": N_("Adapters: dropout masks on Q, K, V"),
    "out": N_("Adapters: dropout mask behind attention"),
    "up": N_("Adapters: dropout masks on gate and up"),
    "down": N_("Adapters: dropout mask on down"),
}
_LOW_RANK = {
    "qkv": N_("Adapters: low-rank results on Q, K, V"),
    "out": N_("Adapters: low-rank result behind attention"),
    "up": N_("Adapters: low-rank results on gate and up"),
    "down": N_("Adapters: low-rank result on down"),
}


def frozen(rows: tuple[Saved, ...], held: Formats) -> tuple[Saved, ...]:
    """The rows of a block that a frozen base still keeps.

    A prepared base hands FP32 to its quantised matrices, which give FP32 back:
    the FFN's inner tensors are then FP32.
    """
    kept = tuple(row for row in rows if row.why == ALWAYS)
    if not held.prepared:
        return kept
    return tuple(row._replace(bytes=(row.bytes[0],) * 3) if row.formula is size.inner else row for row in kept)


def adapter_rows(shape: Shape, recipe: Recipe, held: Formats, kernel: str) -> list[AdapterRow]:
    """What one layer's adapters keep."""
    e = held.adapter
    # Routed experts are plain parameters in transformers, which peft's linear targets do not reach.
    matrices = [t for t in adapted(shape, recipe.lora_targets) if t.component != "experts"]
    rows = []
    for group, (names, until, formula) in _GROUPS.items():
        inputs = [t.dims[1] for t in matrices if t.name in names]
        if not inputs:
            continue
        wide = {"d_in": sum(inputs)}
        kept_anyway = group == "out" and not kernel.startswith("eager") and kernel != "math"
        # Attention's result is 16-bit already where only the stream is FP32, and 4-bit layers do not cast.
        casts = held.casts and not (held.prepared and group == "out")
        if recipe.lora_dropout or casts:
            rows.append(AdapterRow(Saved(_OWN[group], size.inputs, (e, e, e), until=until), wide))
        elif not kept_anyway:
            rows.append(AdapterRow(Saved(_SHARED[group], formula, (e, e, e), until=until), {}))
        if recipe.lora_dropout:
            rows.append(AdapterRow(Saved(_MASKS[group], size.inputs, (1, 1, 1), until=until), wide))
        ranks = {"d_in": recipe.lora_rank * len(inputs)}
        rows.append(AdapterRow(Saved(_LOW_RANK[group], size.inputs, (e, e, e), until=until), ranks))
    return rows


def adapted_inputs(shape: Shape, targets: str) -> int:
    """How many adapters read the input of Q, K and V."""
    return sum(t.name in _GROUPS["qkv"][0] for t in adapted(shape, targets))


def first_layer_lacks(shape: Shape, recipe: Recipe, kernel: str) -> set[str]:
    """Names of rows that the very first layer does not keep: the embedding's output needs no gradient.

    Of the norms' rows only those in front of attention are meant; of eager
    attention the queries, which only a gradient of the keys needs.
    """
    lacks = {NORM_INPUT, NORM_ROOTS, STATISTICS, _MASKS["qkv"]}
    keys = any(t.name in ("k_proj", "qkv_proj") for t in adapted(shape, recipe.lora_targets))
    if not keys and (kernel.startswith("eager") or kernel == "math"):
        lacks.add(Q)
    return lacks
