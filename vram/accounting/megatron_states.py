"""Model states as Megatron-LM holds them: weights, main gradients, optimizer states, on the GPU or offloaded."""

from __future__ import annotations

from types import ModuleType

from ..formulas import megatron as states
from ..scenario import Scenario
from ..states import STATE_NAMES, storage, trained
from ..terms import N_, Term
from .holdings import Holdings
from .kept import evaluate
from .ranks import Amount, expert_group

__all__ = ["State", "holdings", "main_gradients"]


class State:
    """Makes terms of a stage's states: so many bytes for each parameter, divided from some ZeRO stage on."""

    def __init__(self, scenario: Scenario, held: Amount, tuned: Amount, formulas: ModuleType = states):
        layout = scenario.layout
        self.held, self.tuned, self.layout, self.formulas = held, tuned, layout, formulas
        self.numbers = {
            "D_tp": layout.tp,
            "D_ep": layout.ep,
            "D_etp": layout.etp,
            "N_shard": layout.shards,
            "N_expert": expert_group(layout),
        }

    def term(self, name: str, group: str, beta: float, level: int, share: float = 1, frozen: bool = False) -> Term:
        """One state of the trained parameters (or of the frozen ones), of a share of them."""
        amount = self.held if frozen else self.tuned
        if share != 1:
            amount = amount.scaled(share)
        numbers = self.numbers | {
            "beta": beta,
            "phi_divided": amount.divided,
            "phi_replicated": amount.replicated,
            "phi_expert": amount.experts,
        }
        divided = self.layout.zero >= level and self.layout.shards > 1
        if amount.experts:
            divided = self.layout.zero >= level and max(self.layout.shards, self.numbers["N_expert"]) > 1
            known = self.formulas
            return evaluate(name, group, known.sharded_with_experts if divided else known.held_with_experts, numbers)
        return evaluate(name, group, self.formulas.sharded if divided else self.formulas.held, numbers)

    def weights(self, scenario: Scenario) -> list[Term]:
        """Weights: what is trained, what is frozen, and FP8 copies; stage 3 divides them."""
        kept, count = storage(scenario.recipe), trained(scenario)
        found = []
        if count.frozen:
            found.append(self.term(N_("Frozen weights"), "weights", kept.base, 3, frozen=True))
        found.append(self.term(N_("Adapters") if count.frozen else N_("Weights"), "weights", kept.weights, 3))
        if kept.copies:
            frozen = bool(count.frozen)
            found.append(self.term(N_("FP8 copies of the weights"), "weights", kept.copies, 3, frozen=frozen))
        return found

    def optimizer(self, scenario: Scenario) -> list[Term]:
        """Master weights and the optimizer's states; stage 1 divides them."""
        kept, count = storage(scenario.recipe), trained(scenario)
        master = [self.term(N_("FP32 master weights"), "optimizer", kept.master, 1)] if kept.master else []
        return master + [
            self.term(STATE_NAMES[name], "optimizer", beta, 1, count.sizes[of] / count.parameters)
            for name, beta, of in kept.states
            if count.sizes[of]
        ]


def main_gradients(scenario: Scenario) -> float:
    """Bytes of a gradient: with BF16 they are summed in FP32.

    References
    ----------
    .. [1] Megatron-LM, ``megatron/training/arguments.py``: bf16 sets accumulate_allreduce_grads_in_fp32
    """
    recipe = scenario.recipe
    if recipe.grads == "auto" and recipe.precision in ("bf16-mixed", "fp8-mixed"):
        return 4
    return storage(recipe).gradients


def holdings(scenario: Scenario, held: Amount, tuned: Amount) -> Holdings:
    """The states of one stage: ``held`` are its parameters, ``tuned`` those that are trained."""
    kept, state = storage(scenario.recipe), State(scenario, held, tuned)
    grads = main_gradients(scenario)
    gradients = [state.term(N_("Main gradients"), "gradients", grads, 2)]
    weights, optimizer = state.weights(scenario), state.optimizer(scenario)
    step = []
    if kept.master and grads < kept.master:
        step.append(state.term(N_("Optimizer step: FP32 copies of the gradients"), "buffers", kept.master, 1))
    if scenario.layout.offload == "none":
        return Holdings(weights, gradients, optimizer, [], step)
    if scenario.layout.offload == "optimizer":
        name = N_("Gradients copied for the optimizer")
        copied = state.term(name, "gradients", 4, 1)
        return Holdings(weights, gradients, [], [*optimizer, copied], [])
    return Holdings([], [], [], weights + gradients + optimizer, [])
