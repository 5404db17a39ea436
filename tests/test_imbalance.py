"""Busy experts: the worst case by counting, conservation of routed tokens, and a band that never narrows."""

from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import small
from test_laws import at_most, evaluated, near, shows

from vram import Scenario, WhatIf, estimate
from vram.formulas.experts import worst_imbalance
from vram.imbalance import CAPACITY, cases, limits, routed, worst
from vram.working import meaning, work, worked

FRAMEWORKS = ("pytorch", "deepspeed", "megatron")
MIXTRAL = "model=mixtral-8x7b-v0.1&gpus=64&zero=1"
DEEPSEEK = "model=deepseek-v3&gpus=2048&pp=16&zero=1"


def busy(scenario, gamma):
    return estimate(scenario, WhatIf(imbalance=gamma))


any_scenario = st.sampled_from(FRAMEWORKS).flatmap(lambda name: small(counted=True, framework=name))
with_experts = any_scenario.filter(lambda scenario: scenario.model.shape.experts)
loads = st.fractions(Fraction(1, 8), 64, max_denominator=8)


# The worst case


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        (MIXTRAL, 1),  # one GPU has all experts: 1·min(2, 8)/2
        (f"{MIXTRAL}&ep=2", 2),  # 2·min(2, 4)/2
        (f"{MIXTRAL}&ep=4", 4),  # 4·min(2, 2)/2
        (f"{MIXTRAL}&ep=8", 4),  # 8·min(2, 1)/2
        (f"{MIXTRAL}&ep=8&top_k=3", Fraction(8, 3)),  # 8·min(3, 1)/3
        (f"{MIXTRAL}&ep=8&top_k=8", 1),  # every token goes to every expert
        (f"{DEEPSEEK}&ep=64", 32),  # 64·min(8, 4)/8
        (f"{DEEPSEEK}&ep=8", 8),  # 8·min(8, 32)/8
        ("gpus=8", 1),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_worst_case_as_counted_by_hand(framework, link, wanted):
    assert worst(Scenario.from_link(f"framework={framework}&{link}")) == wanted


@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_no_choice_of_a_token_s_experts_sends_one_gpu_more_than_the_worst_case(gpus, each, data):
    """All choices of n_top of the experts, tried one by one; tokens are alike, so the worst is the worst for one."""
    top = data.draw(st.integers(1, gpus * each))
    most = max(sum(expert < each for expert in chosen) for chosen in combinations(range(gpus * each), top))
    # Every GPU sends one token; balanced, each gets n_top copies of them.
    scenario = Scenario.from_link(f"{MIXTRAL}&experts={gpus * each}&top_k={top}&ep={gpus}")
    assert worst(scenario) == Fraction(gpus * most, top)


def test_the_worst_case_is_shown_with_its_numbers():
    working = worked(worst_imbalance, limits(Scenario.from_link(f"{MIXTRAL}&ep=8")))
    assert evaluated(working.numbers) == 4
    assert working.sources


# The band


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        (MIXTRAL, [1]),
        (f"{MIXTRAL}&ep=2", [1, CAPACITY, 2]),
        (f"{MIXTRAL}&ep=8", [1, CAPACITY, 2, 4]),
        (f"{MIXTRAL}&ep=8&top_k=5", [1, CAPACITY, Fraction(8, 5)]),
        (f"{MIXTRAL}&ep=8&top_k=7", [1, Fraction(8, 7)]),
        ("gpus=8", []),
        ("params=70B&gpus=8", []),
    ],
)
def test_cases_stop_at_the_worst(link, wanted):
    assert [case.gamma for case in cases(Scenario.from_link(link))] == wanted


@pytest.mark.parametrize("link", [f"{MIXTRAL}&ep=8", "gpus=8"])
def test_the_textbook_has_no_band(link):
    assert cases(Scenario.from_link(f"framework=textbook&{link}")) == []


@given(with_experts)
def test_balanced_experts_are_the_estimate_and_memory_never_falls_as_they_get_busier(scenario):
    found = cases(scenario)
    assert found[0].found == estimate(scenario)
    assert found[-1].gamma == worst(scenario)
    for less, more in pairwise(found):
        assert less.gamma < more.gamma
        assert at_most(less.found.allocated_bytes, more.found.allocated_bytes)


@given(with_experts, loads, loads)
def test_more_tokens_never_need_less(scenario, one, other):
    less, more = (busy(scenario, gamma) for gamma in sorted((one, other)))
    for before, after in zip(less.stages, more.stages, strict=True):
        assert at_most(before.allocated, after.allocated)
        assert at_most(before.saved, after.saved)


@given(any_scenario, loads)
def test_without_experts_nothing_can_be_uneven(scenario, gamma):
    assume(not scenario.model.shape.experts)
    assert cases(scenario) == []
    assert [s.device for s in busy(scenario, gamma).stages] == [s.device for s in estimate(scenario).stages]


# Conservation


def tokens(stage):
    """Bytes of routed tokens by name."""
    found = {}
    for term in routed(stage)[1]:
        found[term.name] = found.get(term.name, 0) + term.bytes
    return found


def kept(found):
    """What the last stage keeps for backward: linear in the tokens, whichever moment is the fullest."""
    return found.stages[-1].saved


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("ep", [2, 4, 8])
def test_where_one_gpu_gets_the_most_the_others_get_less_and_the_group_keeps_as_much(framework, ep):
    scenario = Scenario.from_link(f"framework={framework}&{MIXTRAL}&ep={ep}")
    most = Fraction(worst(scenario))
    rest = (ep - most) / (ep - 1)
    group = kept(busy(scenario, most)) + (ep - 1) * kept(busy(scenario, rest))
    assert near(group, ep * kept(estimate(scenario)), 40 * ep)


@given(with_experts, st.lists(st.integers(0, 50), min_size=2, max_size=8))
@settings(max_examples=50)
def test_however_tokens_are_shared_out_a_group_keeps_as_much(scenario, shares):
    assume(sum(shares))
    gammas = [Fraction(share * len(shares), sum(shares)) for share in shares]
    group, balanced = sum(kept(busy(scenario, gamma)) for gamma in gammas), kept(estimate(scenario))
    assert abs(group - len(shares) * balanced) <= 40 * len(shares) + group // 2**48  # terms round up to whole bytes


def test_four_times_the_tokens_take_four_times_the_memory_and_the_router_s_stays():
    scenario = Scenario.from_link(f"framework=megatron&{MIXTRAL}&ep=8&recompute=none")
    tokens_of_a_gpu, layers = 4096 * 2, 32
    balanced, most = tokens(estimate(scenario).worst), tokens(busy(scenario, 4).worst)
    assert balanced["Experts: tokens as they come in"] == 2 * layers * tokens_of_a_gpu * 4096
    assert most["Experts: tokens as they come in"] == 4 * 2 * layers * tokens_of_a_gpu * 4096
    assert not any(name.startswith(("Router", "Shared", "Attention")) for name in most)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_what_is_routed_grows(framework):
    scenario = Scenario.from_link(f"framework={framework}&model=deepseek-v3&gpus=64&ep=64&zero=1&recompute=none")
    balanced, twice = (busy(scenario, gamma).worst.moments[1].terms for gamma in (1, 2))
    grown = {a.name for a, b in zip(balanced, twice, strict=True) if b.bytes != a.bytes}
    assert grown and all(name.startswith("Experts: ") for name in grown)


# What is displayed is what was computed


@given(with_experts, loads)
@settings(max_examples=50)
def test_every_routed_formula_evaluates_to_its_bytes(scenario, gamma):
    for term in routed(busy(scenario, gamma).worst)[1]:
        assert shows(evaluated(work(term).numbers), term.bytes), term
        assert (r"\gamma" in work(term).symbols) == (gamma != 1)


def test_balanced_experts_have_no_gamma_in_their_formulas():
    for term in routed(estimate(Scenario.from_link(f"{MIXTRAL}&ep=8")).worst)[1]:
        assert r"\gamma" not in work(term).symbols + "".join(latex for latex, _, _ in meaning(term))
