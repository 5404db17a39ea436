"""What is stored for each parameter: the recipe's formats, and which parameters are trained."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from . import presets
from .formulas import parameters
from .scenario import Recipe, Scenario
from .shape import Shape, count_parameters, tensors
from .terms import N_

__all__ = ["STATE_NAMES", "Storage", "Trained", "adapted", "storage", "trained"]

STATE_NAMES = {
    "momentum": N_("Momentum"),
    "variance": N_("Variance"),
    "factored variance": N_("Factored variance"),
}
"""What people call the optimizer states of presets/recipes.json."""


class Storage(NamedTuple):
    """Bytes per parameter of a recipe.

    ``states`` are the optimizer's: a name, bytes, and which parameters they are
    kept for. ``base`` is what a frozen weight takes.
    """

    weights: float
    copies: float
    gradients: float
    master: float
    states: tuple[tuple[str, float, str], ...]
    base: float
    activations: float


@lru_cache(maxsize=4096)
def storage(recipe: Recipe) -> Storage:
    """The bytes per parameter that a recipe means."""
    facts = presets.recipes()
    precision = facts["precisions"][recipe.precision]
    optimizer = facts["optimizers"][recipe.optimizer]
    weights, gradients, master = precision["weights"], precision["gradients"], precision["master"]
    if recipe.grads != "auto":
        gradients = facts["formats"][recipe.grads]["bytes"]
    if recipe.master != "auto":
        master = facts["formats"]["fp32"]["bytes"] if recipe.master == "1" else 0
    # torch.optim keeps its states in the format of what it updates: the master copy, or else the weights.
    widest = weights if optimizer["follows_weights"] and not master else float("inf")
    states = tuple((state["name"], min(state["bytes"], widest), state["of"]) for state in optimizer["states"])
    base = weights
    if recipe.base != "auto":
        base = facts["formats"][recipe.base]["bytes"]
    elif recipe.tuning == "qlora":
        base = facts["formats"]["nf4"]["bytes"]
    return Storage(weights, precision["copies"], gradients, master, states, base, precision["activations"])


class Trained(NamedTuple):
    """Which parameters are trained: all of them, or adapters on a frozen base.

    ``sizes`` says how many parameters an optimizer state is kept for: ``all``
    trained ones, those ``outside`` the hidden matrices, or the ``edges``, a row
    and a column for each matrix.
    """

    parameters: int
    frozen: int
    sizes: dict[str, int]


def trained(scenario: Scenario) -> Trained:
    """Count the parameters that a scenario trains."""
    model, recipe = scenario.model, scenario.recipe
    if model.params is not None:
        return Trained(model.params, 0, {"all": model.params})
    if recipe.tuning == "full":
        return _full(model.shape)
    return _adapters(model.shape, recipe.lora_rank, recipe.lora_targets)


@lru_cache(maxsize=4096)
def _full(shape: Shape) -> Trained:
    total = count_parameters(shape).total
    hidden = [
        t
        for t in tensors(shape)
        if len(t.dims) == 2 and t.component not in ("embedding", "position_embedding", "lm_head")
    ]
    edges = sum(sum(t.dims) * t.count for t in tensors(shape))
    return Trained(total, 0, {"all": total, "outside": total - sum(t.size for t in hidden), "edges": edges})


@lru_cache(maxsize=4096)
def _adapters(shape: Shape, rank: int, targets: str) -> Trained:
    matrices = adapted(shape, targets)
    total = sum(parameters.adapter(rank, *t.dims) * t.count for t in matrices)
    edges = sum((sum(t.dims) + 2 * rank) * t.count for t in matrices)
    return Trained(total, count_parameters(shape).total, {"all": total, "outside": 0, "edges": edges})


_FUSED = {
    **dict.fromkeys(("gpt2", "gpt_neox", "gpt_bigcode", "bloom", "falcon", "mpt", "dbrx"), ("qkv",)),
    "phi3": ("qkv", "gate_up"),
    **dict.fromkeys(("glm", "glm4"), ("gate_up",)),
}
"""Architectures that hold Q, K and V, or gate and up, as one matrix, which then has one adapter."""

_PARTS = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}


@lru_cache(maxsize=1024)
def adapted(shape: Shape, targets: str) -> list:
    """The matrices that get an adapter: Q and V; all of attention; or all linear layers but the head.

    References
    ----------
    .. [1] peft 0.21, ``utils/constants.py``: target modules by model type; ``all-linear`` leaves out the output head
    """
    wanted = {
        "qv": lambda t: t.name in ("q_proj", "v_proj"),
        "attention": lambda t: t.component == "attention",
        "all-linear": lambda t: t.component in ("attention", "mlp", "experts", "shared_experts"),
    }[targets]
    held = [t for t in tensors(shape) if len(t.dims) == 2]
    chosen = [t for t in held if wanted(t)]
    for fused in _FUSED.get(shape.family, ()):
        parts = [t for t in held if t.name in _PARTS[fused] and t.component in ("attention", "mlp")]
        if any(t in chosen for t in parts):
            whole = parts[0]._replace(name=f"{fused}_proj", dims=(sum(t.dims[0] for t in parts), parts[0].dims[1]))
            chosen = [whole] + [t for t in chosen if t not in parts]
    return chosen
