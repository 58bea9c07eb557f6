// A pane: one question, one model, its answer, and every head.

class Pane {
  constructor(app, index) {
    this.app = app;
    this.index = index;
    this.base = null; // the result without operations
    this.result = null; // the result with them
    this.isRunning = false;
    this.colour = (value) =>
      app.state.view.difference ? differenceColour(value) : weightColour(value);
    this.build();
  }

  get own() {
    return this.app.state.panes[this.index];
  }

  get model() {
    return this.own.model;
  }

  get config() {
    return DATA.models[this.model].config;
  }

  // The selected attention and head, or the last ones of a smaller model.
  get shown() {
    const { point, head } = this.app.state.view;
    const { n_layers, n_heads } = this.config;
    const layer = Math.min(layerOf(point), n_layers - 1);
    return { point: GROUPS[groupOf(point)].path(layer), head: Math.min(head, n_heads - 1) };
  }

  // The operations that fit the present question.
  get operations() {
    const n = partsOf(DATA.models[this.model], this.own.question).length + 2;
    return this.own.operations.filter(
      ({ point, position, other }) =>
        groupOf(point) !== "encoder" || Math.max(position ?? 0, other ?? 0) < n,
    );
  }

  // Weights of a head, or what the operations changed of them.
  valueOf(point, head) {
    const after = this.result.points[point];
    if (!this.app.state.view.difference) return (query, key) => weightAt(after, head, query, key);
    const before = this.base.points[point];
    return (query, key) =>
      query < before.nQueries && key < before.nKeys
        ? weightAt(after, head, query, key) - weightAt(before, head, query, key)
        : weightAt(after, head, query, key);
  }

  clusters(point, head) {
    const { panes, state } = this.app;
    const key = `${point}/${head}`;
    if (!this.cachedClusters.has(key))
      this.cachedClusters.set(key, clustersOf(panes, this, point, head, state.view.clusters));
    return this.cachedClusters.get(key);
  }

  // The cluster of each position.
  assigned(point, head) {
    const clusters = this.clusters(point, head);
    const recorded = this.result.points[point];
    clusters.assigned ||= Array.from({ length: recorded.nQueries }, (_, t) =>
      nearestCentroid(vectorAt(recorded, this.config, head, t), clusters.centroids),
    );
    return clusters.assigned;
  }

  colours(point, head) {
    const { names } = this.clusters(point, head);
    return this.assigned(point, head).map((cluster) => clusterColour(cluster, names));
  }

  build() {
    const ask = (event) => {
      event.preventDefault();
      this.app.ask(this.index, this.input.value);
    };
    this.input = element("input", {
      ...{ type: "text", id: `question-${this.index}`, autocomplete: "off", spellcheck: "false" },
      ...{ autocapitalize: "off", maxlength: 10000 },
      oninput: () => this.app.askSoon(this.index, this.input.value),
    });
    this.models = element("select", {
      "aria-label": "Model",
      onchange: () => this.app.chooseModel(this.index, Number(this.models.value)),
    });
    DATA.models.forEach(({ name }, index) =>
      this.models.append(element("option", { value: index }, `${index + 1}: ${name}`)),
    );
    this.models.hidden = DATA.models.length < 2;
    this.message = element("p", { class: "message", role: "alert" });
    this.answer = element("section", { class: "panel answer", "aria-label": "Answer" });
    this.strip = element("section", { class: "panel characters", "aria-label": "Characters" });
    this.maps = element("section", {
      class: "panel maps",
      "aria-label": "Attention of every head",
    });
    this.rows = element("section", { class: "panel rows", "aria-label": "Row in every head" });
    this.root = element(
      "article",
      { class: "pane", "aria-label": `Question ${this.index + 1}` },
      element(
        "form",
        { class: "question", onsubmit: ask },
        element(
          "label",
          { for: this.input.id, class: "visually-hidden" },
          `Question ${this.index + 1}`,
        ),
        this.input,
        this.models,
        element("button", { type: "submit", class: "primary" }, "Ask"),
      ),
      this.message,
      this.answer,
      this.strip,
      this.maps,
      this.rows,
    );
  }

  // Run what is wanted now; what becomes wanted meanwhile runs afterwards, the newest only.
  async refresh() {
    this.isStale = true;
    if (this.isRunning) return;
    this.isRunning = true;
    this.root.setAttribute("aria-busy", "true");
    while (this.isStale) {
      this.isStale = false;
      try {
        await this.compute();
        this.message.textContent = "";
      } catch (error) {
        this.message.textContent = error.message;
      }
    }
    this.isRunning = false;
    this.root.setAttribute("aria-busy", "false");
    this.app.show();
  }

  async compute() {
    const { question, model } = this.own;
    const { operations } = this;
    const tokens = [];
    const onToken = (token) => {
      tokens.push(token);
      if (!this.isStale) this.showTokens(tokens);
    };
    const isNew = !this.base || this.base.question !== question || this.baseModel !== model;
    if (isNew) {
      const base = await client.run(model, question, [], operations.length ? undefined : onToken);
      Object.assign(this, { base, baseModel: model });
    }
    this.result = operations.length
      ? await client.run(model, question, operations, onToken)
      : this.base;
  }

  show() {
    this.cachedClusters = new Map();
    if (this.input.value !== this.own.question && document.activeElement !== this.input)
      this.input.value = this.own.question;
    this.models.value = this.model;
    if (!this.result) return;
    this.showAnswer();
    showCharacters(this);
    showMaps(this);
    this.highlight(null);
  }

  showTokens(tokens) {
    const list = this.answer.querySelector(".tokens");
    if (list) list.replaceChildren(...tokens.map(tokenColumn));
  }

  showAnswer() {
    const { result, base } = this;
    const isOperated = this.operations.length > 0;
    const expected = this.app.expected.get(result.question);
    const name = `answer-${this.index + 1}`;
    const values = () => ({
      question: result.question,
      answer: result.answer,
      tokens: result.tokens,
      operations: this.operations,
      withoutOperations: base.answer,
    });
    const said = element("output", { class: "said", role: "status" }, result.answer || "(nothing)");
    const notes = element("p", { class: "notes" });
    if (!result.isComplete) notes.append(`cut after ${count(result.tokens.length, "token")} · `);
    if (expected !== undefined)
      notes.append(
        element(
          "span",
          { class: result.answer === expected ? "right" : "wrong" },
          result.answer === expected ? "right" : `wrong, the answer is ${expected}`,
        ),
        " · ",
      );
    if (isOperated)
      notes.append(
        element(
          "span",
          { class: "changed" },
          base.answer === result.answer
            ? "unchanged by the operations"
            : `without operations ${base.answer || "(nothing)"}`,
        ),
        " · ",
      );
    notes.append(`${result.milliseconds.toFixed(0)} ms`);
    this.answer.replaceChildren(
      panelHeading("Answer", name, () => answerFigure(this), values),
      element("div", { class: "said-line" }, said, notes),
      element(
        "ol",
        { class: "tokens", tabindex: 0, "aria-label": "Tokens with probabilities" },
        result.tokens.map(tokenColumn),
      ),
    );
  }

  // Show the row of a character under the pointer, or of the selected one.
  highlight(hovered) {
    if (!this.result) return;
    const { view } = this.app.state;
    const side = hovered ? hovered.side : GROUPS[groupOf(view.point)].queries;
    const wanted = hovered ? hovered.position : view.position;
    const position = Math.min(wanted, this.result[side].length - 1);
    const isHere = hovered || view.pane === this.index;
    shadeCharacters(this, side, position, Boolean(isHere));
    drawMaps(this, side, hovered ? position : null);
    if (hovered) this.app.inspector.showVector(this, side, position);
    const title = `Row of ‘${shown(this.result[side][position])}’ (${position}) in every head`;
    const values = () => rowValues(this, side, position);
    const draw = () => rowFigure(this, side, position);
    this.rows.replaceChildren(
      panelHeading(title, `row-${this.index + 1}`, draw, values),
      element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title }, draw()),
    );
  }
}

function tokenColumn(token) {
  const others = token.alternatives.map(({ text: other, probability }) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${100 * probability}%`;
    const label = element(
      "span",
      { class: "option" },
      element("b", {}, shown(other)),
      ` ${percent(probability)}`,
    );
    return element("li", {}, bar, label);
  });
  return element(
    "li",
    {},
    element("span", { class: "token" }, shown(token.text)),
    element(
      "ol",
      { class: "alternatives", "aria-label": `Alternatives to ${spoken(token.text)}` },
      others,
    ),
  );
}

function rowValues(pane, side, position) {
  const points = pointsOf(pane.config).filter((point) => GROUPS[groupOf(point)].queries === side);
  return {
    question: pane.result.question,
    character: pane.result[side][position],
    position,
    rows: points.flatMap((point) =>
      [...Array(pane.config.n_heads).keys()].map((head) => ({
        point,
        head,
        keys: pane.result[GROUPS[groupOf(point)].keys],
        weights: pane.result[GROUPS[groupOf(point)].keys].map((_, key) =>
          pane.valueOf(point, head)(position, key),
        ),
      })),
    ),
  };
}
