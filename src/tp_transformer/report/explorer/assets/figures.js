// Figures as SVG, with all colours as attributes, so that a saved file looks as the page does.

const SMALL = 9;
const MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
const SANS = "system-ui, sans-serif";

function text(x, y, content, more = {}) {
  const attributes = {
    x,
    y,
    "font-family": SANS,
    "font-size": 11,
    fill: css(theme().ink),
    ...more,
  };
  return shape("text", attributes, content);
}

function figure(width, height, label, ...children) {
  return shape(
    "svg",
    {
      xmlns: SVG,
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": label,
    },
    shape("rect", { width, height, fill: css(theme().paper) }),
    ...children,
  );
}

// A table of coloured cells with labels. `value(row, column)` is a weight or a difference;
// `swatches` are colours beside the labels of rows.
function heatMap({ rows, columns, value, cell, colour = weightColour, swatches, name = String }) {
  const labelled = cell >= 8;
  const longest = Math.max(0, ...rows.map((row) => Array.from(row).length));
  const size = Math.min(cell, Math.max(12, 0.45 * cell)); // of the labels
  const left = labelled ? 10 + 0.52 * size * longest : 0;
  const swatch = swatches ? Math.max(3, Math.min(cell, 8)) + 2 : 0;
  const top = labelled ? size + 4 : 0;
  const x0 = left + swatch;
  const group = shape("g");
  const mono = { "font-family": MONO, "font-size": size, "text-anchor": "middle" };
  rows.forEach((row, r) => {
    const y = top + r * cell;
    if (labelled)
      group.append(text(left - 4, y + cell * 0.75, row, { ...mono, "text-anchor": "end" }));
    if (swatches && swatches[r])
      group.append(
        shape("rect", { x: left, y, width: swatch - 2, height: cell, fill: css(swatches[r]) }),
      );
    columns.forEach((column, c) => {
      const found = value(r, c);
      if (Math.abs(found) < 0.002) return;
      const attributes = {
        x: x0 + c * cell,
        y,
        width: cell,
        height: cell,
        fill: css(colour(found)),
      };
      group.append(
        shape(
          "rect",
          attributes,
          shape("title", {}, `${row} → ${column}: ${name(found.toFixed(3))}`),
        ),
      );
    });
  });
  const frame = { x: x0, y: top, width: columns.length * cell, height: rows.length * cell };
  group.append(
    shape("rect", { ...frame, fill: "none", stroke: css(theme().faint), "stroke-width": 0.5 }),
  );
  if (labelled)
    columns.forEach((column, c) =>
      group.append(text(x0 + (c + 0.5) * cell, top - 4, column, mono)),
    );
  return { group, width: x0 + frame.width + 1, height: top + frame.height + 1 };
}

function labelsOf(result, side) {
  return result[side].map(shown);
}

// One head's attention.
function headMap(pane, point, head, cell) {
  const recorded = pane.result.points[point];
  const { queries, keys } = GROUPS[groupOf(point)];
  return heatMap({
    rows: labelsOf(pane.result, queries),
    columns: labelsOf(pane.result, keys),
    value: pane.valueOf(point, head),
    colour: pane.colour,
    swatches: recorded.vectors && pane.colours(point, head),
    cell,
  });
}

function headFigure(pane, point, head, cell) {
  const drawn = headMap(pane, point, head, cell);
  drawn.group.setAttribute("transform", "translate(0 24)");
  const title = `${titleOf(point)}, head ${head}`;
  const width = Math.max(drawn.width, 260);
  return figure(
    width,
    drawn.height + 24,
    title,
    text(0, 14, `${title}: ${pane.result.question}`),
    drawn.group,
  );
}

// Every head of every attention, small.
function allHeadsFigure(pane) {
  const { config, result } = pane;
  const cell = 3;
  const children = [text(0, 14, `${result.question} → ${result.answer}`, { "font-size": 13 })];
  let y = 30;
  let width = 300;
  for (const point of pointsOf(config)) {
    children.push(text(0, y + 8, titleOf(point), { "font-weight": 600 }));
    let x = 0;
    let lowest = 0;
    for (let head = 0; head < config.n_heads; head++) {
      const drawn = headMap(pane, point, head, cell);
      drawn.group.setAttribute("transform", `translate(${x} ${y + 26})`);
      children.push(
        text(x, y + 22, `head ${head}`, { "font-size": SMALL, fill: css(theme().faint) }),
        drawn.group,
      );
      x += Math.max(drawn.width, 40) + 8;
      lowest = Math.max(lowest, drawn.height);
    }
    width = Math.max(width, x);
    y += lowest + 44;
  }
  return figure(width, y, "Attention of every head", ...children);
}

// The row of one character in every head whose queries are on its side.
function rowFigure(pane, side, position) {
  const { config, result } = pane;
  const children = [];
  const room = (pane.root.clientWidth - 50) / result.source.length;
  const cell = Math.max(13, Math.min(20, Math.floor(room)));
  let y = 4;
  let width = 200;
  for (const group of Object.keys(GROUPS)) {
    if (GROUPS[group].queries !== side) continue;
    const heads = [];
    for (let layer = 0; layer < config.n_layers; layer++)
      for (let head = 0; head < config.n_heads; head++) heads.push({ layer, head });
    const values = heads.map(({ layer, head }) => pane.valueOf(GROUPS[group].path(layer), head));
    const drawn = heatMap({
      rows: heads.map(({ layer, head }) => `${layer}.${head}`),
      columns: labelsOf(result, GROUPS[group].keys),
      value: (row, key) => values[row](position, key),
      colour: pane.colour,
      cell,
    });
    children.push(
      text(0, y + 10, `${GROUPS[group].title} (layer.head)`, { fill: css(theme().faint) }),
    );
    drawn.group.setAttribute("transform", `translate(0 ${y + 16})`);
    children.push(drawn.group);
    y += drawn.height + 28;
    width = Math.max(width, drawn.width);
  }
  return figure(width, y, `Row of ${spoken(result[side][position])} in every head`, ...children);
}

// A vector as bars; the vector before the operations as outlines.
function vectorFigure(vector, before, label) {
  const width = 300;
  const height = 84;
  const step = width / vector.length;
  const largest = Math.max(1e-9, ...vector.map(Math.abs), ...before.map(Math.abs));
  const middle = height / 2;
  const bar = (value, i, more) => {
    const reach = (Math.abs(value) / largest) * (middle - 2);
    const y = value > 0 ? middle - reach : middle;
    const inner = shape("title", {}, `element ${i}: ${value.toFixed(4)}`);
    return shape(
      "rect",
      { x: i * step + 0.5, y, width: Math.max(1, step - 1), height: reach, ...more },
      inner,
    );
  };
  const outline = { fill: "none", stroke: css(theme().faint), "stroke-width": 0.8 };
  return figure(
    width,
    height,
    label,
    ...Array.from(before, (value, i) => bar(value, i, outline)),
    ...Array.from(vector, (value, i) => bar(value, i, { fill: css(theme().accent) })),
    shape("line", {
      x1: 0,
      x2: width,
      y1: middle,
      y2: middle,
      stroke: css(theme().faint),
      "stroke-width": 0.5,
    }),
  );
}

// The answer with the probability of each token and its alternatives.
function answerFigure(pane) {
  const { tokens, question } = pane.result;
  const column = 92;
  const columns = tokens.map((token, t) =>
    shape(
      "g",
      { transform: `translate(${t * column} 34)` },
      text(0, 18, shown(token.text), { "font-family": MONO, "font-size": 20 }),
      ...token.alternatives.map(({ text: other, probability }, rank) =>
        shape(
          "g",
          { transform: `translate(0 ${32 + 16 * rank})` },
          shape("rect", {
            y: 2,
            width: 76 * probability,
            height: 11,
            fill: css(theme().accent),
            opacity: 0.25,
          }),
          text(2, 11, `${shown(other)}  ${percent(probability)}`, {
            "font-family": MONO,
            "font-size": 10,
          }),
        ),
      ),
    ),
  );
  const width = Math.max(300, tokens.length * column);
  return figure(width, 156, "Answer", text(0, 16, question, { "font-size": 13 }), ...columns);
}

// The characters of a question, coloured by the cluster of one head's vectors.
function rolesFigure(pane, point, head) {
  const { result } = pane;
  const clusters = pane.clusters(point, head);
  const side = GROUPS[groupOf(point)].queries;
  const isColoured = result.points[point].vectors !== null;
  const colours = isColoured ? pane.colours(point, head) : [];
  const characters = labelsOf(result, side).map((character, t) =>
    shape(
      "g",
      { transform: `translate(${t * 13} 24)` },
      shape("rect", {
        width: 12,
        height: 18,
        fill: css(colours[t] ?? theme().paper),
        opacity: 0.45,
      }),
      text(6, 13, character, { "font-family": MONO, "font-size": 12, "text-anchor": "middle" }),
    ),
  );
  const legend = clusters.centroids.map((_, c) =>
    text(0, 62 + 14 * c, `${c}  ${clusters.names[c] || ""}`, {
      fill: css(clusterColour(c, clusters.names)),
    }),
  );
  const width = Math.max(260, characters.length * 13);
  const title = `Clusters of ${vectorName(pane.config)} vectors, ${titleOf(point)}, head ${head}`;
  return figure(
    width,
    60 + 14 * legend.length,
    title,
    text(0, 14, title),
    ...characters,
    ...legend,
  );
}
