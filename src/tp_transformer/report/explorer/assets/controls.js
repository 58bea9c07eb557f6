// The controls above the panes, files, and keys.

// The choice of an example of any module, and of a question of an evaluation.
function fillQuestions(app) {
  const groups = new Map();
  for (const each of DATA.examples.filter(({ question }) => isReadable(DATA.models[0], question))) {
    const [area, ...rest] = each.module.split("__");
    if (!groups.has(area)) groups.set(area, element("optgroup", { label: area }));
    const name = rest.length ? `${rest.join(" ").replaceAll("_", " ")}: ` : "";
    groups.get(area).append(element("option", { value: each.question }, name + each.question));
  }
  byId("examples-label").hidden = !groups.size;
  connectChoice(app, byId("examples"), [...groups.values()]);
  fillEvaluated(app, DATA.questions);
}

function fillEvaluated(app, questions) {
  byId("evaluated-label").hidden = !questions.length;
  const group = (label, isRight) => {
    const own = questions.filter(({ right }) => right === isRight);
    const options = own.map(({ module, question }) =>
      element("option", { value: question }, `${module}: ${question}`),
    );
    return element("optgroup", { label: `${label} (${own.length})` }, options);
  };
  connectChoice(app, byId("evaluated"), [
    group("answered wrongly", false),
    group("answered correctly", true),
  ]);
}

function connectChoice(app, select, groups) {
  select.replaceChildren(element("option", { value: "" }, "Choose…"), ...groups);
  select.onchange = () => {
    const { value } = select;
    select.value = "";
    if (!value) return;
    const others = app.state.panes.slice(1).map(() => value);
    app.askAll(value, ...others);
  };
}

// A file that was opened: a saved state, or the predictions of `tpt evaluate`.
async function openFile(app, file) {
  const content = await file.text();
  if (!file.name.endsWith(".jsonl")) {
    app.restore(() => stateFromFile(content), file.name);
    return;
  }
  try {
    const lines = content
      .split("\n")
      .filter(Boolean)
      .slice(0, 20000)
      .map((line) => JSON.parse(line));
    const isText = (value) => typeof value === "string";
    demand(
      lines.every((line) => line && isText(line.question) && isText(line.answer)),
      "lines lack questions",
    );
    const chosen = lines.map(({ module, question, answer, right }) => ({
      module: String(module),
      question,
      answer,
      right: right === true,
    }));
    for (const { question, answer } of chosen) app.expected.set(question, answer);
    fillEvaluated(
      app,
      [...chosen.filter(({ right }) => !right), ...chosen.filter(({ right }) => right)].slice(
        0,
        2000,
      ),
    );
    app.say(`${file.name}: ${count(chosen.length, "question")}.`);
  } catch (error) {
    app.say(`${file.name} cannot be opened: it holds no predictions of tpt evaluate.`);
  }
}

async function copyPython(app) {
  try {
    await navigator.clipboard.writeText(byId("python").textContent);
    app.say("Copied.");
  } catch {
    getSelection().selectAllChildren(byId("python")); // some browsers forbid copying
    app.say("The code is selected; copy it with Ctrl-C.");
  }
}

function connectControls(app) {
  const on = (id, action) => byId(id).addEventListener("click", action);
  on("nested", () => app.compareNested());
  on("compare", () => app.toggleCompare());
  on("difference", () => app.look({ difference: !app.state.view.difference }));
  on("undo", () => app.undo());
  on("clear", () => app.clearOperations());
  on("copy", () => copyPython(app));
  on("save", () => saveJson("explorer-state", stateToFile(app.state)));
  on("open", () => byId("file").click());
  on("help", () => byId("help-dialog").showModal());
  on("help-close", () => byId("help-dialog").close());
  on("theme", () => {
    chooseTheme(currentTheme === "dark" ? "light" : "dark");
    app.show();
  });
  byId("clusters").addEventListener("change", ({ target }) => {
    const wanted = Math.round(Number(target.value));
    app.look({ clusters: Math.max(1, Math.min(MOST_CLUSTERS, wanted || 1)) });
  });
  byId("file").addEventListener("change", ({ target }) => {
    if (target.files.length) openFile(app, target.files[0]);
    target.value = "";
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    chooseTheme();
    app.show();
  });
  addEventListener("hashchange", () =>
    app.restore(() => stateFromHash(location.hash), "The address"),
  );
  addEventListener("keydown", (event) => pressKey(app, event));
}

const KEYS = {
  "/": () => byId("question-0").select(),
  d: (app) => app.look({ difference: !app.state.view.difference }),
  u: (app) => app.undo(),
  e: (app) => app.dialog.open(),
  n: (app) => app.compareNested(),
  "[": (app) => app.dialog.move(-1),
  "]": (app) => app.dialog.move(1),
  "?": () => byId("help-dialog").showModal(),
};

function pressKey(app, event) {
  const isTyping = event.target.matches("input, select, textarea");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key](app);
}
