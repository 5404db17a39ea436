"""Model states as DeepSpeed's ZeRO holds them, and its buffers, on the GPU or in CPU memory."""

from __future__ import annotations

from .. import presets
from ..formulas import deepspeed as states
from ..scenario import Scenario
from ..states import storage
from ..terms import N_, Term
from .holdings import Holdings
from .kept import evaluate
from .megatron_states import State
from .ranks import Amount

__all__ = ["STEP", "buckets", "holdings", "live"]

STEP = (N_("Optimizer step: FP32 gradients"), N_("Optimizer step: flat gradients, and in FP32"))
"""Names of what the step makes."""


def holdings(scenario: Scenario, held: Amount, tuned: Amount) -> Holdings:
    """The states of one GPU: ``held`` are its stage's parameters, ``tuned`` those that are trained."""
    layout, state = scenario.layout, State(scenario, held, tuned, states)
    gradients = [state.term(N_("Gradients"), "gradients", _gradients(scenario), 2)]
    if _accumulates_whole(scenario):
        gradients.append(state.term(N_("Sums of the gradients in FP32"), "gradients", 4, 4))
    weights, optimizer = state.weights(scenario), state.optimizer(scenario)
    if layout.offload == "none":
        return Holdings(weights, gradients, optimizer, [], _step(scenario, state, tuned))
    sums = state.term(N_("FP32 gradients for the optimizer"), "gradients", 4, 1)
    away = [*optimizer, sums, *(weights if layout.offload == "all" else [])]
    bytes = sum(t.bytes for t in away)
    numbers = {"p": _facts()["pinned"]["part"], "M_host": bytes}
    away.append(evaluate(N_("Pinned buffers"), "buffers", states.pinned, numbers))
    # From stage 2 on, a reduced gradient goes to CPU memory at once.
    here = gradients if layout.zero == 1 and layout.shards > 1 else []
    return Holdings([] if layout.offload == "all" else weights, here, [], away, [])


def _facts() -> dict:
    return presets.frameworks()["deepspeed"]["zero"]


def _gradients(scenario: Scenario) -> float:
    """Bytes of a gradient; where they are summed in FP32 on every GPU, each is made in 16 bit."""
    return 2 if _accumulates_whole(scenario) else storage(scenario.recipe).gradients


def _accumulates_whole(scenario: Scenario) -> bool:
    """BF16 pipelines, and stage 1 with FP32 gradients: summed in FP32 on every GPU, besides the 16-bit ones.

    References
    ----------
    .. [1] DeepSpeed, ``deepspeed/runtime/bf16_optimizer.py``: fp32_groups_gradients
    """
    recipe, layout = scenario.recipe, scenario.layout
    if recipe.precision != "bf16-mixed" or (layout.zero > 1 and layout.shards > 1) or layout.offload != "none":
        return False
    return recipe.grads == "fp32" or (recipe.grads == "auto" and layout.pp > 1)


def _step(scenario: Scenario, state: State, tuned: Amount) -> list[Term]:
    """What the optimizer's step needs besides: the gradients it updates with, flat and in FP32."""
    recipe, layout = scenario.recipe, scenario.layout
    if not storage(recipe).master or _accumulates_whole(scenario):
        return []
    if layout.zero == 3 and layout.shards > 1:
        shard = tuned.divided / layout.tp + tuned.replicated + tuned.experts / (layout.ep * layout.etp)
        group = min(_facts()["sub_group_size"]["elements"], round(shard / layout.shards))
        return [
            evaluate(N_("Optimizer step: FP32 gradients"), "buffers", states.sub_group, {}, beta=4, phi_group=group)
        ]
    return [state.term(STEP[1], "buffers", 6, 1)]


def buckets(scenario: Scenario) -> list[Term]:
    """The bucket of gradients that are reduced together."""
    layout = scenario.layout
    if not layout.zero or layout.shards == 1:
        return []
    beta = _gradients(scenario)
    elements = _facts()["reduce_bucket_size"]["elements"]
    return [evaluate(N_("ZeRO: bucket of gradients"), "buffers", states.bucket, {}, beta=beta, n_bucket=elements)]


def live(scenario: Scenario, held: float, needed: float = 0) -> list[Term]:
    """Stage 3: gathered parameters, of ``held`` on this GPU; those ``needed`` right now are gathered in any case.

    References
    ----------
    .. [1] DeepSpeed, ``deepspeed/runtime/zero/partitioned_param_coordinator.py``: the limit is one of prefetching
    """
    layout, recipe = scenario.layout, scenario.recipe
    if layout.zero < 3 or (layout.shards == 1 and layout.offload != "all"):
        return []
    gathered = min(_facts()["max_live_parameters"]["elements"] + needed, held)
    kept = storage(recipe)
    beta = kept.weights if recipe.tuning == "full" else kept.base
    return [evaluate(N_("ZeRO: gathered parameters"), "buffers", states.live, {}, beta=beta, phi_live=gathered)]
