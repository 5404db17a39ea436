"""The command line and the package's own example, run as a user runs them."""

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vram
from vram import Scenario, estimate, presets

ROOT = Path(__file__).parent.parent

KEYS = {
    *("link", "framework", "parameters", "trainable_parameters"),
    *("allocated_bytes", "reserved_bytes", "device_bytes", "capacity_bytes", "verdict"),
    *("host_bytes_per_node", "stages", "textbook", "notes"),
}
STAGE_KEYS = {
    *("stage", "gpus", "allocated_bytes", "reserved_bytes", "device_bytes", "saved_for_backward_bytes"),
    *("phases", "peak_phase", "terms"),
}

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
"""GPT-2, 124,439,808 parameters as its authors' implementation counts them."""

OPT = {"model_type": "opt", "hidden_size": 8, "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 8}


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "vram", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_a_link_prints_a_table():
    done = run("model=llama-3-8b&gpus=8&zero=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "8,030,261,248 parameters" in done.stdout
    assert "Gradients" in done.stdout
    assert "fits: " in done.stdout


@pytest.mark.parametrize("link", ["", "params=7B", "params=7B&gpus=8&zero=3&offload=all", "pp=5&gpus=40&tp=8&unit=GiB"])
def test_any_kind_of_scenario_prints_a_table(link):
    done = run(link)
    assert (done.returncode, done.stderr) == (0, "")
    assert "total" in done.stdout


@pytest.mark.parametrize("link", ["model=llama-3-8b&gpus=8&zero=3", "params=7B", "pp=4&tp=2&gpus=16&accum=8"])
def test_json_is_the_estimate_as_a_dictionary(link):
    done = run(link, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == estimate(Scenario.from_link(link)).to_dict()


@pytest.mark.parametrize("link", ["", "params=7B", "pp=4&gpus=4", "tuning=qlora&offload=optimizer"])
def test_a_dictionary_has_exactly_the_published_keys(link):
    found = estimate(Scenario.from_link(link)).to_dict()
    assert found.keys() == KEYS
    assert found["textbook"].keys() == {"model_states_bytes", "activation_bytes", "total_bytes"}
    for stage in found["stages"]:
        assert stage.keys() == STAGE_KEYS
        assert stage["phases"].keys() == {"forward", "backward", "optimizer"}
        assert all(term.keys() == {"name", "group", "bytes"} for term in stage["terms"])
    assert Scenario.from_link(found["link"]) == Scenario.from_link(link)


def test_the_capacity_is_what_the_driver_reports():
    assert estimate(Scenario.from_link("gpu=a100-80gb")).to_dict()["capacity_bytes"] == 81_920 * 2**20


def test_a_config_file_gives_the_shape(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GPT2))
    done = run("seq=1024", "--config", str(file), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["parameters"] == 124_439_808
    scenario = Scenario.from_link(found["link"])
    assert scenario == Scenario.from_link("seq=1024", shape=vram.shape_from_config(GPT2))
    assert scenario.model.shape == presets.model("gpt2").shape


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("tp=3", "error: gpus: "),
        ("tp=3&gpus=3", "error: tp: "),
        ("tp=abc", "error: tp: 'abc'"),
        ("gpus=0", "error: gpus: "),
        ("foo=1", "error: foo: "),
        ("model=llama-9", "error: model: "),
        ("batch=1%0Ax", "error: batch: "),
        ("pp=64&gpus=64", "error: pp: "),
        ("x" * 9000, "error: link: "),
    ],
)
def test_a_bad_value_ends_with_status_2_and_one_line(link, said):
    assert_one_line(run(link), said)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1]", "null", '"gpt2"', "7", "{}", '{"model_type": "gpt9"}', '{"model_type": "llama"}'),
        '{"model_type": ["llama"]}',
        json.dumps(GPT2 | {"n_layer": "twelve"}),
        json.dumps(GPT2 | {"n_embd": 768.5}),
        json.dumps(GPT2 | {"n_head": 7}),
        json.dumps(OPT | {"max_position_embeddings": "many"}),
        json.dumps(GPT2 | {"n_embd": {}}),
        json.dumps(GPT2 | {"n_head": 0}),
        "[" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_config_that_is_none_ends_with_status_2_and_one_line(text, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(text)
    assert_one_line(run("--config", str(file)), "error: ")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.integers(1, 64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(sorted({key for row in presets.models().values() for key in row.config} | {"n_inner"}))


@given(
    json_values
    | st.builds(
        dict.__or__,
        st.sampled_from(list(presets.models().values())).map(lambda m: m.config),
        st.dictionaries(keys, json_values),
    )
)
def test_any_config_is_read_or_refused_by_name(config):
    try:
        assert vram.count_parameters(vram.shape_from_config(config)).total > 0
    except vram.ScenarioError as error:
        assert len(str(error)) <= 300


def test_a_config_that_is_not_there_or_no_text_ends_with_status_2_and_one_line(tmp_path):
    assert_one_line(run("--config", str(tmp_path / "missing.json")), "error: ")
    assert_one_line(run("--config", str(tmp_path)), "error: ")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    assert_one_line(run("--config", str(tmp_path / "binary")), "error: ")


def assert_one_line(done, said):
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 400


def test_the_package_s_example_runs():
    assert doctest.testmod(vram).attempted
    assert doctest.testmod(vram).failed == 0
