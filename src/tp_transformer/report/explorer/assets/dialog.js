// One head on the whole screen.

class HeadDialog {
  constructor(app) {
    this.app = app;
    this.root = byId("head-dialog");
    byId("head-close").addEventListener("click", () => this.root.close());
    byId("head-previous").addEventListener("click", () => this.move(-1));
    byId("head-next").addEventListener("click", () => this.move(1));
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.move(-1);
      if (event.key === "ArrowRight") this.move(1);
    });
    this.root.addEventListener("close", () => {
      const { root } = this.app.panes[this.app.state.view.pane];
      root.querySelector(".map[aria-current]").focus();
    });
    this.body = byId("head-body");
    this.reading = byId("head-reading");
  }

  open() {
    if (!this.root.open) this.root.showModal();
    this.show();
  }

  // Go to the next head, in the order of the page.
  move(step) {
    const { view } = this.app.state;
    const { config } = this.app.panes[view.pane];
    const points = pointsOf(config);
    const place = points.indexOf(view.point) * config.n_heads + view.head + step;
    const total = points.length * config.n_heads;
    const next = (place + total) % total;
    this.app.look({
      point: points[Math.floor(next / config.n_heads)],
      head: next % config.n_heads,
    });
  }

  show() {
    if (!this.root.open) return;
    const { view } = this.app.state;
    const pane = this.app.panes[view.pane];
    const { point, head } = view;
    const { nQueries, nKeys } = pane.result.points[point];
    const room = Math.min((innerWidth - 90) / (nKeys + 2), (innerHeight - 200) / (nQueries + 2));
    const draw = () => headFigure(pane, point, head, Math.max(9, Math.min(48, Math.floor(room))));
    const title = `${titleOf(point)}, head ${head}`;
    const drawn = draw();
    drawn.addEventListener("pointerover", ({ target }) => {
      const found = target.querySelector("title");
      if (found && target.tagName === "rect") this.reading.textContent = found.textContent;
    });
    const { queries, keys } = GROUPS[groupOf(point)];
    const values = () => ({
      question: pane.result.question,
      point,
      head,
      queries: pane.result[queries],
      keys: pane.result[keys],
      weights: pane.result[queries].map((_, q) =>
        pane.result[keys].map((__, k) => pane.valueOf(point, head)(q, k)),
      ),
    });
    this.body.replaceChildren(
      panelHeading(title, `${point}.${head}`, draw, values),
      element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": title }, drawn),
      this.summary(pane, point, head),
    );
    this.reading.textContent = "Rows attend to columns. Point at a cell to read its weight; ← and → show other heads.";
  }

  // For screen readers: where each character looks most.
  summary(pane, point, head) {
    const { queries, keys } = GROUPS[groupOf(point)];
    const items = pane.result[queries].map((token, query) => {
      const weights = pane.result[keys].map((_, key) =>
        weightAt(pane.result.points[point], head, query, key),
      );
      const best = weights.indexOf(Math.max(...weights));
      const said = `${spoken(token)} (${query}) attends most to ${spoken(pane.result[keys][best])} (${best})`;
      return element("li", {}, `${said}: ${weights[best].toFixed(2)}`);
    });
    return element("ol", { class: "visually-hidden" }, items);
  }
}
