"""The pages as a person meets them, run in this process (see tests/browser for what needs a browser)."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Widget

from vram import Estimate, Scenario, count_parameters, estimate, presets
from vram.terms import GROUPS, by_group
from vram.units import UNITS, amount, in_unit
from vram.working import sources, work

ROOT = Path(__file__).parent.parent
PAGES = ("model.py", "precision.py", "activations.py", "parallelism.py")
GROUP_NAMES = {
    **{"weights": "Weights", "gradients": "Gradients", "optimizer": "Optimizer", "activations": "Activations"},
    **{"output": "Logits and loss", "buffers": "Buffers", "overhead": "Overhead"},
}
LINKS = [
    "",
    *("framework=textbook", "framework=textbook&attention=eager&gpus=8&tp=4&sp=1", "framework=textbook&tuning=qlora"),
    "unit=GiB&gpu=rtx-4090",
    "params=7B",
    "params=13B&gpus=8&zero=2",
    "params=70B&gpus=128&tp=8&pp=4&zero=1",
    "params=7B&gpus=8&zero=3&offload=all",
    "tuning=lora&gpus=2",
    "tuning=qlora&gpu=rtx-4090&batch=4&attention=eager",
    "tuning=qlora&base=nf4-dq&lora_rank=64&lora_targets=qv&optimizer=adamw-8bit",
    "precision=fp8-mixed&optimizer=muon&grads=fp32",
    "model=gpt2-xl&optimizer=adafactor&precision=fp32",
    "model=llama-3-70b&gpus=24&tp=8&pp=3",
    "model=llama-3-70b&gpus=128&tp=16&pp=8&zero=1&accum=32&sp=1",
    "gpus=8&pp=4&vpp=2&accum=16",
    "gpus=3&pp=3&vpp=3&accum=4",
    "gpus=16&cp=4&seq=131072&recompute=full",
    "gpus=16&zero=3&shard=4&per_node=4",
    "gpus=8&zero=2&offload=optimizer&recompute=selective&attention=eager",
    "recompute=sqrt&recompute_layers=7&offload_activations=1",
    "layers=33&hidden=5120&heads=40&kv_heads=8&ffn=13824&vocab=50000&tied=1",
    "gpus=17&batch=5&seq=5000&lora_rank=3&per_node=3",
    "model=falcon-7b&gpus=1000000",
    "layers=1&seq=1",
]
EVERY_LINK = list(dict.fromkeys(LINKS + [row["link"] for row in presets.examples()]))


def opened(link: str = "", page: str = "model.py") -> AppTest:
    """The app as a link shows it on a page."""
    at = AppTest.from_file(ROOT / "pages" / "main.py", default_timeout=30)
    at.query_params.update(dict(parse_qsl(link, keep_blank_values=True)))
    at.run()
    return at if page == "model.py" else at.switch_page(page).run()


def fine(at: AppTest) -> AppTest:
    """The same, once nothing is raised on it."""
    assert not at.exception, at.exception[0].value
    return at


def charts(at: AppTest) -> dict[str, dict]:
    """The figures on the page by key."""
    found = [e for e in at._tree if e.type == "bidi_component" and e.proto.component_name.endswith("plot")]
    return {e.key: json.loads(e.proto.json)["figure"] for e in found}


def bar(at: AppTest) -> dict[str, float]:
    """What the result strip's first bar shows, by group."""
    return {trace["name"]: trace["x"][0] for trace in charts(at)["memory"]["data"]}


def texts(at: AppTest) -> str:
    """All that is written on the page outside controls and charts."""
    shown = ("markdown", "header", "subheader", "latex", "warning", "error", "info", "success", "caption")
    return "\n".join(plain(e.value) for e in at._tree if e.type in shown)


def plain(text: str) -> str:
    """Markdown as it reads: no escapes, no bold, ordinary spaces."""
    return re.sub(r"\\([^\w\s])", r"\1", text.replace("\u00a0", " ").replace("**", ""))


def address(at: AppTest) -> str:
    """The query string as the browser would show it."""
    return urlencode({key: value[0] if isinstance(value, list) else value for key, value in at.query_params.items()})


def agrees(at: AppTest) -> Estimate:
    """The address, the bar, the total and the verdict tell the same; returns the estimate."""
    fine(at)
    found = estimate(Scenario.from_link(address(at)))
    unit = found.scenario.view.unit
    shown = {name: held for name, held in bar(at).items() if held}
    wanted = {GROUP_NAMES[g]: held / UNITS[unit] for g, held in by_group(found.worst.terms).items() if held}
    assert shown == pytest.approx(wanted)
    assert sum(shown.values()) * UNITS[unit] == pytest.approx(found.device_bytes)
    strip = texts(at)
    assert f"{amount(found.device_bytes, unit)} / {amount(found.capacity_bytes, unit)}" in strip
    free = found.capacity_bytes - found.device_bytes
    headroom = f"{amount(abs(free), unit)} {'free' if free >= 0 else 'over'}"
    assert f"{found.verdict.capitalize()}: {headroom}" in strip
    return found


def control(at: AppTest, key: str):
    """The control of a field."""
    return next(e for e in at._tree if isinstance(e, Widget) and e.key == key)


def after(at: AppTest, key: str) -> list:
    """What stands below a control, in the block that holds it."""

    def search(block) -> list | None:
        children = list(block.children.values())
        for place, child in enumerate(children):
            if getattr(child, "key", None) == key:
                return children[place + 1 :]
            found = search(child) if hasattr(child, "children") else None
            if found is not None:
                return found
        return None

    return search(at._tree) or []


def unfolded(at: AppTest, label: str) -> AppTest:
    """The same page with a fold opened."""
    fold = next(e for e in at.expander if e.label == label)
    at.session_state[fold.proto.id.split("-", 2)[2]] = True
    return at.run()


def problems(at: AppTest) -> list[str]:
    """What the page says was wrong with the link, a line each."""
    return [line.removeprefix("- ") for w in at.warning for line in w.value.splitlines() if line.startswith("- ")]


def tables(at: AppTest) -> list[list[list[str]]]:
    """The tables on the page, as rows of cells."""
    found = [m.value.splitlines() for m in at.markdown if m.value.startswith("|")]
    return [[[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines] for lines in found]


def column(at: AppTest, table: str, title: str) -> dict[str, str]:
    """A column of the table whose first title is given, by the first cell of each row."""
    rows = next(rows for rows in tables(at) if rows[0][0] == table)
    place = next(i for i, cell in enumerate(rows[0]) if cell.startswith(title))
    return {plain(row[0]).split(":")[0]: row[place] for row in rows[2:]}


@pytest.mark.parametrize("link", EVERY_LINK)
def test_every_page_opens_and_agrees_with_the_formulas(link):
    at = opened(link)
    assert sorted(address(at).split("&")) == sorted(Scenario.from_link(link).to_link().split("&"))
    for page in PAGES:
        at.switch_page(page).run()
        assert not at.warning and not at.error
        assert agrees(at).scenario == Scenario.from_link(link)


@pytest.fixture(scope="module")
def model_page() -> AppTest:
    """One visit in which a person tries model after model."""
    return opened()


@pytest.mark.parametrize("preset", presets.models())
def test_model_page_counts_every_preset(model_page, preset):
    at = model_page
    control(at, "model").select(preset).run()
    assert agrees(at).scenario.model.preset == preset
    count = count_parameters(presets.model(preset).shape)
    assert f"{count.total:,} parameters" in texts(at)
    assert sum(charts(at)["components"]["data"][0]["x"]) == count.total
    total = next(row for rows in tables(at) for row in rows if row[0] == "**Total**")
    assert total[1] == f"**{count.total:,}**"


def test_llama_3_8b_as_the_article_counts_it():
    at = opened("model=llama-3-8b")
    assert "8,030,261,248 parameters" in texts(at)
    assert "GQA" in texts(at)


@pytest.mark.parametrize(
    ("params", "fp32", "fp16", "int8", "int4"),
    [("1B", "4.00", "2.00", "1.00", "0.500"), ("7B", "28.0", "14.0", "7.00", "3.50")],
)
def test_weights_at_each_precision_as_in_the_article(params, fp32, fp16, int8, int4):
    rows = column(fine(opened(f"framework=textbook&params={params}")), "Format", "Weights")
    assert (rows["FP32"], rows["BF16 / FP16"], rows["INT8"], rows["INT4"]) == (fp32, fp16, int8, int4)


@pytest.mark.parametrize(
    ("link", "total"),
    [
        ("params=1B", "16.0 GB"),
        ("params=7B", "112 GB"),
        ("params=7B&precision=fp32", "112 GB"),
        ("params=13B", "208 GB"),
        ("params=70B", "1,120 GB"),
        ("params=7B&gpus=8&zero=1", "38.5 GB"),
        ("params=7B&gpus=8&zero=2", "26.3 GB"),
        ("params=7B&gpus=8&zero=3", "14.0 GB"),
        ("params=7B&gpus=2&zero=3", "56.0 GB"),
        ("params=13B&gpus=8&tp=8", "26.0 GB"),
        ("params=70B&gpus=128&tp=8&pp=4&zero=1", "15.3 GB"),
        ("params=70B&gpus=256&tp=8&pp=4&zero=1", "12.0 GB"),
    ],
)
def test_strip_shows_the_articles_totals(link, total):
    at = opened(f"framework=textbook&{link}")
    agrees(at)
    assert f" {total} / 85.9 GB" in texts(at)


def test_strategies_side_by_side_as_in_question_13():
    at = fine(opened("framework=textbook&params=13B&gpus=8&zero=2", "parallelism.py"))
    states, verdicts = column(at, "Strategy", "States"), column(at, "Strategy", "Fits")
    assert states["▸ this scenario"] == "48.8"
    assert [states[name] for name in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")] == ["208", "71.5", "48.8", "26.0"]
    assert states["TP 8"] == "26.0"
    assert [verdicts[name] for name in ("DDP", "ZeRO-1", "ZeRO-3")] == ["does not fit", "tight", "fits"]


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("model.py", "layers", 40),
        ("model.py", "tied", True),
        ("model.py", "ffn", 20480),
        ("model.py", "params", "13B"),
        ("precision.py", "precision", "bf16"),
        ("precision.py", "optimizer", "sgd"),
        ("precision.py", "tuning", "qlora"),
        ("precision.py", "grads", "fp32"),
        ("activations.py", "batch", 4),
        ("activations.py", "seq", 8192),
        ("activations.py", "attention", "eager"),
        ("activations.py", "recompute", "full"),
        ("activations.py", "offload_activations", True),
        ("parallelism.py", "tp", 2),
        ("parallelism.py", "pp", 4),
        ("parallelism.py", "zero", 3),
        ("parallelism.py", "offload", "all"),
    ],
)
def test_a_control_changes_the_bar_and_the_address(where, key, value):
    at = opened({"offload": "gpus=8&zero=3", "grads": "gpus=8&framework=textbook"}.get(key, "gpus=8"), where)
    before = bar(at)
    control(at, key).set_value(value).run()
    found = agrees(at)
    assert bar(at) != before
    spelled = {True: "1"}.get(value, str(value))
    assert f"{key}={spelled}" in address(at).split("&")
    assert found.scenario.layout.gpus == 8


def test_four_pages_keep_what_was_set_on_each():
    at = opened()
    control(at, "layers").set_value(30).run()
    at.switch_page("precision.py").run()
    control(at, "optimizer").select("lion").run()
    at.switch_page("activations.py").run()
    control(at, "batch").set_value(4).run()
    at.switch_page("parallelism.py").run()
    control(at, "gpus").set_value(16).run()
    control(at, "zero").set_value(2).run()
    for page in PAGES:
        at.switch_page(page).run()
        assert agrees(at).scenario == Scenario.from_link("layers=30&optimizer=lion&batch=4&gpus=16&zero=2")
    assert control(at.switch_page("model.py").run(), "layers").value == 30
    links = [e.proto.query_string for e in at.get("page_link")]
    assert links[:4] == [address(at)] * 4


def test_link_problems_are_named_and_the_good_keys_apply():
    at = opened("gpus=8&tp=abc&zero=3&colour=red&seq=-5&optimizer=adam")
    assert agrees(at).scenario == Scenario.from_link("gpus=8&zero=3")
    said = problems(at)
    assert len(said) == 4
    for field in ("tp", "colour", "seq", "optimizer"):
        assert sum(text.startswith(f"{field}: ") for text in said) == 1
    at.switch_page("parallelism.py").run()
    control(at, "tp").set_value(4).run()
    assert not at.warning and address(at) == "gpus=8&tp=4&zero=3"


def test_contradictions_in_a_link_are_named_and_the_rest_applies():
    at = opened("gpus=8&tp=3&zero=1&batch=2&model=qwen2.5-7b")
    found = agrees(at)
    assert [line.split(":")[0] for line in problems(at)] == ["gpus"]
    assert (found.scenario.batch.batch, found.scenario.layout.zero, found.scenario.layout.gpus) == (2, 1, 8)


@pytest.mark.parametrize(
    ("link", "where", "key", "value", "sentence", "fixed"),
    [
        ("batch=2&gpus=4&zero=3", "model.py", "heads", 31, r"31", {"heads": 32}),
        ("batch=2", "model.py", "kv_heads", 7, r"7.*32", {"kv_heads": 8}),
        (
            *("model=qwen2.5-1.5b&gpus=64&batch=2", "parallelism.py", "tp", 64),
            *(r"64 does not divide the 12 attention heads", {"tp": 4}),
        ),
        ("gpus=8&tp=8&batch=2", "parallelism.py", "gpus", 12, r"12 GPUs cannot be shared out.*8, 16", {"gpus": 16}),
        ("gpus=64&batch=2", "parallelism.py", "pp", 64, r"64 stages are more than the 32 layers", {"pp": 32}),
        ("gpus=8&batch=2", "parallelism.py", "offload", "all", r"builds on ZeRO", {"zero": 3}),
        ("precision=fp32&batch=2", "precision.py", "master", "1", r"FP32", {"master": "auto"}),
    ],
)
def test_a_wrong_value_is_explained_beside_its_control(link, where, key, value, sentence, fixed):
    at = opened(link, where)
    others = dict(parse_qsl(link))
    control(at, key).set_value(value).run()
    agrees(at)
    assert len(at.error) == 1
    said = plain(at.error[0].value)
    assert re.search(sentence, said), said
    assert said.endswith(".") and "\n" not in said
    below = after(at, key)
    assert below[0].type == "error" and below[1].type == "button"
    # What the bar shows meanwhile is the nearest that works, and all else is kept.
    now = dict(parse_qsl(address(at)))
    kept = {k: v for k, v in others.items() if k not in (key, *fixed)}
    assert {k: now.get(k) for k in kept} == kept
    below[1].click().run()
    agrees(at)
    assert not at.error
    for field, wanted in fixed.items():
        assert at.session_state[field] == wanted
    now = dict(parse_qsl(address(at)))
    assert {k: now.get(k) for k in kept} == kept


@pytest.mark.parametrize("text", ["abc", "-7B", "7 billion", "1e9", "0", "<b>7B</b>", "99999T"])
def test_a_wrong_number_of_parameters_is_explained(text):
    at = opened("gpus=8&zero=3&batch=2")
    control(at, "params").set_value(text).run()
    assert agrees(at).scenario == Scenario.from_link("gpus=8&zero=3&batch=2")
    assert len(at.error) == 1 and after(at, "params")[0].type == "error"
    assert "a count such as 7B" in at.error[0].value
    assert control(at, "params").value == text
    control(at, "params").set_value("7B").run()
    assert not at.error and "params=7B" in address(at)


def test_a_model_brings_its_own_shape():
    at = opened("layers=40&hidden=5120&vocab=1000&tied=1&gpus=4")
    control(at, "model").select("qwen2.5-7b").run()
    assert agrees(at).scenario == Scenario.from_link("model=qwen2.5-7b&gpus=4")
    assert control(at, "layers").value == 28
    control(at, "layers").set_value(20).run()
    back = next(b for b in at.button if "published" in b.label)
    back.click().run()
    assert address(at) == "model=qwen2.5-7b&gpus=4"


def test_a_model_replaces_a_bare_number_of_parameters():
    at = opened("params=7B")
    control(at, "model").select("gpt2").run()
    assert address(at) == "model=gpt2" and control(at, "params").value == ""
    assert agrees(at).parameters == count_parameters(presets.model("gpt2").shape).total


def test_shape_fields_left_empty_mean_the_published_size():
    at = opened("hidden=5120")
    control(at, "hidden").set_value(None).run()
    assert agrees(at).scenario == Scenario()


@pytest.mark.parametrize("where", PAGES)
def test_unit_changes_numbers_and_nothing_else(where):
    at = opened("gpus=8&zero=3&attention=eager", where)
    before = bar(at)
    control(at, "unit").set_value("GiB").run()
    found = agrees(at)
    assert found.scenario.view.unit == "GiB"
    assert bar(at) == pytest.approx({name: held * 1e9 / 2**30 for name, held in before.items()})
    for shown in (texts(at), *(json.dumps(figure) for figure in charts(at).values())):
        for name in sorted((gpu.name for gpu in presets.gpus().values()), key=len, reverse=True):
            shown = shown.replace(name, "")
        assert not re.search(r"[0-9] GB\b(?!/s)", shown), "a number is still in GB"


@pytest.mark.parametrize("link", EVERY_LINK)
def test_the_working_shows_every_term(link):
    at = opened(link)
    shown = set()
    for page in PAGES:
        at.switch_page(page).run()
        found = agrees(unfolded(at, "Show the working"))
        steps = [m.value for m in at.markdown if "Source:" in m.value]
        for term in [*found.worst.terms, *found.worst.host]:
            working = work(term)
            for step in steps:
                if step.startswith(f"{term.name}: ") and f" = {term.bytes:,} B" in step:
                    assert f"${working.symbols} = {working.numbers}$ = {term.bytes:,} B" in step
                    assert amount(term.bytes, found.scenario.view.unit) in step
                    assert sources(term.formula) and all(source in step for source in sources(term.formula))
                    shown.add(term.name)
    assert shown == {term.name for term in [*found.worst.terms, *found.worst.host]}


def test_the_working_gives_the_articles_activations_of_a_layer():
    """b = 1, s = 4096, one layer of Llama-3-8B: 2,835,349,504 + 503,316,480 bytes (sections 3.3 and 8)."""
    at = opened("framework=textbook&attention=eager&layers=1", "activations.py")
    found = agrees(at)
    held = [t for t in found.worst.terms if t.group == "activations"]
    inside = sum(t.bytes for t in held) - 4 * 4096 * 4096
    assert inside == 2_835_349_504 + 503_316_480
    unfolded(at, "Show the working")
    steps = [int(n.replace(",", "")) for n in re.findall(r"= ([0-9,]+) B", texts(at))]
    assert sum(steps) == sum(t.bytes for t in held)


def test_notes_say_where_the_article_is_loose():
    for page in PAGES:
        at = opened("", page)
        at.session_state[f"_notes_{page.removesuffix('.py')}"] = True
        at.run()
        listed = [note for note in presets.notes() if page.removesuffix(".py") in note["pages"]]
        assert listed, page
        for note in listed:
            assert note["text"] in texts(fine(at))


def test_examples_open_what_they_name():
    at = opened()
    at.session_state["_examples"] = True
    at.run()
    fine(at)
    listed = [e for e in at.get("page_link") if " · " in e.proto.label]
    assert len(listed) == len(presets.examples()) > 0
    for row, shown in zip(presets.examples(), listed, strict=True):
        assert row["title"] in shown.proto.label
        assert Scenario.from_link(shown.proto.query_string) == Scenario.from_link(row["link"])


HOSTILE = (
    "<script>zz()</script>",
    "<img src=x onerror=zz()>",
    "[zz](javascript:alert(1))",
    "![zz](https://zz.example/x.png)",
    "**zz**",
    ":red[zz]",
    "$zz^2$",
    "`zz`",
    "{zz}",
    "{0.__class__}",
    "%s%n",
    "https://zz.example",
    "zz" * 3000,
    "\u202ezz\u0000",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_link_reaches_the_page(text):
    keys = ("model", "gpu", "shape", "params", "gpus", "seq", "optimizer", "framework", "unit", "lang", "v")
    for page in PAGES:
        at = opened(urlencode(dict.fromkeys(keys, text) | {text: "1", "batch": "2"}), page)
        assert agrees(at).scenario == Scenario.from_link("batch=2")
        assert len(problems(at)) == 12
        for element in at._tree:
            value = getattr(element, "value", None)
            assert not (isinstance(value, str) and text in value), element
            assert text not in str(getattr(element, "proto", ""))
            assert not getattr(getattr(element, "proto", None), "allow_html", False)


PLOTLY = ("x unified", "traces first")
"""Settings of Plotly that look like texts."""


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """String literals that nobody has marked for the catalogue, and that are no documentation or style."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("_", "N_", "counted", "Message", "st.latex") or called.endswith(".component"):
                continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not isinstance(tree, ast.Subscript):
            yield node
        yield from literals(node)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "pages").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT / "pages"))
)
def test_every_text_for_people_can_be_translated(file):
    """A literal with a space and a word in lower case is a text; so is any word that is a call's first argument."""
    tree = ast.parse(file.read_text(encoding="utf-8"))

    def texts_in(node: ast.AST) -> list[str]:
        return [re.sub(r":[\w/-]+[:\[]|<[^>]*>|%{\w+|\\\w+", "", literal.value) for literal in literals(node)]

    missed = [text for text in texts_in(tree) if " " in text and re.search(r"[a-z]{2}", text) and text not in PLOTLY]
    writes = (
        r"st\.(markdown|header|subheader|title|text|write|caption|info|warning|error|success|button|badge|expander)"
    )
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
        if re.fullmatch(writes, ast.unparse(call.func)) and not isinstance(call.args[0], ast.Call):
            missed += [text for text in texts_in(ast.Tuple([call.args[0]])) if re.search(r"[a-z]{2}", text)]
    assert not missed


def painted(trace: dict) -> str:
    """The colour of a bar or an area."""
    return (trace.get("marker") or trace["line"])["color"]


def test_every_colour_stands_for_one_group():
    colours: dict[str, set[str]] = {}
    others: set[str] = set()
    names = {GROUP_NAMES[group] for group in GROUPS}
    at = opened("gpus=16&pp=2&tp=2&attention=eager")
    for page in PAGES:
        at.switch_page(page).run()
        for key, figure in charts(fine(at)).items():
            for trace in figure["data"]:
                if trace.get("name") in names:
                    colours.setdefault(trace["name"], set()).add(painted(trace))
                elif trace["type"] == "heatmap":
                    others |= {shade for _share, shade in trace["colorscale"]}
                else:
                    group = "Weights" if key == "components" else "Activations"
                    colours.setdefault(group, set()).add(painted(trace))
        legend = re.findall(r':color\[■\]\{foreground="(#[0-9a-f]{6})"\} \**([A-Z][a-z ]+?)\**(?= [0-9<]|$)', texts(at))
        for colour, name in legend:
            colours.setdefault(name.strip(), set()).add(colour)
    assert set(colours) >= {"Weights", "Gradients", "Optimizer", "Activations"}
    assert all(len(used) == 1 for used in colours.values()), colours
    assert len(set.union(*colours.values())) == len(colours), colours
    assert not others & set.union(*colours.values())


def test_strip_says_bytes_share_and_formula_on_hover():
    at = opened("gpus=8&zero=3")
    found = agrees(at)
    for trace in charts(at)["memory"]["data"]:
        terms = [t for t in found.worst.terms if GROUP_NAMES[t.group] == trace["name"]]
        for term in sorted(terms, key=lambda t: -t.bytes)[:8]:
            assert f"{term.name}: {amount(term.bytes, 'GB')} = " in trace["customdata"][0]
        if terms:
            share = 100 * sum(t.bytes for t in terms) / found.device_bytes
            assert f"({share:.0f} %)" in trace["customdata"][0]


def test_offloaded_bytes_are_named_in_the_strip():
    at = opened("framework=textbook&params=7B&gpus=8&zero=3&offload=all", "parallelism.py")
    found = agrees(at)
    assert f"CPU memory or NVMe of each machine: {amount(found.host_bytes_per_node, 'GB')}" in texts(at)
    assert found.host_bytes_per_node == 112 * 10**9
    assert "(112 GB in each machine's CPU memory)" in texts(at)


def test_layouts_that_work_in_an_unexpected_way_say_so():
    uneven = texts(fine(opened("model=llama-3-70b&gpus=24&tp=8&pp=3", "parallelism.py")))
    assert "3 stages do not divide 80 layers" in uneven
    replicated = texts(fine(opened("gpus=16&tp=16", "parallelism.py")))
    assert "16 tensor-parallel GPUs cannot share 8 KV heads" in replicated


@pytest.mark.parametrize("framework", ["pytorch", "megatron"])
def test_busy_experts_are_a_band_up_to_the_worst_case(framework):
    link = f"framework={framework}&model=mixtral-8x7b-v0.1&gpus=64&ep=8&zero=1"
    at = fine(opened(link, "parallelism.py"))
    rows = column(at, "Experts", "Total")
    assert list(rows) == ["balanced", "with a capacity factor", "twice the average", "worst case"]
    assert list(column(at, "Experts", "$").values()) == ["1", "1.25", "2", "4"]  # 8·min(2, 1)/2
    needed = [float(total.replace(",", "")) for total in rows.values()]
    assert needed == sorted(set(needed))
    assert rows["balanced"] == in_unit(estimate(Scenario.from_link(link)).device_bytes, "GB")
    fits = column(at, "Experts", "Fits")
    assert fits["balanced"] == agrees(at).verdict
    shown = [sum(trace["x"][row] for trace in charts(at)["busy"]["data"]) for row in range(4)]
    assert shown == pytest.approx(needed, rel=0.01)
    unfolded(at, "Show the working of the worst case")
    steps = [m.value for m in fine(at).markdown if m.value.startswith("Experts: ")]
    assert steps and all(r"\gamma" in step and r"\times 4" in step for step in steps)


def test_experts_that_nobody_shares_are_equally_busy_and_without_experts_there_are_none():
    alone = fine(opened("model=mixtral-8x7b-v0.1&gpus=8&zero=3", "parallelism.py"))
    assert "each GPU computes the same number of them" in texts(alone) and "busy" not in charts(alone)
    for link in ("gpus=8", "params=70B&gpus=8", "framework=textbook&model=mixtral-8x7b-v0.1&gpus=8&ep=8"):
        assert "Busy experts" not in texts(fine(opened(link, "parallelism.py")))


def test_the_device_grid_has_a_cell_for_every_gpu():
    at = fine(opened("gpus=128&tp=8&pp=4&model=llama-3-70b", "parallelism.py"))
    assert "128 GPUs = DP 4 × PP 4 × TP 8" in texts(at)
    cells = charts(at)["grid"]["data"][0]
    assert sorted(rank for row in cells["text"] for rank in row) == list(range(128))


def test_pipeline_stages_say_what_gpipe_would_hold():
    """Llama-3-8B, 8 of 32 layers a stage, 4 or all 16 micro-batches; no scores (article, section 3.3)."""
    at = fine(opened("framework=textbook&gpus=8&pp=4&accum=16", "parallelism.py"))
    layer = 2_835_349_504 + 503_316_480 - 5 * 4096**2 * 32
    behind = 4 * 4096 * 4096
    kept = column(at, "Schedule, its fullest stage", "Kept")
    own, gpipe = (amount(count, "GB") for count in (4 * 8 * layer, 16 * (8 * layer + behind)))
    assert {name: f"{text} GB" for name, text in kept.items()} == {"One forward, one backward": own, "GPipe": gpipe}
    assert "stage 1 holds 4 of 16 micro-batches" in texts(at) and "stage 4 holds 16 of 16 micro-batches" in texts(at)
    assert column(at, "Schedule, its fullest stage", "Fits")["GPipe"] == "does not fit"


@pytest.mark.parametrize("link", ["gpus=8", "params=70B&gpus=8&pp=4"])
def test_without_stages_or_activations_there_is_no_word_of_gpipe(link):
    assert "GPipe" not in texts(fine(opened(link, "parallelism.py")))


def test_interleaved_schedules_are_counted_in_chunks():
    at = fine(opened("gpus=4&pp=4&vpp=2&accum=8&recompute=full", "parallelism.py"))
    # arXiv:2104.04473: the first stage warms up with 2(p − 1) + (v − 1)p chunks, and works on one more.
    rows = column(at, "Schedule, its fullest stage", "Schedule")
    stage, held = map(int, re.findall(r"stage (\d) holds (\d+) of 16 chunks", rows["Interleaved"])[0])
    assert held == (11, 9, 7, 5)[stage - 1]
    assert "16 of 16 chunks" in rows["GPipe"]
