"""What must hold for any scenario in PyTorch's accounting: moments add up, more GPUs never need more memory each."""

from functools import partial
from itertools import pairwise

from hypothesis import assume, given, settings
from strategies import changed
from strategies import small as any_small
from test_laws import adds_up, at_most, is_displayed_as_computed

from vram import Scenario, estimate
from vram.terms import by_group

small = partial(any_small, framework="pytorch")


def needed(scenario):
    assume(scenario is not None)
    return max(stage.allocated for stage in estimate(scenario).stages)


@given(small())
@settings(max_examples=200)
def test_every_moment_s_terms_sum_to_it_and_the_fullest_is_the_bar(scenario):
    found = estimate(scenario)
    for stage in found.stages:
        adds_up(stage)
        named = sum(by_group(stage.terms).values())
        assert abs(stage.device - named) <= named // 2**50
        assert stage.allocated == max(stage.phases.values()) == stage.phases[stage.peak_phase]
    assert found.allocated_bytes <= found.reserved_bytes <= found.device_bytes
    assert found.verdict
    found.to_dict()


@given(small(counted=True))
def test_what_is_saved_is_alive_at_the_end_of_forward(scenario):
    scenario = changed(scenario, offload_activations=False, loss="full")
    for stage in estimate(scenario).stages:
        ends = max((m for m in stage.moments if m.phase == "forward"), key=lambda m: m.bytes)
        kept = sum(by_group(ends.terms)[group] for group in ("activations", "output", "buffers"))
        assert stage.saved <= kept + 8 * scenario.batch.batch


@given(small())
def test_with_one_replica_all_zero_stages_are_the_same(scenario):
    layout = scenario.layout
    alone = changed(scenario, cp=1, gpus=layout.tp * layout.pp, shard="all", offload="none")
    assert len({needed(changed(alone, zero=zero)) for zero in range(4)}) == 1


@given(small(counted=True))
def test_more_data_parallel_gpus_never_need_more(scenario):
    layout = scenario.layout
    # The second GPU brings what communication needs: buckets, gathered parameters.
    assume(layout.dp > 1 and layout.shard == "all")
    more = changed(scenario, gpus=layout.gpus * 2)
    assert at_most(needed(more), needed(scenario))


@given(small(counted=True))
def test_recompute_never_needs_more(scenario):
    shape, layout = scenario.model.shape, scenario.layout
    assume(shape.layers // (layout.pp * layout.vpp) > 1)
    scenario = changed(scenario, offload_activations=False, compile=False, recompute="full", recompute_layers="all")
    found, without = estimate(scenario), estimate(changed(scenario, recompute="none"))
    assert all(at_most(a.saved, b.saved) for a, b in zip(found.stages, without.stages, strict=True))


@given(small(counted=True))
def test_memory_never_falls_with_the_batch(scenario):
    batch = scenario.batch.batch
    assert at_most(needed(scenario), needed(changed(scenario, batch=batch + 1)))
    assert at_most(needed(scenario), needed(changed(scenario, seq=scenario.batch.seq + 32)))


@given(small())
@settings(max_examples=60)
def test_every_displayed_formula_evaluates_to_its_bytes(scenario):
    stage = estimate(scenario).worst
    terms = [t for moment in stage.moments for t in moment.terms] + stage.cached + stage.context + stage.host
    for term in {t.name: t for t in terms}.values():
        is_displayed_as_computed(term)


def test_deeper_recompute_keeps_less():
    kept = [
        estimate(Scenario.from_link(f"model=llama-3-8b&recompute={way}")).stages[0].saved
        for way in ("none", "selective", "full", "sqrt", "first")
    ]
    assert all(after < before for before, after in pairwise(kept))
