"""A config.json of one's own on the Model page, run in this process."""

import json
from pathlib import Path

import pytest
from test_pages import address, agrees, control, fine, opened, texts

from vram import count_parameters, presets, shape_from_config

DATA = Path(__file__).parent / "data"
CONFIGS = json.loads((DATA / "configs.json").read_text())["models"]


def pasted(text: str, link: str = "gpus=8&zero=2"):
    at = opened(link)
    control(at, "_bring_text").set_value(text).run()
    return fine(at)


@pytest.mark.parametrize(
    "name", ["Qwen--Qwen3-VL-2B-Instruct", "ai21labs--AI21-Jamba-1.5-Mini", "deepseek-ai--DeepSeek-V3"]
)
def test_a_pasted_config_becomes_the_model_and_the_link_carries_it(name):
    at = pasted((DATA / "configs" / f"{name}.json").read_text())
    assert f"{CONFIGS[name]['total']:,} parameters" in texts(at)
    found = agrees(at)
    assert count_parameters(found.scenario.model.shape).total == CONFIGS[name]["total"]
    assert found.scenario.layout.gpus == 8
    again = opened(address(at))
    assert f"{CONFIGS[name]['total']:,} parameters" in texts(fine(again))


def test_what_is_not_known_is_called_approximate_wherever_the_count_stands():
    config = presets.model("llama-3-8b").config | {"model_type": "brand_new", "secret_ranks": 64}
    at = pasted(json.dumps(config))
    assert "approximate" in texts(at)
    assert "≈" in texts(at)
    assert "secret_ranks" in texts(at).replace("\\", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "llama",', "line 1, column"),
        ("[1, 2]", "keys and values"),
        ('{"model_type": "llama", "hidden_size": 64}', "num_hidden_layers"),
        (json.dumps(presets.model("llama-3-8b").config | {"hidden_size": -4096}), "hidden_size"),
        ("[" * 5000, "nested"),
    ],
)
def test_a_broken_config_is_one_sentence_and_loses_nothing(text, said):
    before = agrees(opened("gpus=8&zero=2&seq=8192"))
    at = pasted(text, "gpus=8&zero=2&seq=8192")
    assert said in " ".join(e.value for e in at.error).replace("\\", "")
    assert len(at.error) == 1
    assert agrees(at).scenario == before.scenario


def test_a_preset_chosen_after_an_import_is_all_of_the_preset():
    at = pasted(json.dumps(presets.model("qwen3-8b").config | {"vocab_size": 1000}))
    control(at, "model").select("llama-3-8b").run()
    assert agrees(at).scenario.model.shape == shape_from_config(presets.model("llama-3-8b").config)
    assert address(at) == "gpus=8&zero=2"
