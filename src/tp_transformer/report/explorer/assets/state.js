// What the page shows, as an address and as a file; and the check of what comes from outside.

const STATE_FORMAT = "tp-transformer-explorer";
const STATE_VERSION = 1;
const KINDS = ["zero", "scale", "swap", "set"];
const MOST_CLUSTERS = 12;

class StateError extends Error {}

function demand(condition, text) {
  if (!condition) throw new StateError(text);
}

function isIndex(value, end) {
  return Number.isInteger(value) && value >= 0 && value < end;
}

function checkedOperation(values, config) {
  demand(values && typeof values === "object", "an operation is not an object");
  const { point, head, position, kind } = values;
  demand(pointsOf(config).includes(point), `there is no attention ${String(point)}`);
  demand(head === null || isIndex(head, config.n_heads), `there is no head ${String(head)}`);
  demand(position === null || isIndex(position, config.n_positions), "a position is no position");
  demand(KINDS.includes(kind), `there is no operation ${String(kind)}`);
  const operation = { point, head, position, kind };
  if (kind === "scale") {
    demand(Number.isFinite(values.factor), "a factor is not a number");
    operation.factor = values.factor;
  } else if (kind === "swap") {
    demand(groupOf(point) === "encoder", "roles can be swapped in the encoder only");
    demand(position !== null, "a swap needs a position");
    demand(isIndex(values.other, config.n_positions), "a position is no position");
    operation.other = values.other;
  } else if (kind === "set") {
    const { vector } = values;
    const fits = Array.isArray(vector) && vector.length === vectorSize(config);
    demand(fits && vector.every(Number.isFinite), `a vector must have ${vectorSize(config)} numbers`);
    operation.vector = vector.slice();
  }
  demand(hasVectors(config, point), `the queries of ${point} have no vectors of their own`);
  return operation;
}

function checkedPane(values) {
  demand(values && typeof values === "object", "a pane is not an object");
  const { model, question, operations } = values;
  demand(isIndex(model, DATA.models.length), `there is no model ${String(model)}`);
  demand(typeof question === "string" && question.length <= 10000, "a question is not a text");
  demand(Array.isArray(operations) && operations.length <= 1000, "operations are not a list");
  const { config } = DATA.models[model];
  return { model, question, operations: operations.map((each) => checkedOperation(each, config)) };
}

// A state, or an error that says what is wrong with it.
function checkedState(values) {
  demand(values && typeof values === "object", "it is not an object");
  demand(Array.isArray(values.panes) && isIndex(values.panes.length - 1, 2), "it has no panes");
  const panes = values.panes.map(checkedPane);
  const { point, head, pane, position, clusters, difference } = values.view || {};
  demand(isIndex(pane, panes.length), "it shows no pane");
  const { config } = DATA.models[panes[pane].model];
  demand(pointsOf(config).includes(point), `there is no attention ${String(point)}`);
  demand(isIndex(head, config.n_heads), `there is no head ${String(head)}`);
  demand(isIndex(position, config.n_positions), "a position is no position");
  demand(isIndex(clusters - 1, MOST_CLUSTERS), `there can be 1 to ${MOST_CLUSTERS} clusters`);
  demand(typeof difference === "boolean", "it does not say what it shows");
  return { panes, view: { point, head, pane, position, clusters, difference } };
}

function operationToText(operation) {
  const { point, head, position, kind, factor, other, vector } = operation;
  const parts = [point, head ?? "*", position ?? "*", kind];
  const argument = { scale: factor, swap: other, set: vector && vector.join(",") }[kind];
  return [...parts, ...(argument === undefined ? [] : [argument])].join("/");
}

function operationFromText(text) {
  const [point, head, position, kind, argument] = text.split("/");
  const index = (part) => (part === "*" ? null : Number(part));
  const operation = { point, head: index(head), position: index(position), kind };
  if (kind === "scale") operation.factor = Number(argument);
  if (kind === "swap") operation.other = Number(argument);
  if (kind === "set") operation.vector = String(argument).split(",").map(Number);
  return operation;
}

function stateToHash({ panes, view }) {
  const fields = new URLSearchParams();
  panes.forEach((pane, index) => {
    const suffix = index ? "2" : "";
    fields.append(`q${suffix}`, pane.question);
    if (pane.model) fields.append(`m${suffix}`, pane.model);
    for (const each of pane.operations) fields.append(`op${suffix}`, operationToText(each));
  });
  fields.append("at", `${view.point}/${view.head}/${view.pane}/${view.position}`);
  fields.append("k", view.clusters);
  if (view.difference) fields.append("difference", "1");
  return `#${fields}`;
}

function stateFromHash(hash) {
  const fields = new URLSearchParams(hash.slice(1));
  const panes = ["", "2"]
    .filter((suffix) => fields.has(`q${suffix}`))
    .map((suffix) => ({
      model: Number(fields.get(`m${suffix}`) || 0),
      question: fields.get(`q${suffix}`),
      operations: fields.getAll(`op${suffix}`).map(operationFromText),
    }));
  const [point, head, pane, position] = (fields.get("at") || "").split("/");
  const view = {
    ...firstView(),
    clusters: Number(fields.get("k") || firstView().clusters),
    difference: fields.has("difference"),
  };
  if (fields.has("at"))
    Object.assign(view, {
      point,
      head: Number(head),
      pane: Number(pane),
      position: Number(position),
    });
  return checkedState({ panes, view });
}

function stateToFile(state) {
  const models = state.panes.map((pane) => DATA.models[pane.model].sha256);
  return { format: STATE_FORMAT, version: STATE_VERSION, models, ...state };
}

function stateFromFile(text) {
  let values;
  try {
    values = JSON.parse(text);
  } catch {
    throw new StateError("it is not JSON");
  }
  demand(values && values.format === STATE_FORMAT, "it was not saved by this page");
  demand(values.version === STATE_VERSION, `it has version ${String(values.version)}`);
  const state = checkedState(values);
  const isSame = state.panes.every(
    (pane, index) => DATA.models[pane.model].sha256 === (values.models || [])[index],
  );
  demand(isSame, "it was saved with another model");
  return state;
}

function firstView(model = 0) {
  const last = { layer: DATA.models[model].config.n_layers - 1, head: 0 };
  const { layer, head } = (model === 0 && DATA.roles) || last;
  const point = `encoder.${layer}.self_attention`;
  return { point, head, pane: 0, position: 1, clusters: 6, difference: false };
}

function firstState() {
  const [model] = DATA.models;
  const words = model.tokens.filter((token) => !/^<.+>$/.test(token)).slice(0, 3);
  const separator = model.tokenisation === "words" ? " " : "";
  const examples = DATA.examples.map(({ question }) => question);
  const offered = [DATA.opening ?? nestedQuestion(), ...examples];
  const known = offered.find((question) => isReadable(model, question)) ?? words.join(separator);
  const question = DATA.questions.length ? DATA.questions[0].question : known;
  const digit = separator ? 0 : Math.max(0, question.search(/\d/));
  const view = { ...firstView(), position: 1 + digit };
  return { panes: [{ model: 0, question, operations: [] }], view };
}
