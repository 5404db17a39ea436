"""The activations of one GPU as rows: each kind of saved tensor with its numbers, ready for any number of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from ..formulas import pytorch_activations as size
from ..formulas import pytorch_loss as loss
from ..scenario import Scenario
from ..shape import Shape
from ..terms import N_, Term
from .blocks import Block, block_of, compiled, kernel_of, selected
from .formats import Formats
from .lora import adapted_inputs, adapter_rows, first_layer_lacks, frozen
from .saved import ALL, HALF, HEAD, PARTIAL, QKV, SCORES, START, UP, Saved

__all__ = ["Kept", "Layer", "Row", "Stack", "evaluate", "ids", "kept", "names", "sorted_rows"]


class Row(NamedTuple):
    """A kind of saved tensor of one layer: its formula, its numbers but for ``n_held``, and bytes for one layer."""

    saved: Saved
    numbers: dict[str, float]
    each: float
    core: bool = False
    lacking: bool = False

    def held(self, n: int) -> Term:
        """The term for ``n`` layers."""
        name, formula = self.saved.name, self.saved.formula
        return Term(name, "activations", formula, {"n_held": n, **self.numbers}, self.bytes(n))

    def bytes(self, n: int) -> int:
        """Bytes for ``n`` layers: every formula of a layer is proportional to n_held."""
        if self.each == int(self.each):
            return int(self.each) * n
        return math.ceil(self.saved.formula(n_held=n, **self.numbers))


class Sort(NamedTuple):
    """Rows that are always held for equally many layers; ``each`` is their sum where all are whole, else None."""

    until: int
    core: bool
    lacking: bool
    part: int
    rows: tuple[Row, ...]
    each: int | None

    def bytes(self, n: int) -> int:
        """Bytes for ``n`` layers."""
        return self.each * n if self.each is not None else sum([row.bytes(n) for row in self.rows])


class Stack:
    """A layer's rows, each sort of them for a number of layers; written out as terms only when somebody looks."""

    __slots__ = ("bytes", "counts", "rows", "sorts")

    def __init__(self, layer: Layer, counts: list[int]):
        self.rows, self.sorts, self.counts = layer.rows, layer.sorts, counts
        if layer.each is None:
            self.bytes = sum([sort.bytes(n) for sort, n in zip(layer.sorts, counts, strict=True)])
        else:
            self.bytes = sum(map(mul, layer.each, counts))

    def expand(self) -> list[Term]:
        """One term for each row that is held at all, in the order of the layer."""
        found = {sort[:4]: n for sort, n in zip(self.sorts, self.counts, strict=True)}
        return [
            row.held(n) for row in self.rows if (n := found[row.saved.until, row.core, row.lacking, row.saved.part])
        ]


class Layer(NamedTuple):
    """All rows of a layer, and the same by sort; ``each`` are the sorts' sums, where all are whole."""

    rows: tuple[Row, ...]
    sorts: tuple[Sort, ...]
    each: tuple[int, ...] | None


class Kept(NamedTuple):
    """What forward keeps, before it is multiplied by layers.

    ``checkpoint`` is a layer's input. ``in_front`` and ``behind`` are terms
    outside the layers; ``output`` those of the loss; ``tables`` the rotary
    positions'; ``positions`` and ``mask`` are arguments that recomputed layers
    share, of which autograd keeps only the mask.
    """

    block: Block
    measured: bool
    kernel: str
    numbers: dict[str, float]
    layer: Layer
    checkpoint: Layer
    adapted: int
    in_front: list[Term]
    behind: list[Term]
    output: list[Term]
    tables: list[Term]
    positions: list[Term]
    mask: list[Term]


@lru_cache(maxsize=256)
def names(formula: Callable) -> tuple[str, ...]:
    """A formula's parameters."""
    code = formula.__code__
    return code.co_varnames[: code.co_argcount]


def evaluate(name: str, group: str, formula: Callable, numbers: dict[str, float], **more: float) -> Term:
    """A term that picks its numbers from those of the scenario by their names."""
    picked = {symbol: more[symbol] if symbol in more else numbers[symbol] for symbol in names(formula)}
    return Term(name, group, formula, picked, math.ceil(formula(**picked)))


def _numbers(scenario: Scenario, block: Block, imbalance: int | Fraction) -> dict[str, float]:
    """The scenario's numbers by symbol."""
    shape, batch, layout = scenario.model.shape, scenario.batch, scenario.layout
    return {
        "b": batch.batch,
        "s": batch.seq,
        "s_padded": -(-batch.seq // 32) * 32,
        "d_hidden": shape.hidden,
        "n_head": shape.heads,
        "n_kv": shape.kv_heads,
        "n_kv_gpu": -(-shape.kv_heads // layout.tp),
        "d_head": shape.channels,
        "d_rotary": int(shape.channels * block.rotary),
        "d_ffn": shape.ffn,
        "n_vocab": shape.vocab,
        **(_expert_numbers(shape, imbalance) if shape.experts or shape.latent else {}),
        "D_tp": layout.tp,
        "D_cp": layout.cp,
        "D_sp": layout.tp if layout.sp else 1,
    }


def _expert_numbers(shape: Shape, imbalance: int | Fraction) -> dict[str, float]:
    latent = shape.latent
    found: dict[str, float] = {
        "n_expert": shape.experts,
        "n_top": shape.top_k,
        "gamma": imbalance,
        "d_expert": shape.moe_ffn,
        "n_shared": shape.shared_experts,
        "d_shared": shape.shared_ffn or shape.moe_ffn,
        "n_group_expert": shape.expert_groups,
        "n_group_top": shape.top_groups,
    }
    if latent:
        found |= {
            "d_qk": latent.nope + latent.rope,
            "d_nope": latent.nope,
            "d_value": latent.value,
            "d_rotary": latent.rope,
        }
    return found


def kept(scenario: Scenario, held: Formats, imbalance: int | Fraction = 1) -> Kept:
    """The rows and terms of a scenario's activations."""
    shape, recipe, batch = scenario.model.shape, scenario.recipe, scenario.batch
    block, measured = block_of(shape)
    dropout = block.drops if batch.dropout == "auto" else batch.dropout == "1"
    kernel = kernel_of(shape, batch.attention, held.arithmetic, dropout, batch.batch)
    numbers = _numbers(scenario, block, imbalance)
    full = recipe.tuning == "full"

    saved = block.before + block.attention[kernel] + block.after
    if dropout:
        saved += block.dropout or _MASKS
        if kernel == "eager" and not block.drops:
            saved += _DROPPED_SCORES
    if batch.compile:
        saved = compiled(saved, held.stream)
    if not full:
        saved = frozen(saved, held)
    rows = [(row, {}) for row in saved]
    lacking: set[str] = set()
    if not full:
        rows += adapter_rows(shape, recipe, held, kernel)
        if batch.recompute in ("none", "selective"):
            lacking = first_layer_lacks(shape, recipe, kernel)
    layer = _layer(_rows(rows, held, numbers, shape, scenario.layout.tp), lacking)
    inputs = (_CHECKPOINT._replace(bytes=(held.stream,) * 3),)
    if batch.recompute == "selective" and batch.attention == "flash":
        inputs += selected(shape, kernel, scenario.layout.tp > 1)
    checkpoint = _alike(_rows([(row, {}) for row in inputs], held, numbers, shape, scenario.layout.tp))
    final = block.final if full else frozen(block.final, held)
    if numbers["D_sp"] > 1:
        final = [r._replace(formula=size.final_gathered) if r.why == HEAD else r for r in final]
    behind = [
        evaluate(row.name, "output" if row.formula is loss.logits else "activations", row.formula, numbers, e=e)
        for row in final
        if (e := row.bytes[held.arithmetic])
    ]
    recomputes = batch.recompute not in ("none", "selective")
    tables = []
    if block.rotary and (block.tables or recomputes):
        tables.append(evaluate(N_("Rotary positions: cosines and sines"), "activations", size.rotary, numbers,
                               e=8 if block.wide else 2 * held.stream))  # fmt: skip
    return Kept(
        block=block,
        measured=measured,
        kernel=kernel,
        numbers=numbers,
        layer=layer,
        checkpoint=checkpoint,
        adapted=0 if full else adapted_inputs(shape, recipe.lora_targets),
        in_front=_in_front(shape, block, held, dropout, full, recomputes, numbers),
        behind=behind,
        output=_output(scenario, numbers),
        tables=tables,
        positions=[_positions(numbers)] if tables and recomputes else [],
        mask=_mask(block, batch.attention, held, numbers) if recomputes else [],
    )


def _layer(rows: list[Row], lacking: set[str]) -> Layer:
    """Sort rows by what decides for how many layers they are held."""
    return sorted_rows(
        [
            row._replace(core=core, lacking=lacks) if core or lacks else row
            for row in rows
            for core, lacks in [(row.saved.formula in _CORE, row.saved.name in lacking)]
        ]
    )


def sorted_rows(rows: list[Row]) -> Layer:
    """A layer of rows that are marked already."""
    sorts = {}
    for row in rows:
        sorts.setdefault((row.saved.until, row.core, row.lacking, row.saved.part), []).append(row)
    return _sorted(rows, [_sort(*key, same) for key, same in sorts.items()])


def _sorted(rows: list[Row], sorts: list[Sort]) -> Layer:
    whole = all([sort.each is not None for sort in sorts])
    return Layer(tuple(rows), tuple(sorts), tuple([sort.each for sort in sorts]) if whole else None)


def _alike(rows: list[Row]) -> Layer:
    """Rows that are held for equally many layers."""
    rows = [row._replace(saved=row.saved._replace(until=SCORES, part=ALL)) for row in rows]
    return _sorted(rows, [_sort(SCORES, False, False, ALL, rows)])


def _sort(until: int, core: bool, lacking: bool, part: int, rows: list[Row]) -> Sort:
    whole = all([row.each == int(row.each) for row in rows])
    return Sort(until, core, lacking, part, tuple(rows), sum([int(row.each) for row in rows]) if whole else None)


_CHECKPOINT = Saved(N_("Checkpoints: inputs of recomputed layers"), size.hidden, (0, 0, 0))
_CORE = (size.scores, size.log_sum_exp, size.log_sum_exp_padded, size.random_state)

_MASKS = (Saved(N_("Dropout masks behind attention and FFN"), size.hidden, (2, 2, 2), until=START),)
_DROPPED_SCORES = (
    Saved(N_("Attention: dropout mask of the scores"), size.scores, (1, 1, 1)),
    Saved(N_("Attention: softmax after dropout"), size.scores, (4, 2, 2)),
)


def _rows(saved, held: Formats, numbers: dict[str, float], shape: Shape, tp: int) -> list[Row]:
    rows = []
    replicated = shape.kv_heads % tp
    for row, more in saved:
        e = row.bytes[held.arithmetic]
        if not e:
            continue
        if replicated and row.formula is size.keys_values:
            row = row._replace(formula=size.keys_values_replicated)
        if numbers["D_sp"] > 1 and row.formula is size.hidden and row.why in (QKV, UP, PARTIAL):
            row = row._replace(formula=size.gathered_hidden)
        known = numbers | more | dict(row.numbers) if row.numbers else numbers | more
        picked = {symbol: known[symbol] for symbol in names(row.formula) if symbol not in ("e", "n_held")}
        picked["e"] = e
        rows.append(Row(row, picked, row.formula(n_held=1, **picked)))
    return rows


def _in_front(
    shape: Shape, block: Block, held: Formats, dropout: bool, full: bool, recomputes: bool, numbers: dict[str, float]
) -> list[Term]:
    """What the embedding keeps, besides the token ids."""
    found = []
    if shape.embedding_norm and full:
        e = 2 if held.arithmetic == HALF else 4
        name = N_("Norm behind the embedding: input")
        found.append(evaluate(name, "activations", size.final_hidden, numbers, e=e))
        name = N_("Norm behind the embedding: mean and 1/σ of each token")
        found.append(evaluate(name, "activations", size.final_per_token, numbers, e=8))
    if not block.rotary and block.drops_first and full:
        found.append(_positions(numbers))
    # Recomputing makes the embedding's output require a gradient, also where the embedding is frozen.
    if dropout and block.drops_first and (full or recomputes):
        found.append(evaluate(N_("Dropout mask behind the embedding"), "activations", size.final_hidden, numbers, e=1))
    return found


def _positions(numbers: dict[str, float]) -> Term:
    """Positions of the tokens: what a learned table keeps, and an argument of recomputed layers."""
    return evaluate(N_("Positions of the tokens"), "activations", size.rotary, numbers, e=8, d_rotary=1)


def _mask(block: Block, attention: str, held: Formats, numbers: dict[str, float]) -> list[Term]:
    if attention != "eager" or not block.masked:
        return []
    return [evaluate(N_("Causal mask of the recomputed layers"), "activations", size.mask, numbers, e=held.stream)]


def _output(scenario: Scenario, numbers: dict[str, float]) -> list[Term]:
    """What the loss keeps for backward."""
    single = scenario.recipe.precision == "fp32"
    way, e = scenario.batch.loss, 4 if single else 2
    found = [
        evaluate(N_("Shifted labels"), "output", loss.labels, numbers, e=8, n_pad=int(numbers["b"] == 1)),
        evaluate(N_("Count of the loss's tokens"), "output", loss.loss_scalar, numbers, e=4),
    ]
    if way == "full":
        return [evaluate(N_("Log-softmax of the logits"), "output", loss.logits, numbers, e=4), *found]
    if way == "fused-ce":
        name = N_("Logits, which their gradient overwrites")
        return [evaluate(name, "output", loss.logits, numbers, e=e), *found]
    if way == "chunked":
        return [evaluate(N_("Logits, in chunks"), "output", loss.logits, numbers, e=e), *found]
    gradient = evaluate(N_("Gradient of the head's input, made in forward"), "output", size.final_hidden, numbers, e=e)
    if scenario.recipe.tuning != "full":
        return [gradient, *found]
    name = N_("Gradient of the output head, made in forward")
    return [evaluate(name, "output", loss.head_gradient, numbers, e=e), gradient, *found]


def ids(numbers: dict[str, float]) -> Term:
    """Token ids, which the embedding keeps."""
    return evaluate(N_("Token ids"), "activations", size.final_per_token, numbers, e=8)
