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

export default function ({ data, parentElement }) {
  const node = parentElement.querySelector(".plot");
  node.style.height = `${data.figure.layout.height}px`;
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", data.alt);

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

  const options = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  const turn = (node.turn = (node.turn ?? 0) + 1);
  load(data.plotly).then((plotly) => {
    // A newer run may have come in while the script was loading.
    if (node.turn === turn) plotly.react(node, structuredClone(data.figure.data), layout, options);
  });
  return () => window.Plotly?.purge(node);
}
