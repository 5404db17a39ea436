"""Which number formats PyTorch holds and computes in, for a recipe.

References
----------
.. [1] PyTorch, ``torch/amp/autocast_mode.py``: FP32 weights, cast for each matrix product
.. [2] peft 0.21, ``autocast_adapter_dtype``: adapters are FP32 unless the base is; ``utils/other.py``:
   prepare_model_for_kbit_training turns what is not quantised to FP32
.. [3] axolotl, ``utils/models.py``: with FSDP or ZeRO-3 it is skipped, to have everything in the same dtype
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .. import presets
from ..scenario import Recipe
from .saved import FP32, HALF, MIXED

__all__ = ["Formats", "formats"]


class Formats(NamedTuple):
    """Bytes per number, and the arithmetic.

    Attributes
    ----------
    weights, gradients, master : float
        Of a trained parameter.
    states : tuple
        Name, bytes and extent of each optimizer state, as in the recipes.
    base : str
        Storage of the frozen matrices: a format's name; empty where all is trained.
    rest : float
        Of a frozen parameter that is not quantised.
    arithmetic : int
        FP32, HALF or MIXED; indexes a saved tensor's bytes.
    autocast : bool
        Whether weights are cast for each use, and the copies cached.
    stream : int
        Of an element of the residual stream.
    adapter : int
        Of an element inside an adapter.
    casts : bool
        Whether each adapter casts its input into a copy of its own.
    prepared : bool
        Whether a quantised base was prepared: the rest of it FP32.
    """

    weights: float
    gradients: float
    master: float
    states: tuple[tuple[str, float, str], ...]
    base: str
    rest: float
    arithmetic: int
    autocast: bool
    stream: int
    adapter: int
    casts: bool
    prepared: bool


@lru_cache(maxsize=4096)
def formats(recipe: Recipe, sharded: bool) -> Formats:
    """The formats of a recipe; ``sharded`` is FSDP's way, which casts shards instead of weights."""
    full = recipe.tuning == "full"
    mixed = recipe.precision.endswith("-mixed")
    single = recipe.precision == "fp32"
    master = 4 if recipe.master == "1" else 0
    halves = recipe.precision == "bf16" or (mixed and full and recipe.master != "auto")
    weights = 2 if halves else 4
    autocast = mixed and not halves and not (sharded and full)
    gradients = weights if recipe.grads == "auto" else presets.recipes()["formats"][recipe.grads]["bytes"]
    optimizer = presets.recipes()["optimizers"][recipe.optimizer]
    widest = weights if optimizer["follows_weights"] and not master else float("inf")
    states = tuple((state["name"], min(state["bytes"], widest), state["of"]) for state in optimizer["states"])

    base, rest, prepared = "", 0.0, False
    if not full:
        base = recipe.base
        if base == "auto":
            base = "nf4" if recipe.tuning == "qlora" else "fp32" if single else "bf16"
        # Preparation leaves GPTQ's 16-bit parameters as they are; FSDP goes without: a unit is of one format.
        prepared = base in ("int8", "nf4", "nf4-dq") and mixed and not sharded
        rest = 4 if prepared or base == "fp32" or (single and base != "bf16") else 2
    wide = rest == 4 if not full else (single or autocast)
    arithmetic = MIXED if autocast else FP32 if single and wide else HALF
    adapter = 4 if single else 2
    return Formats(
        weights=weights,
        gradients=gradients,
        master=master,
        states=states,
        base=base,
        rest=rest,
        arithmetic=arithmetic,
        autocast=autocast,
        stream=4 if wide else 2,
        adapter=adapter,
        casts=autocast or (single and arithmetic == HALF),
        prepared=prepared,
    )
