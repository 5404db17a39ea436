"""What everyone should be able to see and reach: phones, dark rooms, keyboards, screen readers."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from screen import PAGES, idle, memory, shows, slider, strip, visit

BUSY = "model=llama-3-70b&gpus=24&tp=8&pp=3&zero=1&accum=8&attention=eager&tuning=lora"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def inside(page: Page) -> bool:
    """Whether the strip is wholly in view."""
    box, size = strip(page).bounding_box(), page.viewport_size
    return box["y"] >= 0 and box["y"] + box["height"] <= size["height"] + 1 and box["x"] >= 0


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_down_only_and_keeps_the_strip_in_view(new_context, name):
    page = new_context(**PHONE).new_page()
    visit(page, PAGES[name], BUSY)
    shows(page, BUSY)
    wide = """() => [document.scrollingElement, document.querySelector('[data-testid=stMain]')]
                  .map((node) => node.scrollWidth - node.clientWidth)"""
    assert page.evaluate(wide) == [0, 0]
    assert inside(page)
    assert strip(page).bounding_box()["height"] < 0.35 * PHONE["viewport"]["height"]
    page.locator("[data-testid=stMain]").evaluate("(main) => main.scrollTo(0, main.scrollHeight)")
    page.wait_for_function("() => document.querySelector('[data-testid=stMain]').scrollTop > 0")
    assert inside(page)
    expect(strip(page).get_by_role("button", name="Copy link")).to_be_in_viewport(ratio=1)
    for other in PAGES:
        expect(page.get_by_role("link", name=other, exact=True)).to_be_attached()


@pytest.mark.parametrize("name", PAGES)
def test_the_strip_stays_in_view_on_a_desk(page, name):
    visit(page, PAGES[name], BUSY)
    assert inside(page)
    page.locator("[data-testid=stMain]").evaluate("(main) => main.scrollTo(0, main.scrollHeight)")
    page.wait_for_function("() => document.querySelector('[data-testid=stMain]').scrollTop > 0")
    assert inside(page)


def luminance(colour: str) -> float:
    """The relative luminance of an opaque CSS colour (WCAG 2)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours (WCAG 2)."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_texts_in_charts_can_be_read(new_context, name, scheme):
    """Axe does not look into charts: labels beside bars against the page, labels on bars against the bar."""
    page = new_context(color_scheme=scheme).new_page()
    visit(page, PAGES[name], BUSY)
    paper = page.locator("[data-testid=stApp]").evaluate("(app) => getComputedStyle(app).backgroundColor")
    assert (luminance(paper) < 0.2) == (scheme == "dark")
    texts = page.locator(".plot").evaluate_all(
        """(plots) => {
             const style = (node) => getComputedStyle(node).fill;
             const within = (x, box) => box && box.left < x && x < box.right;
             return plots.flatMap((plot) => [...plot.querySelectorAll('text')]).filter((text) => text.textContent)
               .map((text) => {
                 const own = text.getBoundingClientRect(), bar = text.closest('.point')?.querySelector('path');
                 const over = within((own.left + own.right) / 2, bar?.getBoundingClientRect());
                 const cell = text.closest('.heatmap-label, .hm, .heatmaplayer');
                 return { text: text.textContent, fill: style(text), cell: !!cell, on: over ? style(bar) : null };
               });
           }"""
    )
    assert texts
    for text in (text for text in texts if not text["cell"]):
        assert contrast(text["fill"], text["on"] or paper) >= 4.5, text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(new_context, name, scheme):
    page = new_context(color_scheme=scheme).new_page()
    visit(page, PAGES[name], BUSY + "&tp=abc&vpp=3")
    if name != "Evidence":
        for fold in ("Where the article is loose", "Show the working"):
            page.get_by_text(fold, exact=True).click()
        expect(page.get_by_role("button", name="CSV")).to_be_visible()
    idle(page)
    found = []
    for violation in Axe().run(page).response["violations"]:
        for node in violation["nodes"]:
            where = f"{node['target']} {node['html']}"
            found.append(f"{violation['id']}: {where[:300]} {node['failureSummary'][:200]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("Model", ["Layers"]),
        ("Activations", ["Micro-batch per GPU", "Sequence length", "Micro-batches per step"]),
        ("Parallelism", ["GPUs", "Tensor parallel", "Pipeline parallel"]),
    ],
)
def test_sliders_and_the_copy_button_are_reached_by_keyboard(page, name, labels):
    visit(page, PAGES[name], "gpus=8")
    reached = []
    for _press in range(80):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => { let node = document.activeElement;
                           while (node.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
                           return node.type === 'range' ? node.getAttribute('aria-label') : node.textContent; }"""
            )
        )
        if reached[-1] == labels[0] and "pressed" not in reached:
            page.keyboard.press("ArrowRight")
            reached.append("pressed")
        if "Copy link" in reached:
            break
    assert [text for text in reached if text in labels] == labels
    assert "Copy link" in reached
    page.wait_for_url(re.compile(r"(layers=33|batch=2|gpus=12)"), wait_until="commit")
    page.keyboard.press("Enter")
    expect(strip(page).get_by_role("button", name="Copied")).to_be_visible()


@pytest.mark.parametrize("name", PAGES)
def test_the_wheel_over_a_chart_scrolls_the_page(page, name):
    visit(page, PAGES[name], BUSY)
    main = page.locator("[data-testid=stMain]")
    charts = main.locator(".plot")
    for place in range(charts.count() - 1):
        chart = charts.nth(place)
        main.evaluate("(node) => node.scrollTo(0, 0)")
        chart.scroll_into_view_if_needed()
        before = main.evaluate("(node) => node.scrollTop")
        room = main.evaluate("(node) => node.scrollHeight - node.clientHeight - node.scrollTop")
        chart.hover()
        page.mouse.wheel(0, 200 if room > 50 else -200)
        page.wait_for_function(
            "(before) => Math.abs(document.querySelector('[data-testid=stMain]').scrollTop - before) > 20", arg=before
        )


def test_hovering_a_segment_tells_bytes_share_and_formula(page):
    visit(page, "/", "framework=textbook&params=7B&gpus=8&zero=1")
    box = memory(page).locator(".trace.bars path").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hover = memory(page).locator(".hoverlayer")
    expect(hover).to_contain_text("Weights: 14.0 GB")
    expect(hover).to_contain_text("36 %")
    expect(hover).to_contain_text("2·Φ")


def test_every_slider_shows_what_it_stands_at(page):
    visit(page, "/parallelism", "gpus=24&tp=8&pp=3&model=llama-3-70b")
    for label, value in (("GPUs", "24"), ("Tensor parallel", "8"), ("Pipeline parallel", "3")):
        expect(page.get_by_role("group", name=label, exact=True)).to_contain_text(value)
        expect(slider(page, label)).to_be_enabled()
