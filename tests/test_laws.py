"""What must hold for any scenario: conservation, monotonicity, and formulas that are what they show."""

import ast
import importlib
import inspect
import math
import pkgutil
import re
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import changed, divisors, scenarios, small

from vram import WhatIf, count_parameters, estimate, formulas
from vram.formulas import SYMBOLS, activations
from vram.layout import stage_layers
from vram.terms import GROUPS, PHASES, by_group
from vram.working import meaning, work

STATES = ("weights", "gradients", "optimizer")

FORMULAS = [
    getattr(module, name)
    for info in pkgutil.iter_modules(formulas.__path__)
    for module in [importlib.import_module(f"vram.formulas.{info.name}")]
    for name in module.__all__
]
each_formula = pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f"{f.__module__.split('.')[-1]}.{f.__name__}")


def parameters_of(formula):
    return list(inspect.signature(formula).parameters)


def sizes(terms, *groups):
    """Bytes by name, of the groups asked for."""
    found = {}
    for t in terms:
        if not groups or t.group in groups:
            found[t.name] = found.get(t.name, 0) + t.bytes
    return found


def near(found, wanted, roundings):
    """Whether bytes are as many as wanted or up to so many more, each a part's rounding up to a whole byte."""
    slack = wanted // 2**50  # from 2⁵³ on, floating point rounds too
    return wanted - slack <= found <= wanted + roundings + slack


def at_most(found, limit):
    return found <= limit + limit // 2**50


def adds_up(stage):
    """Terms of each moment sum to it, the fullest is the bar, and nothing is negative."""
    for moment in stage.moments:
        assert abs(sum(t.bytes for t in moment.terms) - moment.bytes) <= moment.bytes // 2**50
        assert all(t.bytes >= 0 and isinstance(t.bytes, int) and t.group in GROUPS for t in moment.terms)
        assert len(sizes(moment.terms)) == len(moment.terms)
        assert moment.phase in PHASES
    assert stage.allocated == max(moment.bytes for moment in stage.moments)
    assert all(t.group == "overhead" and t.bytes >= 0 for t in stage.cached + stage.context)
    assert stage.saved >= 0


def needed(scenario):
    assume(scenario is not None)
    return max(stage.allocated for stage in estimate(scenario).stages)


def on_gpu_and_host(stage, *groups):
    return sizes([*stage.terms, *stage.host], *groups)


def summed(found, *groups):
    """Bytes by name over all GPUs of the job."""
    total = {}
    for stage in found.stages:
        for name, size in on_gpu_and_host(stage, *groups).items():
            total[name] = total.get(name, 0) + size * stage.gpus
    return total


# Conservation


@given(small())
def test_terms_sum_to_the_total_and_nothing_is_negative(scenario):
    found = estimate(scenario)
    for stage in found.stages:
        assert sum(t.bytes for t in stage.terms) == stage.allocated == sum(by_group(stage.terms).values())
        assert all(t.bytes >= 0 and isinstance(t.bytes, int) and t.group in GROUPS for t in stage.terms + stage.host)
        assert max(stage.phases.values()) == stage.phases[stage.peak_phase] == stage.allocated
        assert stage.saved == sum(sizes([*stage.terms, *stage.host], "activations").values())
    assert found.allocated_bytes == max(stage.allocated for stage in found.stages)
    assert found.allocated_bytes <= found.reserved_bytes <= found.device_bytes
    assert found.host_bytes_per_node >= 0
    assert found.to_dict()["textbook"]["total_bytes"] == found.allocated_bytes


@given(small())
def test_names_of_terms_are_unique_on_a_gpu(scenario):
    for stage in estimate(scenario).stages:
        assert len(sizes(stage.terms)) == len(stage.terms)
        assert len(sizes(stage.host)) == len(stage.host)


@given(small())
def test_stages_share_out_all_gpus_and_all_layers(scenario):
    found, layout = estimate(scenario), scenario.layout
    assert [stage.stage for stage in found.stages] == list(range(layout.pp))
    assert sum(stage.gpus for stage in found.stages) == layout.gpus == layout.dp * layout.tp * layout.pp * layout.cp
    if scenario.model.params is None:
        layers = stage_layers(scenario.model.shape.layers, layout.pp)
        assert sum(layers) == scenario.model.shape.layers
        assert max(layers) - min(layers) <= 1
        assert list(layers) == sorted(layers, reverse=True)


@given(small(), st.integers(1, 64))
def test_zero_3_shards_sum_to_the_whole(scenario, gpus):
    one = dict(tp=1, pp=1, cp=1, vpp=1, shard="all", offload="none", zero=3)
    whole = summed(estimate(changed(scenario, gpus=1, **one)), *STATES)
    shards = summed(estimate(changed(scenario, gpus=gpus, **one)), *STATES)
    assert shards.keys() == whole.keys()
    assert all(near(shards[name], whole[name], gpus - 1) for name in whole)


FIRST_SHARDED = {"weights": 3, "gradients": 2, "optimizer": 1}
"""The ZeRO stage from which a group is sharded (article, 4.5)."""


@given(small())
def test_states_over_all_gpus_are_as_many_wholes_as_there_are_copies(scenario):
    layout = scenario.layout
    one = estimate(changed(scenario, gpus=1, tp=1, pp=1, cp=1, vpp=1, shard="all", zero=0, offload="none"))
    found = estimate(scenario)
    for group in STATES:
        replicas = layout.dp * layout.cp
        copies = replicas // layout.shards if layout.zero >= FIRST_SHARDED[group] else replicas
        whole, everywhere = summed(one, group), summed(found, group)
        assert everywhere.keys() == whole.keys()
        for name, size in whole.items():
            # The whole is itself rounded up, once for each copy.
            assert near(everywhere[name] + copies, copies * size, layout.gpus + copies)


@given(small(counted=True))
def test_parameters_are_those_of_the_shape(scenario):
    found = estimate(scenario)
    assert found.parameters == count_parameters(scenario.model.shape).total
    if scenario.recipe.tuning == "full":
        assert found.trainable_parameters == found.parameters


@given(small(counted=True), st.data())
def test_with_sequence_parallelism_activations_of_a_tensor_group_sum_to_the_whole(scenario, data):
    tp = data.draw(divisors(scenario.model.shape.kv_heads, 64))
    one = estimate(changed(scenario, tp=1, sp=False, gpus=scenario.layout.gpus // scenario.layout.tp))
    split = estimate(changed(scenario, tp=tp, sp=True, gpus=scenario.layout.gpus // scenario.layout.tp * tp))
    for before, after in zip(one.stages, split.stages, strict=True):
        whole, parts = (on_gpu_and_host(stage, "activations") for stage in (before, after))
        assert parts.keys() == whole.keys()
        assert all(near(parts[name] * tp + 2, whole[name], 2 * tp + 2) for name in whole)


@given(small(counted=True), st.integers(1, 16))
def test_with_context_parallelism_activations_of_a_group_sum_to_the_whole(scenario, cp):
    one = changed(scenario, cp=1, gpus=scenario.layout.tp * scenario.layout.pp, zero=0, offload="none", shard="all")
    split = changed(one, cp=cp, seq=max(cp, one.batch.seq), gpus=one.layout.gpus * cp)
    one = changed(one, seq=split.batch.seq)
    for before, after in zip(estimate(one).stages, estimate(split).stages, strict=True):
        whole, parts = (on_gpu_and_host(stage, "activations") for stage in (before, after))
        assert parts.keys() == whole.keys()
        assert all(near(parts[name] * cp + 2, whole[name], 2 * cp + 2) for name in whole)


@given(small(counted=True))
def test_with_one_micro_batch_the_stages_of_a_pipeline_hold_all_activations_once(scenario):
    once = {"accum": 1, "vpp": 1, "recompute": "none", "offload_activations": False}
    split = changed(scenario, **once)
    one = changed(split, pp=1, gpus=scenario.layout.gpus // scenario.layout.pp)
    whole = on_gpu_and_host(estimate(one).worst, "activations")
    parts = [on_gpu_and_host(stage, "activations") for stage in estimate(split).stages]
    assert {name for part in parts for name in part} == whole.keys()
    assert all(near(sum(part.get(name, 0) for part in parts), whole[name], len(parts)) for name in whole)


@given(small())
def test_what_is_offloaded_leaves_the_gpu_and_nothing_is_lost(scenario):
    kept = estimate(changed(scenario, offload="none", offload_activations=False))
    for before, after in zip(kept.stages, estimate(scenario).stages, strict=True):
        here, there = sizes(before.terms), on_gpu_and_host(after)
        assert there.keys() == here.keys()
        assert all(near(there[name], here[name], 1) for name in here)
        assert at_most(after.allocated, before.allocated)
        assert before.host == []


# Monotonicity


@given(small(), st.integers(2, 9))
def test_memory_never_grows_with_data_parallel_gpus(scenario, factor):
    layout = scenario.layout
    # Offloading on ZeRO-1 keeps whole gradients on the GPU, which a single replica does not have to.
    assume(not (layout.zero == 1 and layout.offload == "optimizer" and layout.shards == 1))
    more = changed(scenario, gpus=layout.gpus * factor)
    assert at_most(needed(more), needed(scenario))


@given(small(counted=True), st.sampled_from(["batch", "seq", "accum"]), st.integers(1, 1000))
def test_memory_never_falls_with_the_batch(scenario, key, more):
    assert at_most(needed(scenario), needed(changed(scenario, **{key: getattr(scenario.batch, key) + more})))


@given(small(counted=True), st.integers(1, 8))
def test_memory_never_falls_with_layers(scenario, more):
    shape, layout = scenario.model.shape, scenario.layout
    whole_rounds = layout.pp * layout.vpp
    assume(shape.layers % whole_rounds == 0)
    assert at_most(needed(scenario), needed(changed(scenario, layers=shape.layers + more * whole_rounds)))


@given(small())
def test_each_zero_stage_needs_no_more_than_the_one_before(scenario):
    found = [changed(scenario, zero=zero) for zero in range(4)]
    totals = [needed(s) for s in found if s is not None]
    assert all(at_most(after, before) for before, after in pairwise(totals))


@given(small())
def test_with_one_replica_all_zero_stages_are_the_same(scenario):
    layout = scenario.layout
    alone = changed(scenario, cp=1, gpus=layout.tp * layout.pp, shard="all")
    totals = {needed(changed(alone, zero=zero)) for zero in range(4)}
    assert len(totals) == 1


@given(small(counted=True))
def test_recompute_needs_no_more_than_keeping_everything(scenario):
    shape, layout = scenario.model.shape, scenario.layout
    # A chunk of one layer has nothing to recompute: its checkpoint comes on top.
    assume(shape.layers // (layout.pp * layout.vpp) > 1)
    # The textbook knows no rows of a layer without attention or FFN, only its checkpoint.
    assume(scenario.framework != "textbook" or shape.softmax_share == 1)
    scenario = changed(scenario, offload_activations=False)
    assert at_most(needed(scenario), needed(changed(scenario, recompute="none")))


@given(small(counted=True))
def test_flash_attention_needs_no_more_than_eager(scenario):
    assert at_most(needed(changed(scenario, attention="flash")), needed(changed(scenario, attention="eager")))


@given(small(counted=True))
def test_sequence_parallelism_needs_no_more_than_tensor_parallelism_alone(scenario):
    assert at_most(needed(changed(scenario, sp=True)), needed(changed(scenario, sp=False)))


@given(small())
def test_no_number_depends_on_unit_or_language(scenario):
    found = [
        estimate(changed(scenario, unit=unit, lang=lang)).to_dict() for unit in ("GB", "GiB") for lang in ("en", "zh")
    ]
    for other in found:
        assert other | {"link": ""} == found[0] | {"link": ""}


# Formulas

small_numbers = st.integers(1, 50)


@each_formula
@given(data=st.data())
@settings(max_examples=10)
def test_a_formula_gives_the_same_for_integers_arrays_and_symbols(formula, data):
    names = parameters_of(formula)
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(names, small_numbers)), min_size=1, max_size=3))
    arrays = formula(**{name: np.array([row[name] for row in rows]) for name in names})
    symbols = {name: sympy.Symbol(name, positive=True) for name in names}
    expression = formula(**symbols)
    for row, from_array in zip(rows, arrays, strict=True):
        exact = formula(**{name: Fraction(value) for name, value in row.items()})
        assert formula(**row) == pytest.approx(float(exact), rel=1e-14)
        assert from_array == pytest.approx(float(exact), rel=1e-14)
        assert expression.subs({symbols[name]: value for name, value in row.items()}) == sympy.Rational(exact)


@each_formula
def test_a_formula_decides_nothing_and_rounds_nothing(formula):
    allowed = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Name, ast.Constant, ast.Load, ast.Call)
    allowed += (ast.Return, ast.Assign, ast.Store, ast.Expr, ast.keyword)
    body = ast.parse(inspect.getsource(formula)).body[0].body
    for statement in body:
        assert all(isinstance(node, allowed) for node in ast.walk(statement))
    called = {node.func.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)}
    assert called <= {f.__name__ for f in FORMULAS}


@each_formula
def test_a_formula_says_what_it_is_and_where_it_comes_from(formula):
    doc = inspect.getdoc(formula)
    assert re.match(r"\S.{10,}[.:]", doc)
    assert re.search(r"^References\n-+\n\.\. \[1\] \S", doc, re.MULTILINE)


@each_formula
def test_every_parameter_of_a_formula_is_a_known_symbol(formula):
    assert set(parameters_of(formula)) <= SYMBOLS.keys()


def test_every_symbol_is_used_and_spelled_once():
    assert SYMBOLS.keys() == {name for formula in FORMULAS for name in parameters_of(formula)}
    assert len({latex for latex, _ in SYMBOLS.values()}) == len(SYMBOLS)


def test_the_article_s_totals_are_the_sums_of_the_rows():
    b, s, d_hidden, d_ffn, n_head, n_kv = sympy.symbols("b s d_hidden d_ffn n_head n_kv")
    one = {"e": 2, "n_held": 1, "b": b, "s": s, "D_cp": 1}
    wide = [activations.norm_input, activations.qkv_input]
    split = [activations.query, activations.attention_output]
    rows = [f(**one, d_hidden=d_hidden, D_sp=1) for f in wide] + [f(**one, d_hidden=d_hidden, D_tp=1) for f in split]
    rows.append(activations.key_value(**one, d_hidden=d_hidden, n_kv=n_kv, n_head=n_head, D_tp=1))
    rows += [f(**one, n_head=n_head, D_tp=1) for f in (activations.scores, activations.dropped_scores)]
    rows.append(activations.dropout_mask(n_held=1, b=b, s=s, n_head=n_head, D_tp=1, D_cp=1))
    assert sympy.simplify(sum(rows) - activations.attention(b, s, d_hidden, n_head, n_kv)) == 0
    ffn = activations.ffn_input(**one, d_hidden=d_hidden, D_sp=1) + activations.ffn_inner(**one, d_ffn=d_ffn, D_tp=1)
    assert sympy.simplify(ffn - activations.ffn(b, s, d_hidden, d_ffn)) == 0


# What is displayed is what was computed


def evaluated(latex):
    """The value of a product, quotient or sum as LaTeX shows it, numbers put in."""
    text = re.sub(r"\^\{(\d+)\}", r"**\1", latex)
    text = text.replace("{,}", "").replace(r"\left(", "(").replace(r"\right)", ")").replace(r"\times", "*")
    while r"\frac" in text:
        text, found = re.subn(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
        assert found, latex
    text = re.sub(r"\s*([-+*/])\s*", r"\1", text)
    text = re.sub(r"(?<=[\d)])\s+(?=[\d(])", "*", text)
    text = re.sub(r"(?<![\d*.])(\d+(?:\.\d+)?)(?!\.)", r"Fraction('\1')", text)
    return Fraction(eval(text, {"__builtins__": {}, "Fraction": Fraction}))


def shows(value, count):
    """Whether bytes are this value, rounded up (from 2⁵³ on, floating point rounds too)."""
    return abs(count - math.ceil(value)) <= value / 2**50


def is_displayed_as_computed(term):
    """Both forms of a term's formula give its bytes: with numbers, and with what each symbol is said to be."""
    working = work(term)
    assert shows(evaluated(working.numbers), term.bytes), (term, working)
    written = working.symbols
    for latex, _, value in sorted(meaning(term), key=lambda row: -len(row[0])):
        written = re.sub(rf"(?<![\\a-zA-Z]){re.escape(latex)}(?![a-zA-Z])", f"({value.replace(',', '')})", written)
    assert shows(evaluated(written), term.bytes), (term, working)
    assert working.sources


@given(small())
@settings(max_examples=50)
def test_every_displayed_formula_evaluates_to_its_bytes(scenario):
    for stage in estimate(scenario).stages[:2]:
        for term in stage.terms + stage.host:
            is_displayed_as_computed(term)


@given(small())
@settings(max_examples=20)
def test_a_whole_fraction_is_written_as_the_number_it_is(scenario):
    for term in estimate(scenario).stages[0].terms:
        as_fractions = {k: Fraction(v) if isinstance(v, int) else v for k, v in term.numbers.items()}
        assert work(term._replace(numbers=as_fractions)) == work(term)


@each_formula
def test_latex_has_no_internal_names(formula):
    from vram.working import expression

    found, symbols = expression(formula)
    latex = sympy.latex(found, symbol_names={symbol: SYMBOLS[name][0] for name, symbol in symbols.items()})
    assert not re.search(r"x_?\{?\d", latex)
    assert not re.search(r"(?<![a-zA-Z\\])(phi|beta|[nd]_[a-z]|D_[a-z])", latex)


SPLIT = scenarios(most_layers=60, most_degree=12).filter(lambda scenario: scenario.layout.pp > 1)


@given(SPLIT)
def test_gpipe_never_needs_less(scenario):
    own, gpipe = estimate(scenario), estimate(scenario, WhatIf(gpipe=True))
    for a, b in zip(own.stages, gpipe.stages, strict=True):
        assert at_most(a.saved, b.saved)
        assert at_most(a.allocated, b.allocated)
        assert at_most(a.device, b.device)


@given(SPLIT, st.integers(1, 11))
def test_stages_that_hold_all_micro_batches_anyway_are_the_same_with_gpipe(scenario, accum):
    scenario = changed(scenario, vpp=1, accum=accum)
    own, gpipe = estimate(scenario).stages, estimate(scenario, WhatIf(gpipe=True)).stages
    for stage in range(max(scenario.layout.pp - accum + 1, 0)):
        assert own[stage] == gpipe[stage]


@given(small(counted=True).filter(lambda scenario: scenario.layout.pp > 1), st.integers(2, 40))
def test_with_gpipe_every_stage_keeps_every_micro_batch(scenario, accum):
    once = changed(scenario, vpp=1, recompute="none", offload_activations=False, accum=1)
    many = changed(once, accum=accum)
    for one, all in zip(
        estimate(once, WhatIf(gpipe=True)).stages, estimate(many, WhatIf(gpipe=True)).stages, strict=True
    ):
        assert near(all.saved, accum * one.saved, 0) or near(accum * one.saved, all.saved, 20 * accum)


@given(small().filter(lambda scenario: scenario.layout.pp == 1))
def test_without_a_pipeline_there_is_no_gpipe(scenario):
    assert estimate(scenario, WhatIf(gpipe=True)) == estimate(scenario)
