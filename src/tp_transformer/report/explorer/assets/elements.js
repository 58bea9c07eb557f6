// Making elements. Text is always set as text, never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

// Renew the content of panels; the control that had the focus has it again.
function keepingFocus(renew) {
  const before = document.activeElement;
  const panel = before && before.closest(".panel");
  const controls = () => [...panel.querySelectorAll("button, select, input, [tabindex]")];
  const place = panel ? controls().indexOf(before) : -1;
  renew();
  if (place < 0 || before.isConnected) return;
  const after = controls();
  if (after.length) after[Math.min(place, after.length - 1)].focus({ preventScroll: true });
}

function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1%";
  return share > 0.9995 && share < 1 ? ">99.9%" : `${(100 * share).toFixed(1)}%`;
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// The start and end tokens are shown as in the paper's figures; a space is made visible.
function shown(token) {
  return { "<sos>": "#", "<eos>": "%", " ": "␣" }[token] || token;
}

function spoken(token) {
  return { "<sos>": "start", "<eos>": "end", " ": "space" }[token] || token;
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function saveSvg(name, figure) {
  download(`${name}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(figure));
}

function saveJson(name, values) {
  const plain = (key, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
  download(`${name}.json`, "application/json", JSON.stringify(values, plain, 1));
}

// The heading of a panel, with buttons that save it; both functions are called on a click.
function panelHeading(title, name, makeFigure, makeValues) {
  const label = (kind) => `Save “${title}” as ${kind}`;
  const button = (kind, onclick) =>
    element("button", { type: "button", class: "quiet", "aria-label": label(kind), onclick }, kind);
  return element(
    "header",
    { class: "panel-heading" },
    element("h3", {}, title),
    element(
      "span",
      { class: "saves" },
      button("SVG", () => saveSvg(name, makeFigure())),
      button("JSON", () => saveJson(name, makeValues())),
    ),
  );
}
