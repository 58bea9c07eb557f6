// The characters of a pane, and the small maps of every head.

function showCharacters(pane) {
  const { result } = pane;
  const { point, head } = pane.shown;
  const recorded = result.points[point];
  const name = vectorName(pane.config);
  const title = `Characters by ${name}: ${titleOf(point).toLowerCase()}, head ${head}`;
  const values = () => ({
    question: result.question,
    point,
    head,
    characters: result[GROUPS[groupOf(point)].queries],
    clusters: recorded.vectors ? pane.assigned(point, head) : null,
    centroids: pane.clusters(point, head).centroids.map((each) => Array.from(each)),
    names: pane.clusters(point, head).names,
    vectors: result[GROUPS[groupOf(point)].queries].map((_, t) =>
      recorded.vectors ? Array.from(vectorAt(recorded, pane.config, head, t)) : null,
    ),
  });
  const figureOf = () => rolesFigure(pane, point, head);
  pane.strip.replaceChildren(
    panelHeading(title, `characters-${pane.index + 1}`, figureOf, values),
    characterRow(pane, "source", "Question"),
    characterRow(pane, "target", "Answer"),
    ...clusterLegend(pane, point, head),
  );
}

// The names of the clusters in which the characters are, if `tpt interpret roles` named them.
function clusterLegend(pane, point, head) {
  if (!pane.result.points[point].vectors) return [];
  const { names, isFile } = pane.clusters(point, head);
  if (!isFile) return [];
  const present = [...new Set(pane.assigned(point, head))].sort((a, b) => a - b);
  const items = present.map((cluster) =>
    element(
      "li",
      {},
      swatchOf(cluster, names),
      ` ${cluster}: ${names[cluster] || "no clear name"}`,
    ),
  );
  return [element("ul", { class: "clusters notes", "aria-label": "Clusters" }, items)];
}

function swatchOf(cluster, names) {
  const swatch = element("span", { class: "swatch" });
  swatch.style.background = css(clusterColour(cluster, names));
  return swatch;
}

function characterRow(pane, side, label) {
  const { view } = pane.app.state;
  const { head } = pane.shown;
  const point = pointWithQueries(pane.shown.point, side);
  const isColoured = pane.result.points[point].vectors !== null;
  const colours = isColoured ? pane.colours(point, head) : [];
  const assigned = isColoured ? pane.assigned(point, head) : [];
  const names = isColoured ? pane.clusters(point, head).names : [];
  const isQuerySide = GROUPS[groupOf(view.point)].queries === side;
  const buttons = pane.result[side].map((token, position) => {
    const isSelected = isQuerySide && view.pane === pane.index && view.position === position;
    const isOperated = pane.operations.some(
      (each) =>
        each.point === point && [null, head].includes(each.head) && touches(each, position),
    );
    const name = names[assigned[position]] ? ` (${names[assigned[position]]})` : "";
    const cluster = isColoured ? `, cluster ${assigned[position]}${name}` : "";
    const button = element(
      "button",
      {
        type: "button",
        class: `character${isOperated ? " operated" : ""}`,
        "aria-pressed": String(isSelected),
        "aria-label": `${position}: ${spoken(token)}${cluster}${isOperated ? ", operated on" : ""}`,
        tabindex: isSelected || position === 0 ? 0 : -1,
        title: `position ${position}${cluster}`,
        onclick: () => pane.app.select(pane.index, side, position),
        onpointerenter: () => pane.highlight({ side, position }),
      },
      shown(token),
    );
    if (isColoured) button.style.setProperty("--cluster", css(colours[position]));
    return button;
  });
  const move = (event) => moveAmong(event, buttons);
  const leave = () => {
    pane.highlight(null);
    pane.app.inspector.showSelected();
  };
  return element(
    "div",
    {
      class: "character-row",
      role: "toolbar",
      "aria-label": `${label}, ${count(buttons.length, "character")}`,
    },
    element("span", { class: "side", "aria-hidden": "true" }, label),
    element(
      "div",
      { class: "row", "data-side": side, onkeydown: move, onpointerleave: leave },
      buttons,
    ),
  );
}

function touches({ kind, position, other }, place) {
  return position === null || position === place || (kind === "swap" && other === place);
}

function moveAmong(event, buttons) {
  const from = buttons.indexOf(document.activeElement);
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -from, End: buttons.length - 1 - from }[
    event.key
  ];
  if (step === undefined || from < 0) return;
  event.preventDefault();
  const next = buttons[Math.max(0, Math.min(buttons.length - 1, from + step))];
  next.focus();
  next.dispatchEvent(new Event("pointerenter"));
}

// Shade characters by the attention of one of them in the selected head.
function shadeCharacters(pane, side, position, isShaded) {
  const { head } = pane.shown;
  const point = pointWithQueries(pane.shown.point, side);
  const { keys } = GROUPS[groupOf(point)];
  const recorded = pane.result.points[point];
  for (const row of pane.strip.querySelectorAll(".row"))
    [...row.children].forEach((button, key) => {
      const isKey = isShaded && row.dataset.side === keys && key < recorded.nKeys;
      const weight = isKey ? weightAt(recorded, head, position, key) : 0;
      button.style.setProperty("--weight", `${(100 * Math.sqrt(weight)).toFixed(1)}%`);
      button.classList.toggle("asking", isShaded && row.dataset.side === side && key === position);
    });
}

function showMaps(pane) {
  const { config, result } = pane;
  const values = () => ({
    question: result.question,
    answer: result.answer,
    source: result.source,
    target: result.target,
    operations: pane.operations,
    attention: Object.fromEntries(
      pointsOf(config).map((point) => {
        const { weights, vectors, nQueries, nKeys } = result.points[point];
        return [
          point,
          { shape: [config.n_heads, nQueries, nKeys], weights, [vectorName(config)]: vectors },
        ];
      }),
    ),
  });
  const nodes = [
    panelHeading("Every head", `heads-${pane.index + 1}`, () => allHeadsFigure(pane), values),
  ];
  for (const group of Object.keys(GROUPS)) {
    nodes.push(element("h4", {}, GROUPS[group].title), headNumbers(config));
    for (let layer = 0; layer < config.n_layers; layer++)
      nodes.push(layerOfMaps(pane, group, layer));
  }
  pane.maps.replaceChildren(...nodes);
}

// The numbers of the heads, above the maps of a group.
function headNumbers(config) {
  const numbers = [...Array(config.n_heads).keys()].map((head) => element("span", {}, head));
  return gridOfHeads(
    config,
    "",
    element("div", { class: "heads numbers", "aria-hidden": "true" }, numbers),
  );
}

function gridOfHeads(config, label, row) {
  row.style.setProperty("--heads", config.n_heads);
  return element("div", { class: "layer" }, element("span", { class: "layer-number" }, label), row);
}

function layerOfMaps(pane, group, layer) {
  const { view } = pane.app.state;
  const point = GROUPS[group].path(layer);
  const { nQueries, nKeys, vectors } = pane.result.points[point];
  const maps = [...Array(pane.config.n_heads).keys()].map((head) => {
    const canvas = element("canvas", { class: "weights" });
    if (group === "encoder") canvas.style.aspectRatio = `${nKeys} / ${nQueries}`;
    else canvas.style.height = `${Math.max(22, 7 * nQueries)}px`;
    return element(
      "button",
      {
        type: "button",
        class: vectors ? "map" : "map bare",
        "data-point": point,
        "data-head": head,
        "aria-current": view.point === point && view.head === head ? "true" : null,
        "aria-label": `${titleOf(point)}, head ${head}: enlarge`,
        title: `${titleOf(point)}, head ${head}`,
        onclick: () => pane.app.enlarge(pane.index, point, head),
      },
      vectors ? element("canvas", { class: "stripe" }) : null,
      canvas,
    );
  });
  return gridOfHeads(pane.config, layer, element("div", { class: "heads" }, maps));
}

// Draw all maps; under the pointer, the row of a character in full colour and the others pale.
function drawMaps(pane, side, position) {
  for (const map of pane.maps.querySelectorAll(".map")) {
    const { point, head } = map.dataset;
    const isAsked = position !== null && GROUPS[groupOf(point)].queries === side;
    const strength = (row) => (!isAsked || row === position ? 1 : 0.25);
    const { nQueries, nKeys, vectors } = pane.result.points[point];
    const value = pane.valueOf(point, Number(head));
    const colourAt = (row, key) => mix(theme().paper, pane.colour(value(row, key)), strength(row));
    drawCells(map.querySelector(".weights"), nQueries, nKeys, colourAt);
    if (!vectors) continue;
    const swatches = pane.colours(point, Number(head));
    drawCells(map.querySelector(".stripe"), nQueries, 1, (row) =>
      mix(theme().paper, swatches[row], strength(row)),
    );
  }
}

// One pixel for each cell; the style enlarges them.
function drawCells(canvas, height, width, colourAt) {
  Object.assign(canvas, { width, height });
  const image = new ImageData(width, height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const colour = colourAt(y, x);
      const place = 4 * (y * width + x);
      for (let i = 0; i < 3; i++) image.data[place + i] = colour[i];
      image.data[place + 3] = 255;
    }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
