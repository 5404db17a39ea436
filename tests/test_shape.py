"""Shapes: what they allow, and links to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vram.errors import ScenarioError
from vram.shape import (
    Compressed,
    Latent,
    Recurrence,
    Shape,
    attention_kind,
    count_parameters,
    decode_shape,
    encode_shape,
    layer_kinds,
    nearest_divisors,
)

LLAMA = Shape(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
MOE = replace(LLAMA, experts=8, top_k=2, moe_ffn=14336)


def test_the_link_of_a_plain_model():
    assert encode_shape(LLAMA) == "1.llama.L32.h4096.a32.k8.f14336.v128256"
    assert count_parameters(LLAMA).total == 8_030_261_248


def test_repetitions_in_a_pattern_are_counted():
    shape = replace(LLAMA, layers=48, mixers="w" * 30 + "a" * 18, window=1024)
    assert "M-w30a18" in encode_shape(shape)
    assert decode_shape(encode_shape(shape)) == shape


@pytest.mark.parametrize(
    ("field", "value"),
    [("layers", 0), ("kv_heads", 5), ("heads", 7), ("mixers", ""), ("mixers", "z"), ("mixers", "r"), ("latent", 1)],
)
def test_contradictions_are_one_sentence(field, value):
    with pytest.raises(ScenarioError) as error:
        replace(LLAMA, **{field: value})
    assert error.value.field == field or field == "mixers"
    assert error.value.message.endswith(".")


def test_fixes_work():
    for wrong in ({"kv_heads": 5}, {"heads": 7}, {"experts": 4, "top_k": 9, "moe_ffn": 8}):
        with pytest.raises(ScenarioError) as error:
            replace(LLAMA, **wrong)
        if wrong.get("heads"):
            continue  # KV heads must follow
        assert replace(LLAMA, **{**wrong, **error.value.fix})


def test_fields_can_be_overridden():
    assert replace(MOE, dense_layers=2).moe_layers == 30
    assert replace(MOE, ffns="de").moe_layers == 16
    assert replace(MOE, ffns="de", layers=5).moe_layers == 2
    dense = replace(MOE, experts=0)
    assert dense.moe_layers == 0
    assert count_parameters(dense).components == count_parameters(LLAMA).components
    assert [kind.name for kind in layer_kinds(replace(MOE, dense_layers=1))] == [
        "attention + mlp",
        "attention + experts",
    ]


def test_active_leaves_out_idle_experts():
    count = count_parameters(MOE)
    assert count.total - count.active == count.components["experts"] * 6 // 8


def test_names_of_attention():
    assert [attention_kind(32, kv) for kv in (32, 8, 1)] == ["MHA", "GQA", "MQA"]
    assert nearest_divisors(4096, 31) == [16, 32]


def test_parts_are_checked():
    with pytest.raises(ScenarioError):
        Latent(q_rank=0, kv_rank=512, nope=128, rope=64, value=128)
    with pytest.raises(ScenarioError):
        Recurrence(kind="magic", heads=8)
    with pytest.raises(ScenarioError):
        Compressed(q_rank=True, out_rank=1, out_groups=1, index_heads=1, index_dim=1)


WIDTHS = st.integers(1, 10_000)
LATENTS = st.builds(Latent, q_rank=st.none() | WIDTHS, kv_rank=WIDTHS, nope=WIDTHS, rope=WIDTHS, value=WIDTHS)
RECURRENCES = st.builds(
    Recurrence,
    kind=st.sampled_from(["mamba", "mamba2", "delta", "kda", "lightning", "conv"]),
    heads=WIDTHS,
    head_dim=WIDTHS,
    key_heads=WIDTHS,
    key_dim=WIDTHS,
    conv=st.integers(0, 9),
    rank=WIDTHS,
    norm=st.booleans(),
    bias=st.booleans(),
    conv_bias=st.booleans(),
)
SHAPES = st.builds(
    lambda **fields: Shape(kv_heads=fields["heads"], top_k=1, dense_layers=0, **fields),
    family=st.from_regex(r"\A[a-z0-9_-]{1,40}\Z"),
    layers=st.integers(1, 200),
    hidden=WIDTHS,
    heads=st.integers(1, 128),
    head_dim=st.integers(1, 512),
    ffn=WIDTHS,
    vocab=WIDTHS,
    tied=st.booleans(),
    norm=st.sampled_from(["rms", "layer", "layer-plain", "none"]),
    qk_norm=st.sampled_from(["none", "head", "full", "head-bias"]),
    embed_dim=st.none() | WIDTHS,
    experts=st.integers(1, 64),
    moe_ffn=WIDTHS,
    shared_ffn=st.none() | WIDTHS,
    mixers=st.text("aAwWixrbn", min_size=1, max_size=200),
    ffns=st.text("deDbn", max_size=200),
    window=st.none() | WIDTHS,
    latent=st.none() | LATENTS,
    recurrence=RECURRENCES,
    approximate=st.booleans(),
    vision=st.integers(0, 10**12),
)


@settings(max_examples=300, deadline=None)
@given(SHAPES)
def test_any_shape_survives_its_link(shape):
    assert decode_shape(encode_shape(shape)) == shape
    assert sum(kind.layers for kind in layer_kinds(shape)) == shape.layers
    count = count_parameters(shape)
    assert 0 < count.active <= count.total == sum(count.components.values())


LINKS = st.text(max_size=60) | st.text("1.llamaLhakfvMBARUCxd0123456789~-", max_size=80)


@settings(max_examples=500, deadline=None)
@given(LINKS | LINKS.map(lambda tail: encode_shape(LLAMA) + "." + tail))
def test_any_text_is_a_shape_or_one_sentence(text):
    try:
        assert isinstance(decode_shape(text), Shape)
    except ScenarioError as error:
        assert error.message


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "2.llama.L32",
        "1.llama.L32.h4096",
        "1.llama.L32.L33.h4096.a32.k8.f14336.v128256",
        "1.llama.L" + "9" * 5000,
        "1.llama.L32.h4096.a32.k8.f14336.v128256.M-a9999a9999",
        "1.llama.L32.h4096.a32.k8.f14336.v128256.A~1",
        "1.llama.L32.h4096.a32.k8.f14336.v128256.A~1~2~3~4~5~6~7~8~9",
        "1.llama.L32.h4096.a32.k8.f14336.v128256.R~mamba",
        "1.llama.L32.h4096.a32.k8.f14336.v128256." + "." * 100,
    ],
)
def test_broken_links_are_one_sentence(text):
    with pytest.raises(ScenarioError):
        decode_shape(text)
