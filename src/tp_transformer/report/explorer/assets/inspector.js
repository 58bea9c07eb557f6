// The inspector: the vector behind the selected character, what is like it, and operations on it.

class Inspector {
  constructor(app) {
    this.app = app;
    this.where = byId("where");
    this.vector = byId("vector");
    this.operate = byId("operate");
    this.list = byId("operations");
    this.code = byId("python");
    this.scopes = { heads: "this", positions: "this" };
    this.factor = 2;
  }

  get pane() {
    return this.app.panes[this.app.state.view.pane];
  }

  // The side and the position of the selected character.
  get selected() {
    const { view } = this.app.state;
    const side = GROUPS[groupOf(view.point)].queries;
    return [side, Math.min(view.position, this.pane.result[side].length - 1)];
  }

  // After the pointer has left another character.
  showSelected() {
    this.showVector(this.pane, ...this.selected);
  }

  show() {
    const { pane } = this;
    if (!pane.result) return;
    const [side, position] = this.selected;
    this.showWhere(pane, side, position);
    this.showSelected();
    this.showOperate(pane, side, position);
    this.showList(pane);
    const { question } = pane.own;
    this.code.textContent = pythonCode(DATA.models[pane.model], question, pane.operations);
  }

  showWhere(pane, side, position) {
    const { view } = this.app.state;
    const choose = (label, values, chosen, onchange) => {
      const options = values.map(([value, name]) =>
        element("option", { value, selected: String(value) === String(chosen) }, name),
      );
      const select = element("select", { onchange: () => onchange(select.value) }, options);
      return element("label", {}, label, select);
    };
    const points = pointsOf(pane.config).map((point) => [
      point,
      titleOf(point).replace("-attention", ""),
    ]);
    const heads = [...Array(pane.config.n_heads).keys()].map((head) => [head, `head ${head}`]);
    const places = pane.result[side].map((token, t) => [t, `${t}: ${spoken(token)}`]);
    this.where.replaceChildren(
      choose("Attention", points, view.point, (point) => this.app.look({ point })),
      choose("Head", heads, view.head, (head) => this.app.look({ head: Number(head) })),
      choose("Character", places, position, (t) => this.app.look({ position: Number(t) })),
    );
  }

  // The vector of a character in the selected head, or, on the other side, in the same layer.
  showVector(pane, side, position) {
    const { head } = pane.shown;
    const point = pointWithQueries(pane.shown.point, side);
    const name = vectorName(pane.config);
    const recorded = pane.result.points[point];
    if (!recorded.vectors) {
      this.vector.replaceChildren(
        element("p", { class: "notes" }, `In cross-attention, the ${name}s belong to the keys.`),
      );
      return;
    }
    const vector = vectorAt(recorded, pane.config, head, position);
    const earlier = pane.base.points[point];
    const before =
      position < earlier.nQueries ? vectorAt(earlier, pane.config, head, position) : vector;
    const clusters = pane.clusters(point, head);
    const cluster = nearestCentroid(vector, clusters.centroids);
    const label = `The ${name} of ‘${shown(pane.result[side][position])}’`;
    const draw = () => vectorFigure(vector, before, label);
    const near = this.nearest(pane, point, head, position);
    const values = () => ({
      point,
      head,
      position,
      character: pane.result[side][position],
      vector,
      before,
      cluster,
      near,
    });
    this.vector.replaceChildren(
      panelHeading(label, "vector", draw, values),
      draw(),
      this.clusterLine(pane, clusters, cluster, vector),
      element("h4", {}, `Nearest by ${name}: character, position, cosine`),
      length(vector)
        ? element(
            "ol",
            { class: "nearest" },
            near.map((each) => this.nearItem(each)),
          )
        : element("p", { class: "notes" }, "none: a vector of zeros has no direction"),
    );
  }

  clusterLine(pane, clusters, cluster, vector) {
    const name = clusters.names[cluster];
    const origin = clusters.isFile ? "from tpt interpret roles" : "of the questions shown";
    return element(
      "p",
      { class: "notes" },
      swatchOf(cluster, clusters.names),
      ` cluster ${cluster} of ${clusters.centroids.length} ${origin}`,
      name ? `: ${name}` : "",
      ` · norm ${length(vector).toFixed(2)}`,
    );
  }

  // The characters of all panes with the same model whose vectors are most alike.
  nearest(pane, point, head, position) {
    const side = GROUPS[groupOf(point)].queries;
    const vector = vectorAt(pane.result.points[point], pane.config, head, position);
    const found = [];
    for (const other of this.app.panes) {
      if (other.model !== pane.model || !other.result) continue;
      const recorded = other.result.points[point];
      for (let t = 0; t < recorded.nQueries; t++)
        if (other !== pane || t !== position)
          found.push({
            pane: other.index,
            side,
            position: t,
            character: other.result[side][t],
            cosine: cosine(vector, vectorAt(recorded, other.config, head, t)),
          });
    }
    return found.sort((a, b) => b.cosine - a.cosine).slice(0, 8);
  }

  nearItem({ pane, side, position, character, cosine: likeness }) {
    const question = this.app.panes.length > 1 ? ` in question ${pane + 1}` : "";
    const label = `${spoken(character)} at ${position}${question}, cosine ${likeness.toFixed(2)}`;
    const onclick = () => this.app.select(pane, side, position);
    return element(
      "li",
      {},
      element(
        "button",
        { type: "button", class: "near", "aria-label": label, title: label, onclick },
        element("b", {}, shown(character)),
        element("small", {}, `${position}${pane ? "′" : ""} ${likeness.toFixed(2)}`),
      ),
    );
  }

  showOperate(pane, side, position) {
    const { point } = this.app.state.view;
    if (!pane.result.points[point].vectors) {
      this.operate.replaceChildren();
      return;
    }
    const add = (kind, more) => this.add(pane, position, kind, more);
    const hint = element("span", { class: "notes" }, "set all its elements to 0");
    const name = vectorName(pane.config);
    this.operate.replaceChildren(
      element("h3", {}, `Operate on the ${name} of ‘${shown(pane.result[side][position])}’`),
      element(
        "div",
        { class: "scopes" },
        this.scopeChoice("heads", "head", "all heads"),
        this.scopeChoice("positions", "character", "all characters"),
      ),
      operationRow("Zero", () => add("zero"), hint),
      this.scaleRow(add),
      ...(groupOf(point) === "encoder" ? [this.swapRow(add, pane, side, position)] : []),
      this.centroidRow(add, pane),
    );
  }

  // Add an operation on the selected head and character, or on all; a swap is of one character.
  add(pane, position, kind, more = {}) {
    const { point, head } = this.app.state.view;
    this.app.addOperation(pane.index, {
      point,
      head: this.scopes.heads === "all" ? null : head,
      position: this.scopes.positions === "all" && kind !== "swap" ? null : position,
      kind,
      ...more,
    });
  }

  scopeChoice(key, label, all) {
    const option = (value, content) =>
      element("option", { value, selected: this.scopes[key] === value }, content);
    const select = element(
      "select",
      { "aria-label": label, onchange: () => (this.scopes[key] = select.value) },
      option("this", `this ${label}`),
      option("all", all),
    );
    return select;
  }

  scaleRow(add) {
    const attributes = { type: "number", step: "any", value: this.factor, "aria-label": "Factor" };
    const input = element("input", attributes);
    const scale = () => {
      this.factor = Number(input.value);
      if (input.value !== "") add("scale", { factor: this.factor });
    };
    return operationRow("Scale by", scale, input);
  }

  swapRow(add, pane, side, position) {
    const options = pane.result[side]
      .map((token, t) => element("option", { value: t }, `${t}: ${spoken(token)}`))
      .filter((_, t) => t !== position);
    const other = element("select", { "aria-label": "Swap with" }, options);
    return operationRow("Swap with", () => add("swap", { other: Number(other.value) }), other);
  }

  centroidRow(add, pane) {
    const { point, head } = this.app.state.view;
    const { centroids, names } = pane.clusters(point, head);
    const options = centroids.map((_, c) =>
      element("option", { value: c }, names[c] ? `${c}: ${names[c]}` : c),
    );
    const chosen = element("select", { "aria-label": "Centroid" }, options);
    const set = () => add("set", { vector: rounded(centroids[Number(chosen.value)]) });
    return operationRow("Set to centroid", set, chosen);
  }

  showList(pane) {
    const items = pane.own.operations.map((operation, index) => {
      const isUsed = pane.operations.includes(operation);
      const description =
        describe(operation, pane) + (isUsed ? "" : " (beyond the end of this question)");
      const onclick = () => this.app.removeOperation(pane.index, index);
      const label = `Remove: ${description}`;
      return element(
        "li",
        {},
        description,
        element("button", { type: "button", class: "quiet", "aria-label": label, onclick }, "✕"),
      );
    });
    this.list.replaceChildren(
      ...(items.length ? items : [element("li", { class: "notes none" }, "none yet")]),
    );
    byId("undo").disabled = !this.app.history.length;
    byId("clear").disabled = !pane.own.operations.length;
  }
}

function operationRow(label, onclick, ...controls) {
  const button = element("button", { type: "button", onclick }, label);
  return element("div", { class: "operation" }, button, ...controls);
}

// The centroid that a vector was set to, as rounded by `centroidRow`.
function centroidName({ point, head, vector }, pane) {
  const { centroids, names } = pane.clusters(point, head ?? pane.shown.head);
  const isEqual = (centroid) => vector.every((value, i) => value === rounded(centroid)[i]);
  const found = centroids.findIndex(isEqual);
  if (found < 0) return "a vector";
  return `centroid ${found}${names[found] ? ` (${names[found]})` : ""}`;
}

function rounded(vector) {
  return Array.from(vector, (value) => Number(value.toPrecision(6)));
}

function describe(operation, pane) {
  const { point, head, position, kind, other, factor } = operation;
  const side = GROUPS[groupOf(point)].queries;
  const called = (place) => `‘${shown(pane.result[side][place] ?? "?")}’ (${place})`;
  const where = `${titleOf(point)}, ${head === null ? "all heads" : `head ${head}`}, `;
  const what = position === null ? "all characters" : called(position);
  const how = {
    zero: "zero",
    scale: `scale by ${factor}`,
    swap: `swap with ${other === undefined ? "" : called(other)}`,
    set: kind === "set" ? `set to ${centroidName(operation, pane)}` : "",
  };
  return `${where}${what}: ${how[kind]}`;
}
