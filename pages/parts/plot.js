// Draws a Plotly figure and, on later runs, updates the same node in place.
const loading = new Map();

function load(address) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  if (!loading.has(address)) {
    loading.set(address, new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = address;
      script.onload = () => done(window.Plotly);
      script.onerror = () => failed(new Error(`${address} did not load`));
      document.head.append(script);
    }));
  }
  return loading.get(address);
}

// Bars offer labels, longest first; take the first that has room.
function label(traces, layout, width) {
  const names = traces.flatMap((trace) => trace.y ?? []);
  const inset = 20 + 7 * Math.max(0, ...names.map((name) => String(name).length));
  for (const trace of traces.filter((t) => t.type === "bar" && t.text?.some(Array.isArray))) {
    trace.text = trace.text.map((offers, i) => {
      const room = (trace.x[i] / layout.xaxis.range[1]) * (width - inset);
      return offers.find((offer) => 7 * offer.length + 6 < room) ?? "";
    });
  }
  return traces;
}

// A click on a point is told to the page. Plotly forgets its listeners when it is purged.
function listen(node) {
  const over = node.querySelector(".nsewdrag").style;
  for (const name of ["plotly_click", "plotly_hover", "plotly_unhover"]) node.removeAllListeners(name);
  node.on("plotly_click", ({ points }) => node.pick(points[0].customdata));
  node.on("plotly_hover", () => { over.cursor = "pointer"; });
  node.on("plotly_unhover", () => { over.cursor = ""; });
}

// One figure at a time: Plotly cannot start on the next while it still moves the bars of the last. Of figures that
// come in meanwhile only the newest is drawn, and at once.
async function draw(node, address, first) {
  const plotly = await load(address);
  while (node.next && !node.gone) {
    // The result strip is painted before the page's other charts take the browser's time.
    if (!first) await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const { traces, layout, options } = node.next;
    node.next = null;
    await plotly.react(node, label(traces, layout, node.clientWidth), layout, options);
    if (node.pick) listen(node);
    if (node.next) delete node.next.layout.transition;
  }
  node.drawing = null;
  if (node.gone) plotly.purge(node);
}

export default function ({ data, parentElement, setTriggerValue }) {
  const node = parentElement.querySelector(".plot");
  node.pick = data.picks && ((id) => setTriggerValue("picked", id));
  node.style.height = `${data.figure.layout.height}px`;
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", data.alt);
  node.gone = false;

  const theme = getComputedStyle(node);
  const ink = theme.getPropertyValue("--st-text-color").trim();
  const line = theme.getPropertyValue("--st-border-color").trim();
  const paper = theme.getPropertyValue("--st-background-color").trim();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

  const layout = structuredClone(data.figure.layout);
  layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
  layout.font = { family: theme.fontFamily, size: 13, color: ink, ...layout.font };
  layout.hoverlabel = { bgcolor: paper, bordercolor: line, font: { color: ink }, align: "left", ...layout.hoverlabel };
  layout.autosize = true;
  if (still) delete layout.transition;
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
    layout[name] = { gridcolor: line, linecolor: line, zerolinecolor: line, ...layout[name] };
  }
  for (const shape of layout.shapes ?? []) shape.line = { color: ink, ...shape.line };
  const traces = structuredClone(data.figure.data);
  for (const { marker } of traces) if (marker) marker.color ??= ink;

  const options = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  const shown = JSON.stringify([data.figure, ink, line, paper]);
  if (shown !== node.shown) {
    node.shown = shown;
    node.next = { traces, layout, options };
    node.drawing ??= draw(node, data.plotly, data.first);
  }
  return () => {
    node.gone = true;
    node.shown = null;
    if (!node.drawing) window.Plotly?.purge(node);
  };
}
