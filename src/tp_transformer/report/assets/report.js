"use strict";

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

document.getElementById("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  root.dataset.theme = isDark ? "light" : "dark";
});

// Tables: a click on a heading sorts by its column, a second click reverses the order.

const collator = new Intl.Collator("en", { numeric: true });

function sortKey(row, column) {
  const cell = row.cells[column];
  return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
}

function compare(a, b, direction) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // texts such as "-" come last
  return direction * (typeof a === "number" ? a - b : collator.compare(a, b));
}

function sortTable(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const numeric = heads[column].classList.contains("number");
  const first = numeric ? "descending" : "ascending";
  const other = numeric ? "ascending" : "descending";
  const order = heads[column].getAttribute("aria-sort") === first ? other : first;
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", order);
  const direction = order === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: sortKey(row, column) }));
  rows.sort((a, b) => compare(a.key, b.key, direction));
  body.append(...rows.map(({ row }) => row));
}

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent || "name";
    button.addEventListener("click", () => sortTable(table, column));
    head.replaceChildren(button);
  });
}

// Figures: each can be saved as an SVG file.

function download(address, name) {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}

for (const button of document.querySelectorAll("button.save")) {
  button.addEventListener("click", () => {
    const figure = button.closest("figure");
    const image = figure.querySelector("img");
    if (image) {
      download(image.src, button.dataset.name);
      return;
    }
    const text = new XMLSerializer().serializeToString(figure.querySelector("svg"));
    const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    download(address, button.dataset.name);
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  });
}

// Everything is printed, including what is folded on the screen.

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.dataset.folded = "";
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-folded]")) {
    details.removeAttribute("data-folded");
    details.open = false;
  }
});

// The contents mark the section that is being read.

const links = new Map(
  [...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]),
);
const visible = new Set();
const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) visible.add(target.id);
      else visible.delete(target.id);
    }
    const current = [...links.keys()].find((id) => visible.has(id));
    for (const [id, link] of links) {
      if (id === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  },
  { rootMargin: "-10% 0px -60% 0px" },
);
for (const id of links.keys()) observer.observe(document.getElementById(id));
