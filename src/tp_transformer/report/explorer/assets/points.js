// The attentions of a model by their paths, as `model.trace` names them without the last part.

function pointsOf(config) {
  const layers = [...Array(config.n_layers).keys()];
  return [
    ...layers.map((layer) => `encoder.${layer}.self_attention`),
    ...layers.map((layer) => `decoder.${layer}.cross_attention`),
    ...layers.map((layer) => `decoder.${layer}.self_attention`),
  ];
}

function groupOf(point) {
  if (point.startsWith("encoder")) return "encoder";
  return point.endsWith("cross_attention") ? "cross" : "decoder";
}

function layerOf(point) {
  return Number(point.split(".")[1]);
}

const GROUPS = {
  encoder: {
    title: "Encoder",
    queries: "source",
    keys: "source",
    path: (n) => `encoder.${n}.self_attention`,
  },
  cross: {
    title: "Cross-attention",
    queries: "target",
    keys: "source",
    path: (n) => `decoder.${n}.cross_attention`,
  },
  decoder: {
    title: "Decoder",
    queries: "target",
    keys: "target",
    path: (n) => `decoder.${n}.self_attention`,
  },
};

function titleOf(point) {
  return `${GROUPS[groupOf(point)].title} layer ${layerOf(point)}`;
}

// An attention whose queries are on a side: the given one, or else one of the same layer.
function pointWithQueries(point, side) {
  if (GROUPS[groupOf(point)].queries === side) return point;
  return GROUPS[side === "source" ? "encoder" : "cross"].path(layerOf(point));
}

// The tokens of a text, without start and end.
function partsOf({ tokenisation }, text) {
  return tokenisation === "words" ? text.split(" ") : Array.from(text);
}

function isReadable(model, text) {
  return partsOf(model, text).every((part) => model.tokens.includes(part));
}

// The vectors that the page shows: roles, or the values of a model without roles.
function vectorName(config) {
  return config.d_role ? "role" : "value";
}

function vectorSize(config) {
  return config.d_role || config.d_model / config.n_heads;
}

// In cross-attention, values belong to the keys, and so do roles that are bound to values.
function hasVectors(config, point) {
  return groupOf(point) !== "cross" || (config.d_role > 0 && !config.binds_values);
}

// One head's vector at a position.
function vectorAt(recorded, config, head, position) {
  const d = vectorSize(config);
  const start = (head * recorded.nQueries + position) * d;
  return recorded.vectors.subarray(start, start + d);
}

function weightAt(recorded, head, query, key) {
  return recorded.weights[(head * recorded.nQueries + query) * recorded.nKeys + key];
}
