"""How long from a key press to the repainted bar: python tests/benchmark_latency.py

The app's pages beside a reference app of one slider and one bar drawn by the same
component, in the same browser. In the page: from keydown to the first frame after
a bar's path has changed.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from playwright.sync_api import Page, sync_playwright  # noqa: E402
from screen import PAGES, idle, serving, slider  # noqa: E402

WARM_UP, PRESSES = 5, 60
SLIDERS = {
    "Model": ("Layers", "layers=20"),
    "Precision": ("Rank of the adapters", "tuning=lora&lora_rank=1"),
    "Activations": ("Micro-batch per GPU", "batch=1"),
    "Parallelism": ("GPUs", "zero=3&gpus=1"),
}
REFERENCE = """
import plotly
import streamlit as st

source = {source!r}
chart = st.components.v2.component("one.plot", html='<div class="plot"></div>', js=source, isolate_styles=False)
value = st.slider("Value", 1, 160, 20)
bar = {{"type": "bar", "orientation": "h", "y": [""], "x": [value], "marker": {{"color": "#0072b2"}}}}
layout = {{"height": 92, "xaxis": {{"range": [0, 160]}}, "transition": {{"duration": 250}}}}
with st.container(key="strip"):
    chart(
        data={{"figure": {{"data": [bar], "layout": layout}}, "alt": str(value), "plotly": "/plotly-7.js"}},
        key="bar",
        height=92,
    )
"""
WATCH = """() => {
  window.took = [];
  const plot = document.querySelector('.st-key-strip .plot');
  const drawn = () => [...plot.querySelectorAll('.trace.bars path')].map((path) => path.getAttribute('d')).join();
  document.addEventListener('keydown', () => {
    const start = performance.now(), before = drawn();
    const watcher = new MutationObserver(() => {
      if (drawn() === before) return;
      watcher.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(() => took.push(performance.now() - start)));
    });
    watcher.observe(plot, { subtree: true, childList: true, attributes: true });
  }, true);
}"""
STILL = """() => new Promise((done) => {
  const plot = document.querySelector('.st-key-strip .plot');
  const drawn = () => plot.querySelector('.bars')?.innerHTML;
  let last = drawn(), same = 0;
  const look = () => {
    same = drawn() === last ? same + 1 : 0;
    last = drawn();
    if (same > 12) done(true); else requestAnimationFrame(look);
  };
  look();
})"""


def measure(page: Page, label: str) -> list[float]:
    """Press the right arrow (and, at the end of a short slider, the left one) and time each press."""
    knob = slider(page, label)
    last = int(knob.get_attribute("max"))
    page.evaluate(WATCH)
    knob.focus()
    step = 1
    for press in range(WARM_UP + PRESSES):
        place = int(knob.input_value())
        step = -1 if place == last else 1 if place == 0 else step
        page.keyboard.press("ArrowRight" if step > 0 else "ArrowLeft")
        page.wait_for_function("(count) => took.length >= count", arg=press + 1)
        idle(page)
        page.evaluate(STILL)
    return page.evaluate("took")[WARM_UP:]


def main() -> None:
    """Measure the reference first, then the four pages, and print medians, 95th percentiles and ratios."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        place = Path(folder)
        shutil.copy(ROOT / "app.py", place)
        shutil.copytree(ROOT / ".streamlit", place / ".streamlit")
        (place / "vram").mkdir()
        (place / "vram" / "__init__.py").touch()
        (place / "vram" / "working.py").write_text("def warm_up(): pass\n")
        (place / "pages").mkdir()
        source = (ROOT / "pages" / "parts" / "plot.js").read_text(encoding="utf-8")
        (place / "pages" / "main.py").write_text(REFERENCE.format(source=source))
        executable = shutil.which("chromium") or shutil.which("google-chrome")
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        with serving(place / "log.reference", place) as reference, serving(place / "log") as app:
            page = browser.new_page()
            page.goto(reference)
            idle(page)
            took = {"one slider, one bar": measure(page, "Value")}
            for name, (label, link) in SLIDERS.items():
                page.goto(f"{app}{PAGES[name]}?{link}")
                idle(page)
                took[name] = measure(page, label)
            browser.close()
    base = statistics.median(took["one slider, one bar"])
    print(f"key press → repainted bar, ms, {PRESSES} presses after {WARM_UP}:   median   p95   against the reference")
    for name, times in took.items():
        middle, high = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        print(f"{name:<48} {middle:9.0f} {high:5.0f}   {middle / base:.2f}")


if __name__ == "__main__":
    main()
