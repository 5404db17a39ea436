"""Exact counts of real configs, and of random ones that the reference implementation counted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vram.config import read_config
from vram.families import FAMILIES, read_shape, shape_from_config
from vram.families.vision import WRAPPERS
from vram.shape import Shape, count_parameters, decode_shape, encode_shape, layer_kinds, tensors

DATA = Path(__file__).parent / "data"
PRESETS = json.loads((DATA.parent.parent / "presets" / "models.json").read_text())["models"]
PARAMS = json.loads((DATA / "params.json").read_text())["models"]
CONFIGS = json.loads((DATA / "configs.json").read_text())["models"]
KNOWN = json.loads((DATA / "known.json").read_text())["models"]
VARIED = json.loads((DATA / "varied.json").read_text())["models"]


def config_of(name: str) -> dict:
    return read_config((DATA / "configs" / f"{name}.json").read_bytes())


@pytest.mark.parametrize("name", PARAMS)
def test_components_are_exact(name):
    expected = PARAMS[name]
    count = count_parameters(shape_from_config(expected["config"]))
    assert count.total == expected["total"]
    assert count.components == expected["components"]
    assert count.active == (expected["active"] or expected["total"])
    assert not count.approximate


@pytest.mark.parametrize("name", CONFIGS)
def test_real_configs_are_exact_or_marked(name):
    expected = CONFIGS[name]
    count = count_parameters(shape_from_config(config_of(name)))
    if expected["total"] is None:
        # two that the reference refuses over details that decide no parameters
        exact = name in ("moonshotai--Kimi-K2-Instruct", "databricks--dbrx-instruct.fixture")
        assert count.approximate is not exact
    else:
        assert count.total == expected["total"]
        assert count.components.get("vision", 0) == expected["vision"]
        assert not count.approximate


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("databricks--dbrx-instruct.fixture", 131_596_523_520),
        ("moonshotai--Kimi-K2-Instruct", 1_026_408_232_448 - 60 * 384),  # without the router's buffers
        ("THUDM--chatglm2-6b", 6_243_584_000),
        ("nvidia--Llama-3_3-Nemotron-Super-49B-v1", 49_867_145_216),
        ("google-t5--t5-large", 737_668_096),
        ("XiaomiMiMo--MiMo-7B-Base", 7_833_409_536),  # with a layer that predicts further tokens
    ],
)
def test_without_a_reference_the_count_is_near_the_published_one(name, published):
    count = count_parameters(shape_from_config(config_of(name)))
    assert count.total == pytest.approx(published, rel=0.03 if count.approximate else 0)


@pytest.mark.parametrize("record", KNOWN, ids=lambda record: record["name"])
def test_known_models_are_exact(record):
    count = count_parameters(shape_from_config(record["config"]))
    assert (count.total, count.approximate) == (record["total"], False)


@pytest.mark.parametrize("place", range(len(VARIED)))
def test_random_settings_are_exact(place):
    record = VARIED[place]
    shape = shape_from_config(record["config"])
    count = count_parameters(shape)
    assert not count.approximate
    if "text" in record:
        assert count.total - count.components.get("vision", 0) == record["text"]
    else:
        assert count.total == record["total"]
    assert decode_shape(encode_shape(shape)) == shape


def test_every_family_has_random_settings():
    seen = {record["config"]["model_type"] for record in VARIED}
    seen |= {wrapper.text for name, wrapper in WRAPPERS.items() if name in seen}
    assert {*FAMILIES, *WRAPPERS} - seen == {"kimi_vl"}  # which the reference does not know


def shapes() -> list[Shape]:
    configs = [record["config"] for record in PARAMS.values()]
    configs += [config_of(name) for name in CONFIGS]
    configs += [record["config"] for record in KNOWN + VARIED] + [preset["config"] for preset in PRESETS]
    return [shape_from_config(config) for config in configs]


def test_links_are_short_and_read_back():
    for shape in shapes():
        link = encode_shape(shape)
        assert decode_shape(link) == shape
        assert re.fullmatch(r"1\.[A-Za-z0-9._~-]+", link)
        assert len(link) < 300


def test_layer_kinds_add_up():
    for shape in shapes():
        kinds = layer_kinds(shape)
        assert sum(kind.layers for kind in kinds) == shape.layers
        inside = sum(kind.layers * kind.total for kind in kinds)
        outside = [tensor for tensor in tensors(shape) if tensor.component in ("embedding", "lm_head", "vision")]
        assert inside <= count_parameters(shape).total
        assert inside + sum(tensor.size for tensor in outside) <= count_parameters(shape).total
        assert sum(tensor.size for tensor in tensors(shape)) == count_parameters(shape).total


def test_layer_kinds_of_a_hybrid():
    kinds = layer_kinds(shape_from_config(config_of("ai21labs--AI21-Jamba-1.5-Mini")))
    assert [(kind.name, kind.layers) for kind in kinds] == [
        ("mamba + mlp", 12),
        ("mamba + experts", 16),
        ("attention + mlp", 4),
    ]
    # 16 experts of three matrices between 4,096 and 14,336 channels
    assert kinds[1].components["experts"] == 16 * 3 * 4096 * 14336
    assert kinds[2].components["attention"] == 4096 * (2 * 4096 + 2 * 1024)


def test_layers_that_are_only_a_mixer_or_only_an_ffn():
    shape = shape_from_config(config_of("nvidia--Nemotron-H-56B-Base-8K"))
    names = {kind.name: kind.layers for kind in layer_kinds(shape)}
    assert names == {"mamba2": 54, "mlp": 54, "attention": 10}
    assert shape.softmax_layers == 10
    assert not shape.plain


def test_share_of_softmax_attention():
    assert shape_from_config(config_of("meta-llama--Meta-Llama-3-8B")).softmax_share == 1
    assert shape_from_config(config_of("Qwen--Qwen3.5-27B")).softmax_share == 0.25
    assert shape_from_config(config_of("tiiuae--falcon-mamba-7b")).softmax_share == 0


def test_patterns_follow_the_layers():
    gemma = shape_from_config(config_of("google--gemma-2-2b"))
    assert (gemma.mixers, gemma.window) == ("wa", 4096)
    scout = shape_from_config(config_of("meta-llama--Llama-4-Scout-17B-16E-Instruct"))
    assert (scout.mixers, scout.window, scout.moe_layers) == ("wwwa", 8192, 48)
    deepseek = shape_from_config(config_of("deepseek-ai--DeepSeek-V3"))
    assert (deepseek.dense_layers, deepseek.moe_layers, deepseek.channels) == (3, 58, 192)


def test_parts_that_are_not_included_are_named():
    qwen = read_shape(config_of("Qwen--Qwen3.5-27B"))
    assert qwen.left_out == {"vision tower": 460_730_096, "layers that predict further tokens": None}
    assert read_shape(config_of("moonshotai--Kimi-K3")).left_out == {"vision tower": None}
    assert read_shape(config_of("Qwen--Qwen3-8B")).left_out == {}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset["id"])
def test_presets_are_exact(preset):
    count = count_parameters(shape_from_config(preset["config"]))
    assert not count.approximate
    for name in preset["names"]:
        if name in PARAMS:
            assert count.total == PARAMS[name]["total"]
        if (known := CONFIGS.get(name.replace("/", "--"))) and known["total"]:
            assert count.total == known["total"]
