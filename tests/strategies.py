"""Hypothesis strategies: valid scenarios over all fields of all parts."""

from dataclasses import fields, replace

from hypothesis import strategies as st

from vram import Scenario, ScenarioError, Shape, presets
from vram.families import FAMILIES
from vram.rules import Amount, Choice, Flag, Whole, WholeOrAll
from vram.scenario import FRAMEWORKS, PARAMS, Batch, Hardware, Layout, Model, Recipe, View

MODELS = sorted(presets.models())
STATES_OF_ALL = [
    name for name, row in presets.recipes()["optimizers"].items() if all(s["of"] == "all" for s in row["states"])
]
"""Optimizers whose states a number of parameters is enough for."""


def whole(low, high):
    """Whole numbers within bounds, small ones often."""
    return st.integers(low, min(high, low + 16)) | st.integers(low, high)


def values_of(rule):
    """Every value that a rule allows."""
    if isinstance(rule, Choice):
        return st.sampled_from(rule.options)
    if isinstance(rule, Flag):
        return st.booleans()
    if isinstance(rule, WholeOrAll):
        return st.just("all") | whole(rule.low, rule.high)
    if isinstance(rule, Amount):
        return st.integers(1, 2000).map(lambda n: n * 10**9) | st.integers(rule.low, rule.high)
    return whole(rule.low, rule.high)


def rules_of(part):
    return {f.name: f.metadata["rule"] for f in fields(part) if "rule" in f.metadata}


def divisors(number, most=10_000):
    return st.sampled_from([n for n in range(1, min(number, most) + 1) if number % n == 0])


@st.composite
def shapes(draw, most_layers=10_000):
    """Any shape of ordinary layers: made up, with or without experts. (Presets bring the other kinds of layers.)"""
    rules = {name: rule for name, rule in rules_of(Shape).items() if isinstance(rule, Whole | Choice | Flag)}
    values = {name: draw(values_of(rules[name])) for name in rules.keys() - {"layers", "hidden", "heads", "head_dim"}}
    values["layers"] = draw(whole(1, most_layers))
    values["kv_heads"] = draw(whole(1, 100))
    values["heads"] = values["kv_heads"] * draw(whole(1, 100))
    if draw(st.booleans()):
        values["head_dim"], values["hidden"] = draw(values_of(rules["head_dim"])), draw(values_of(rules["hidden"]))
    else:
        values["hidden"] = values["heads"] * draw(whole(1, 1_000_000 // values["heads"]))
    if values["experts"]:
        values["top_k"] = draw(whole(1, values["experts"]))
        values["moe_ffn"] = max(values["moe_ffn"], 1)
        values["dense_layers"] = draw(st.integers(0, values["layers"] - 1))
    family = draw(st.sampled_from(sorted(FAMILIES)) | st.from_regex(r"[a-z0-9_-]{1,40}", fullmatch=True))
    return Shape(family=family, **values)


@st.composite
def models(draw, most_layers=10_000, counted=None):
    """A preset, a preset with overrides, a made-up shape, or (``counted`` is not True) a number of parameters."""
    preset = draw(st.just("llama-3-8b") | st.sampled_from(MODELS))
    shape = presets.model(preset).shape
    kind = draw(st.sampled_from(["preset", "overrides", "shape"]))
    if kind == "overrides":
        wanted = {
            "layers": whole(shape.dense_layers + 1, most_layers),
            "ffn": whole(1, 10**7),
            "vocab": whole(1, 10**7),
            "tied": st.booleans(),
        }
        wanted |= {"kv_heads": divisors(shape.heads), "head_dim": whole(1, 1000)}
        if shape.hidden % shape.heads == 0:
            wanted["head_dim"] |= st.none()
        for name, strategy in wanted.items():
            if draw(st.booleans()):
                shape = replace(shape, **{name: draw(strategy)})
    elif kind == "shape":
        shape = draw(shapes(most_layers))
    params = draw(st.none() | values_of(PARAMS)) if counted is None else None
    return Model(preset, shape, params)


@st.composite
def recipes(draw, model):
    values = {name: draw(values_of(rule)) for name, rule in rules_of(Recipe).items()}
    if values["precision"] == "fp32" and values["master"] == "1":
        values["master"] = "auto"
    if model.params is not None:
        values |= {"tuning": "full", "optimizer": draw(st.sampled_from(STATES_OF_ALL))}
    return Recipe(**values)


@st.composite
def layouts(draw, model, seq, most=10_000):
    """A layout whose degrees multiply to its GPUs and suit the model."""
    counted = model.params is None
    shape = model.shape
    values = {name: draw(values_of(rule)) for name, rule in rules_of(Layout).items()}
    values["tp"] = tp = draw(divisors(shape.heads, most) if counted else whole(1, min(most, 1000)))
    values["pp"] = pp = draw(whole(1, min(shape.layers if counted else 1000, most, 1_000_000 // tp)))
    values["cp"] = cp = draw(whole(1, min(seq, most, 1_000_000 // (tp * pp))))
    dp = draw(whole(1, min(most, 1_000_000 // (tp * pp * cp))))
    values["gpus"] = dp * tp * pp * cp
    values["ep"] = draw(divisors(shape.experts, 1000)) if counted and shape.experts else values["ep"]
    if counted and not shape.experts:
        values["ep"] = 1
    if pp == 1:
        values["vpp"] = 1
    elif counted:
        values["vpp"] = draw(divisors(shape.layers // pp, 1000)) if shape.layers % pp == 0 else 1
    values["shard"] = draw(st.just("all") | divisors(dp * cp, most))
    shards = dp * cp if values["shard"] == "all" else values["shard"]
    if shards > 1:
        offloads = ["none"] + ["optimizer"] * (values["zero"] > 0) + ["all"] * (values["zero"] == 3)
        values["offload"] = draw(st.sampled_from(offloads))
    return Layout(**values)


@st.composite
def scenarios(draw, most_layers=10_000, most_degree=10_000, counted=None, frameworks=FRAMEWORKS):
    """Any valid scenario; ``counted=True``: of a model with a shape. Bounds keep the many stages of some away."""
    model = draw(models(most_layers, counted))
    batch = draw(st.builds(Batch, **{name: values_of(rule) for name, rule in rules_of(Batch).items()}))
    return Scenario(
        framework=draw(st.sampled_from(frameworks)),
        model=model,
        recipe=draw(recipes(model)),
        batch=batch,
        layout=draw(layouts(model, batch.seq, most_degree)),
        hardware=draw(
            st.builds(Hardware, st.sampled_from(sorted(presets.gpus())), values_of(rules_of(Hardware)["per_node"]))
        ),
        view=draw(st.builds(View, **{name: values_of(rule) for name, rule in rules_of(View).items()})),
    )


def small(counted=None, framework="textbook"):
    """Scenarios of at most 60 layers and degrees of at most 12: quick to estimate."""
    return scenarios(most_layers=60, most_degree=12, counted=counted, frameworks=[framework])


def changed(scenario, **values):
    """The scenario with other values of some fields, whichever part they belong to; None where they contradict."""
    try:
        for part in ("recipe", "batch", "layout", "hardware", "view"):
            kind = getattr(scenario, part)
            own = {f.name: values[f.name] for f in fields(kind) if f.name in values}
            if own:
                scenario = replace(scenario, **{part: replace(kind, **own)})
        shape = {f.name: values[f.name] for f in fields(Shape) if f.name in values}
        if shape:
            scenario = replace(scenario, model=replace(scenario.model, shape=replace(scenario.model.shape, **shape)))
    except ScenarioError:
        return None
    return scenario
