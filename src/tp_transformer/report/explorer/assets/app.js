// The page: its state, and what a user can do with it.

const DATA = JSON.parse(byId("data").textContent);
const NESTED = /\((\d+)\/(\d+)\)\/\((\d+)\/(\d+)\)/;
const client = new Client(DATA.models);

// A fraction of fractions of four numbers: the first one among the examples, or a common one.
function nestedQuestion() {
  const numbers = (question) => new Set((NESTED.exec(question) || []).slice(1));
  const found = DATA.examples.find(({ question }) => numbers(question).size === 4);
  return found ? found.question : "What is (4/5)/(2/3)?";
}

class App {
  constructor() {
    this.history = []; // the operations of all panes before each change
    this.panes = [];
    this.expected = new Map(
      [...DATA.examples, ...DATA.questions].map(({ question, answer }) => [question, answer]),
    );
    this.state = firstState();
    this.inspector = new Inspector(this);
    this.dialog = new HeadDialog(this);
  }

  start() {
    chooseTheme();
    this.showAbout();
    byId("nested").hidden = !isReadable(DATA.models[0], nestedQuestion());
    fillQuestions(this);
    connectControls(this);
    this.restore(
      () => (location.hash.length > 1 ? stateFromHash(location.hash) : firstState()),
      "The address",
    );
  }

  // Take over a state from outside, or say why not.
  restore(read, noun) {
    let text = "";
    try {
      this.state = read();
    } catch (error) {
      if (!(error instanceof StateError)) throw error;
      text = `${noun} cannot be opened: ${error.message}.`;
    }
    this.say(text);
    this.history = [];
    this.layOut();
    this.panes.forEach((pane) => pane.refresh());
  }

  say(text) {
    byId("status").textContent = text;
  }

  // As many panes as the state has.
  layOut() {
    const wanted = this.state.panes.length;
    while (this.panes.length < wanted) this.panes.push(new Pane(this, this.panes.length));
    this.panes.length = wanted;
    const container = byId("panes");
    container.replaceChildren(...this.panes.map(({ root }) => root));
    container.classList.toggle("two", wanted === 2);
    document.body.classList.toggle("compares", wanted === 2);
    byId("compare").setAttribute("aria-pressed", String(wanted === 2));
    this.show();
  }

  show() {
    const { view } = this.state;
    byId("difference").setAttribute("aria-pressed", String(view.difference));
    byId("clusters").value = view.clusters;
    byId("legend").textContent = this.legend();
    keepingFocus(() => {
      this.panes.forEach((pane) => pane.show());
      this.inspector.show();
    });
    this.dialog.show();
    const hash = stateToHash(this.state);
    if (hash !== location.hash) history.replaceState(null, "", hash);
  }

  ask(index, question) {
    clearTimeout(this.timer);
    this.timer = null;
    this.state.panes[index].question = question;
    this.panes[index].refresh();
  }

  askSoon(index, question) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(index, question), 200);
  }

  // Ask one question, or compare two.
  askAll(...questions) {
    const { view } = this.state;
    this.state.panes = questions.map((question, index) => ({
      model: this.state.panes[index]?.model ?? 0,
      question,
      operations: [],
    }));
    Object.assign(view, { pane: 0, difference: false });
    this.history = [];
    this.panes.forEach((pane) => (pane.input.value = questions[pane.index] ?? ""));
    this.layOut();
    this.panes.forEach((pane) => pane.refresh());
  }

  chooseModel(index, model) {
    Object.assign(this.state.panes[index], { model, operations: [] });
    if (this.state.view.pane === index) this.state.view = { ...firstView(model), pane: index };
    this.panes[index].refresh();
  }

  // A second question beside the first, or the second model with the same question.
  toggleCompare() {
    const { panes } = this.state;
    if (panes.length === 2) {
      panes.pop();
      this.state.view.pane = 0;
    } else {
      const model = (panes[0].model + 1) % DATA.models.length;
      panes.push({ model, question: panes[0].question, operations: [] });
    }
    this.layOut();
    this.panes.forEach((pane) => pane.refresh());
  }

  // (a/b)/(c/d) against (a/d)/(c/b), with the numbers of the present question if it has them.
  compareNested() {
    const present = this.state.panes[0].question;
    const first = NESTED.test(present) ? present : nestedQuestion();
    this.askAll(first, first.replace(NESTED, "($1/$4)/($3/$2)"));
  }

  select(pane, side, position) {
    const point = pointWithQueries(this.state.view.point, side);
    this.look({ pane, point, position });
    const row = this.panes[pane].strip.querySelector(`.row[data-side="${side}"]`);
    if (row) row.children[position].focus();
  }

  look(changes) {
    const view = { ...this.state.view, ...changes };
    const result = this.panes[view.pane].result;
    const { n_layers } = this.panes[view.pane].config;
    if (layerOf(view.point) >= n_layers)
      view.point = GROUPS[groupOf(view.point)].path(n_layers - 1);
    view.head = Math.min(view.head, this.panes[view.pane].config.n_heads - 1);
    if (result)
      view.position = Math.min(
        view.position,
        result[GROUPS[groupOf(view.point)].queries].length - 1,
      );
    this.state.view = view;
    this.show();
  }

  enlarge(pane, point, head) {
    this.look({ pane, point, head });
    this.dialog.open();
  }

  remember() {
    this.history.push(this.state.panes.map(({ operations }) => operations.slice()));
  }

  addOperation(index, operation) {
    const checked = checkedOperation(operation, this.panes[index].config);
    this.remember();
    this.state.panes[index].operations.push(checked);
    this.panes[index].refresh();
  }

  removeOperation(index, place) {
    this.remember();
    this.state.panes[index].operations.splice(place, 1);
    this.panes[index].refresh();
  }

  clearOperations() {
    this.remember();
    const { pane } = this.state.view;
    this.state.panes[pane].operations = [];
    this.panes[pane].refresh();
  }

  undo() {
    const earlier = this.history.pop();
    if (!earlier) return;
    this.state.panes.forEach((pane, index) => (pane.operations = earlier[index] ?? []));
    this.panes.forEach((pane) => pane.refresh());
  }

  legend() {
    const { view, panes } = this.state;
    const isOperated = panes.some(({ operations }) => operations.length);
    const changes = isOperated
      ? "What the operations changed: blue is more attention, orange is less."
      : "There are no operations yet, so nothing has changed.";
    const colours = view.difference
      ? changes
      : "Darker is more attention (square root of the weight).";
    const name = vectorName(DATA.models[panes[0].model].config);
    return (
      "Each map is one head: a row is a character that attends, a column a character that it attends " +
      `to. ${colours} The stripe beside the rows has the colours of the clusters of their ${name} ` +
      "vectors. # is the start, % the end, ␣ a space. Point at a character to see its row in every " +
      "head, click it to operate on it, and click a map to enlarge it."
    );
  }

  showAbout() {
    const lines = DATA.models.map(({ name, step, n_parameters, config }) => {
      const kind =
        config.binding === "none" ? "Transformer" : `TP-Transformer, ${config.binding} binding`;
      const trained = step === null ? "" : `, ${step.toLocaleString("en")} steps`;
      const layers = `${config.n_layers}+${config.n_layers} layers of ${config.n_heads} heads`;
      return `${name}: ${kind}, ${layers}, ${n_parameters.toLocaleString("en")} parameters${trained}`;
    });
    byId("about").textContent = lines.join(" · ");
  }

  // Whether every answer on the page is up to date.
  get isSettled() {
    return this.panes.every((pane) => !pane.isRunning);
  }
}

const app = new App();
app.start();
window.explorer = { client, app, models: DATA.models }; // for the browser's console
