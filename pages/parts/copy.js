// A button that puts the scenario's link on the clipboard.
async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  // Over plain HTTP (a classroom's server) browsers offer only the old way.
  const field = document.createElement("textarea");
  field.value = text;
  field.style.position = "fixed";
  field.style.opacity = "0";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export default function ({ data, parentElement }) {
  const button = parentElement.querySelector("button");
  const label = button.querySelector("span");
  button.dataset.link = data.link || window.location.href;
  if (!button.dataset.busy) label.textContent = data.label;
  button.title = data.help;
  button.onclick = async () => {
    const path = button.dataset.link;
    await copy(path.startsWith("?") ? window.location.origin + window.location.pathname + path : path);
    label.textContent = data.done;
    button.dataset.busy = "1";
    setTimeout(() => {
      delete button.dataset.busy;
      label.textContent = data.label;
    }, 1500);
  };
}
