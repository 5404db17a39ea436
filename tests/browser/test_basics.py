"""Sliders, links, the copy button, navigation: what a person does first."""

import csv
import io
import json
import math
import random
import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from screen import PAGES, go, idle, memory, query, serving, shows, slider, strip, visit

from vram import Scenario, estimate, presets, shape_from_config
from vram.evidence import MEASURES, Outcome, outcomes
from vram.terms import by_group
from vram.units import amount

SLIDERS = {
    "Model": ("Layers", "", {"layers": 33}),
    "Precision": ("Rank of the adapters", "tuning=lora", {"lora_rank": 32}),
    "Activations": ("Micro-batch per GPU", "", {"batch": 2}),
    "Parallelism": ("GPUs", "zero=3", {"gpus": 2}),
}
"""On each page with sliders one of them, a link to start from, and what one press of the right arrow makes of it."""


def moved(link: str, **values: object) -> str:
    """A link with some values more."""
    return Scenario.from_values({**Scenario.from_link(link).values(), **values}).to_link()


@pytest.mark.parametrize("name", SLIDERS)
def test_a_slider_moves_bar_total_and_address(page, name):
    label, link, values = SLIDERS[name]
    visit(page, PAGES[name], link)
    shows(page, link)
    slider(page, label).press("ArrowRight")
    found = shows(page, moved(link, **values))
    assert urlsplit(page.url).path == PAGES[name]
    held = [size / found.device_bytes for size in by_group(found.worst.terms).values() if size]
    page.wait_for_function(
        """([plot, wanted]) => {
             const first = (bars) => bars.querySelector("path").getBBox().width;
             const drawn = [...plot.querySelectorAll(".trace.bars")].map(first);
             const shown = drawn.filter((width) => width > 0), all = shown.reduce((a, b) => a + b, 0);
             return wanted.every((share, i) => Math.abs(share - shown[i] / all) < 0.005);
           }""",
        arg=[memory(page).element_handle(), held],
    )


def test_a_drag_and_a_choice_change_the_same(page):
    visit(page, "/parallelism", "gpus=8")
    page.get_by_role("radio", name="ZeRO-2").or_(page.get_by_role("button", name="ZeRO-2")).first.click()
    shows(page, "gpus=8&zero=2")
    page.get_by_text("Sequence parallel", exact=True).click()
    shows(page, "gpus=8&zero=2&sp=1")


def test_the_share_link_is_the_address(page, context, new_context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, "/activations", "model=qwen2.5-7b&gpus=8&zero=3&unit=GiB")
    slider(page, "Micro-batch per GPU").press("ArrowRight")
    wanted = "model=qwen2.5-7b&gpus=8&zero=3&unit=GiB&batch=2"
    shows(page, wanted)
    idle(page)
    strip(page).get_by_role("button", name="Copy link").click()
    expect(strip(page).get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert urlsplit(copied)[:3] == urlsplit(page.url)[:3]
    assert Scenario.from_link(copied) == Scenario.from_link(page.url) == Scenario.from_link(wanted)
    other = new_context().new_page()
    visit(other, copied)
    shows(other, wanted)
    expect(strip(page).get_by_role("button", name="Copy link")).to_be_visible()


def test_the_link_can_be_copied_where_browsers_hide_the_clipboard(page):
    """Over plain HTTP in a classroom there is no navigator.clipboard."""
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    visit(page, "/", "gpus=8")
    strip(page).get_by_role("button", name="Copy link").click()
    expect(strip(page).get_by_role("button", name="Copied")).to_be_visible()
    page.evaluate("document.body.prepend(Object.assign(document.createElement('textarea'), { id: 'paste' }))")
    page.locator("#paste").press("Control+v")
    pasted = page.locator("#paste").input_value()
    assert urlsplit(pasted).netloc == urlsplit(page.url).netloc
    assert Scenario.from_link(pasted) == Scenario.from_link("gpus=8")


@pytest.mark.parametrize("name", ["Model", "Activations"])
def test_fast_presses_never_lose_an_update(page, name):
    """Bursts of presses with odd pauses: the browser's address is then older than what the session holds."""
    label, link, values = SLIDERS[name]
    (key,) = values
    visit(page, PAGES[name], link)
    knob = slider(page, label)
    places = list(range(1, 161)) if key == "layers" else [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    place = int(knob.input_value())
    dice = random.Random(name)
    for _burst in range(20):
        presses = dice.randint(2, 5)
        step = 1 if place + presses < len(places) and (place < presses or dice.random() < 0.6) else -1
        for _press in range(presses):
            knob.press("ArrowRight" if step > 0 else "ArrowLeft", delay=dice.choice((0, 0, 15, 40, 90)))
        place += step * presses
        wanted = moved(link, **{key: places[place]})
        for _look in range(2):
            expect(knob).to_have_value(str(place))
            shows(page, wanted)
            idle(page)


def test_two_sliders_in_quick_turns_keep_both(page):
    visit(page, "/activations")
    batch, length = slider(page, "Micro-batch per GPU"), slider(page, "Sequence length")
    for _turn in range(3):
        batch.press("ArrowRight")
        length.press("ArrowRight")
    shows(page, "batch=4&seq=32768")
    idle(page)
    shows(page, "batch=4&seq=32768")


def test_a_walk_through_all_pages_keeps_the_scenario(page):
    visit(page)
    link = ""
    for name in SLIDERS:
        go(page, name)
        shows(page, link)
        if name == "Precision":
            page.get_by_text("LoRA", exact=True).first.click()
            link = moved(link, tuning="lora")
            shows(page, link)
        label, _link, values = SLIDERS[name]
        slider(page, label).press("ArrowRight")
        link = moved(link, **values)
        shows(page, link)
        idle(page)
    for name in (*PAGES, *reversed(PAGES)):
        go(page, name)
        shows(page, link)


WHOLE = (
    "model=llama-3-70b&gpus=128&tp=8&pp=4&zero=1&batch=2&seq=8192&recompute=full&optimizer=lion&gpu=h100-80gb&unit=GiB"
)


@pytest.mark.parametrize("name", PAGES)
def test_a_link_opens_the_same_in_a_fresh_browser(page, name):
    visit(page, PAGES[name], WHOLE)
    shows(page, WHOLE)
    expect(page.get_by_role("alert")).to_have_count(0)
    for other in PAGES:
        go(page, other)
        shows(page, WHOLE)


@pytest.mark.parametrize("name", PAGES)
def test_a_link_may_be_the_first_request_of_a_fresh_server(new_context, tmp_path, name):
    with serving(tmp_path / "log") as address:
        context = new_context()
        page = context.new_page()
        visit(page, address + PAGES[name], WHOLE)
        shows(page, WHOLE)
        expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("heading", level=2).first).to_contain_text(name)
        context.close()


def test_back_forward_and_reload_agree_at_every_step(page):
    visit(page)
    states = [("/", "")]

    def note(link: str) -> None:
        shows(page, link)
        idle(page)
        states.append((urlsplit(page.url).path, link))

    slider(page, "Layers").press("ArrowRight")
    note("layers=33")
    go(page, "Parallelism")
    note("layers=33")
    slider(page, "GPUs").press("ArrowRight")
    note("layers=33&gpus=2")
    slider(page, "GPUs").press("ArrowRight")
    note("layers=33&gpus=3")
    go(page, "Activations")
    note("layers=33&gpus=3")
    slider(page, "Sequence length").press("ArrowRight")
    note("layers=33&gpus=3&seq=8192")

    def stands(path: str, link: str) -> None:
        page.wait_for_url(lambda url: urlsplit(url).path == path, wait_until="commit")
        shows(page, link)
        idle(page)
        if path == "/":
            layers = Scenario.from_link(link).model.shape.layers
            expect(slider(page, "Layers")).to_have_value(str(layers - 1))

    for path, link in reversed(states[:-1]):
        page.go_back()
        stands(path, link)
    for path, link in states[1:3]:
        page.go_forward()
        stands(path, link)
    page.reload()
    stands(*states[2])
    for path, link in states[3:]:
        page.go_forward()
        stands(path, link)
    page.reload()
    stands(*states[-1])


@pytest.mark.parametrize(
    ("junk", "link", "problems"),
    [
        ("tp=abc&gpus=8&zero=3", "gpus=8&zero=3", 1),
        ("gpus=-5&seq=1e9&batch=3.7&zero=NaN&unit=", "", 5),
        ("<script>window.zz=1</script>=1&gpus=<img src=x onerror=window.zz=1>&batch=2", "batch=2", 2),
        ("[zz](javascript:window.zz=1)=1&model=[zz](javascript:window.zz=1)&batch=2", "batch=2", 2),
        ("www.example.org=1&__zz__=1&gpu=www.example.org&optimizer=__zz__&batch=2", "batch=2", 4),
        ("seq=" + "9" * 5000, "", 1),
        ("&&&=&=1&%ff%fe=%00&gpus=8", "gpus=8", None),
        ("gpus=2&gpus=8", "gpus=8", 0),
    ],
)
def test_junk_in_a_link_is_named_and_does_no_harm(page, junk, link, problems):
    visit(page, "/", junk)
    shows(page, link)
    alerts = page.get_by_role("alert")
    if problems is not None:
        expect(alerts.get_by_role("listitem")).to_have_count(problems)
    assert page.evaluate("window.zz") is None
    inside = alerts.locator("a, b, i, em, strong, code, img, script, iframe, .katex")
    assert inside.evaluate_all("(found) => found.map((node) => node.outerHTML)") == []
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("name", SLIDERS)
def test_charts_stay_the_same_nodes_through_twenty_changes(page, name):
    label, link, _values = SLIDERS[name]
    visit(page, PAGES[name], link)
    mark = "(all) => { for (const plot of all) { plot.marked = plot.querySelector('.main-svg').marked = true; } }"
    page.locator(".plot").evaluate_all(mark)
    count = page.locator(".plot").count()
    knob = slider(page, label)
    place = int(knob.input_value())
    for turn in range(20):
        right = turn < 4 or turn % 2
        said = memory(page).get_attribute("aria-label")
        knob.press("ArrowRight" if right else "ArrowLeft")
        place += 1 if right else -1
        expect(knob).to_have_value(str(place))
        expect(memory(page)).not_to_have_attribute("aria-label", said)
        idle(page)
    kept = "(all) => all.map((plot) => [plot.marked, plot.querySelector('.main-svg').marked])"
    assert page.locator(".plot").evaluate_all(kept) == [[True, True]] * count


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_bars_glide_unless_the_reader_wants_no_motion(new_context, motion):
    page = new_context(reduced_motion=motion).new_page()
    link = "framework=textbook&gpu=b200&params=7B&gpus=2"
    visit(page, "/parallelism", link)
    page.evaluate(
        """(plot) => {
             window.seen = [];
             const look = () => {
               const bars = [...plot.querySelectorAll('.trace.bars path')];
               seen.push(bars.reduce((sum, bar) => sum + bar.getBBox().width, 0));
               requestAnimationFrame(look);
             };
             look();
           }""",
        memory(page).element_handle(),
    )
    page.get_by_text("ZeRO-3", exact=True).first.click()
    shows(page, link + "&zero=3")
    page.wait_for_function("() => seen.at(-1) < 0.6 * seen[0] && seen.slice(-20).every((w) => w === seen.at(-1))")
    seen = page.evaluate("seen")
    first, last = seen[0], seen[-1]
    between = [width for width in seen if last + 2 < width < first - 2]
    assert bool(between) == (motion == "no-preference"), between


def test_downloads_hold_the_estimate(page):
    link = "model=llama-3-8b&gpus=8&pp=2&zero=1&accum=4&attention=eager"
    visit(page, "/activations", link)
    found = estimate(Scenario.from_link(link))
    page.get_by_text("Show the working").click()
    expect(page.locator(".katex").last).to_be_visible()
    idle(page)
    with page.expect_download() as table:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(table.value.path().read_text(encoding="utf-8"))))
    for stage in found.stages:
        held = [int(row["bytes"]) for row in rows if row["place"] == "gpu" and int(row["stage"]) == stage.stage]
        assert sum(held) == sum(term.bytes for term in stage.terms)
    assert table.value.suggested_filename.endswith(".csv")
    with page.expect_download() as data:
        page.get_by_role("button", name="JSON").click()
    assert json.loads(data.value.path().read_text(encoding="utf-8")) == found.to_dict()
    assert query(page) and Scenario.from_link(query(page)) == Scenario.from_link(link)


def lonely(count: int) -> list[Outcome]:
    """Measured runs whose points lie farthest from all others, but for the one that is shown first."""
    runs = [found for found in outcomes() if found.quantity in MEASURES and not found.reason]
    places = {found.id: (math.log(found.measured), math.log(found.estimated)) for found in runs}
    first = max(runs, key=lambda found: abs(found.error))

    def room(found: Outcome) -> float:
        return min(math.dist(places[found.id], place) for id, place in places.items() if id != found.id)

    return sorted((found for found in runs if found is not first), key=room)[-count:]


def test_a_click_on_a_point_shows_its_run_and_the_way_to_its_scenario(page):
    page.set_viewport_size({"width": 1280, "height": 1200})
    visit(page, "/evidence", "gpus=8&zero=3")
    runs = {run["id"]: run for run in presets.evidence()}
    chart = page.get_by_role("img", name=re.compile("of the measurement"))
    section = page.get_by_test_id("stColumn").filter(has=page.get_by_role("heading", name="One run"))
    for found in lonely(2):
        point = chart.locator("path.point").evaluate_all(
            "(points, id) => points.findIndex((point) => point.__data__.data === id)", found.id
        )
        box = chart.locator("path.point").nth(point).bounding_box()
        place = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(*place)
        for text in (f"{100 * found.error:+.1f} %", found.model, found.source.split(", ")[0]):
            expect(chart.locator(".hoverlayer")).to_contain_text(text)
        cursor = "([x, y]) => getComputedStyle(document.elementFromPoint(x, y)).cursor"
        assert page.evaluate(cursor, place) == "pointer"
        expect(section).not_to_contain_text(amount(found.measured, "GB"))
        page.mouse.click(*place)
        expect(section).to_contain_text(f"measured {amount(found.measured, 'GB')}")
        expect(section).to_contain_text(runs[found.id]["source"])
        expect(section.get_by_role("combobox")).to_have_value(re.compile(re.escape(found.id)))
        idle(page)
    assert query(page) == "gpus=8&zero=3"
    run = runs[found.id]
    shape = shape_from_config(run["config"]) if "config" in run else None
    section.get_by_role("link", name="Open its scenario").click()
    page.wait_for_url(lambda url: urlsplit(url).path == PAGES["Activations"], wait_until="commit")
    shows(page, Scenario.from_link(run["link"], shape=shape).to_link())
