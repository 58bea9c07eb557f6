// The forward pass of the Transformer and the TP-Transformer, and greedy decoding.
//
// It computes what src/tp_transformer/model does, for one question: products are summed in double
// precision and kept as float32. Vectors of heads are (head, position, d_head), flat.
// tests/report/explorer compares its logits with those of PyTorch.

const EPSILON = 1e-5; // torch.nn.LayerNorm's
const N_ALTERNATIVES = 5;
const SPECIAL = ["<pad>", "<sos>", "<eos>"];

// y = x W' + b for n rows of x; four rows of W at a time, so that each number of x is read once
// for four products.
function linear(x, n, weight, bias) {
  const [nOut, nIn] = weight.shape;
  const w = weight.data;
  const start = bias ? bias.data : new Float32Array(nOut);
  const y = new Float32Array(n * nOut);
  const whole = nOut - (nOut % 4);
  for (let o = 0; o < whole; o += 4) {
    const w0 = o * nIn;
    const w1 = w0 + nIn;
    const w2 = w1 + nIn;
    const w3 = w2 + nIn;
    for (let t = 0; t < n; t++) {
      const row = t * nIn;
      let s0 = start[o];
      let s1 = start[o + 1];
      let s2 = start[o + 2];
      let s3 = start[o + 3];
      for (let i = 0; i < nIn; i++) {
        const value = x[row + i];
        s0 += value * w[w0 + i];
        s1 += value * w[w1 + i];
        s2 += value * w[w2 + i];
        s3 += value * w[w3 + i];
      }
      const place = t * nOut + o;
      y[place] = s0;
      y[place + 1] = s1;
      y[place + 2] = s2;
      y[place + 3] = s3;
    }
  }
  for (let o = whole; o < nOut; o++)
    for (let t = 0; t < n; t++) {
      let sum = start[o];
      for (let i = 0; i < nIn; i++) sum += x[t * nIn + i] * w[o * nIn + i];
      y[t * nOut + o] = sum;
    }
  return y;
}

function layerNorm(x, n, weight, bias) {
  const d = weight.data.length;
  const y = new Float32Array(x.length);
  for (let t = 0; t < n; t++) {
    const start = t * d;
    let mean = 0;
    for (let i = 0; i < d; i++) mean += x[start + i];
    mean /= d;
    let variance = 0;
    for (let i = 0; i < d; i++) variance += (x[start + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(variance / d + EPSILON);
    for (let i = 0; i < d; i++)
      y[start + i] = (x[start + i] - mean) * scale * weight.data[i] + bias.data[i];
  }
  return y;
}

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
  return x;
}

function relu(x) {
  for (let i = 0; i < x.length; i++) if (x[i] < 0) x[i] = 0;
  return x;
}

// The softmax of the first n scores, in their place.
function softmax(scores, n) {
  let largest = -Infinity;
  for (let k = 0; k < n; k++) if (scores[k] > largest) largest = scores[k];
  let sum = 0;
  for (let k = 0; k < n; k++) sum += scores[k] = Math.exp(scores[k] - largest);
  for (let k = 0; k < n; k++) scores[k] /= sum;
  return scores;
}

function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

// Keys and values of positions, with room for more.
class KeyValue {
  constructor(nHeads, capacity, d) {
    Object.assign(this, { nHeads, capacity, d, length: 0 });
    this.key = new Float32Array(nHeads * capacity * d);
    this.value = new Float32Array(nHeads * capacity * d);
  }

  append(key, value, n) {
    for (let head = 0; head < this.nHeads; head++) {
      const from = head * n * this.d;
      const to = (head * this.capacity + this.length) * this.d;
      this.key.set(key.subarray(from, from + n * this.d), to);
      this.value.set(value.subarray(from, from + n * this.d), to);
    }
    this.length += n;
  }
}

class Engine {
  // model: as packing.py describes it; tensors: from a name of the state dict to {data, shape}.
  constructor({ config, tokens, tokenisation, max_answer }, tensors) {
    if (config.architecture !== "transformer" || !(config.binding in BINDINGS))
      throw new Error(
        `The explorer does not support this model: a ${config.architecture} ` +
          `with the binding ${config.binding || "none"}.`,
      );
    Object.assign(this, { config, tokens, tensors, maxAnswer: max_answer });
    this.isWords = tokenisation === "words";
    this.d = config.d_model / config.n_heads;
    this.idOf = new Map(tokens.map((token, id) => [token, id]));
    this.vectorName = config.d_role ? "role" : "value";
    this.isFused = config.d_role === this.d; // query, key, value and role then share a map
    this.positions = this.sinusoids();
  }

  sinusoids() {
    const { d_model, n_positions } = this.config;
    const table = new Float32Array(n_positions * d_model);
    for (let t = 0; t < n_positions; t++)
      for (let i = 0; i < d_model; i++) {
        const angle = t * 10000 ** (-(i - (i % 2)) / d_model);
        table[t * d_model + i] = i % 2 ? Math.cos(angle) : Math.sin(angle);
      }
    return table;
  }

  encodeText(text) {
    const parts = this.isWords ? text.split(" ") : Array.from(text);
    const noun = this.isWords ? "word" : "character";
    const most = this.config.n_positions - 2;
    if (!text) throw new Error("The question is empty.");
    if (parts.length > most)
      throw new Error(`The question has ${parts.length} ${noun}s; the model reads ${most}.`);
    const ids = parts.map((part, place) => {
      const id = SPECIAL.includes(part) ? undefined : this.idOf.get(part);
      if (id === undefined)
        throw new Error(`The model does not know the ${noun} “${part}” at position ${place + 1}.`);
      return id;
    });
    return [this.idOf.get("<sos>"), ...ids, this.idOf.get("<eos>")];
  }

  spell(id) {
    return id < this.tokens.length ? this.tokens[id] : `<${id}>`;
  }

  tensor(name) {
    return this.tensors[name];
  }

  linear(x, n, path) {
    return linear(x, n, this.tensor(`${path}.weight`), this.tensor(`${path}.bias`));
  }

  norm(x, n, path) {
    return layerNorm(x, n, this.tensor(`${path}.weight`), this.tensor(`${path}.bias`));
  }

  embed(ids, first) {
    const { d_model, embedding_binding } = this.config;
    const table = this.tensor("embedding.symbols.weight").data;
    const state = new Float32Array(ids.length * d_model);
    const scale = Math.fround(Math.sqrt(d_model));
    ids.forEach((id, t) => {
      for (let i = 0; i < d_model; i++)
        state[t * d_model + i] =
          table[id * d_model + i] * scale + this.positions[(first + t) * d_model + i];
    });
    if (embedding_binding) {
      const role = this.linear(state, ids.length, "embedding.role_proj");
      for (let i = 0; i < state.length; i++) state[i] += state[i] * role[i];
    }
    return state;
  }

  // The named parts of a fused projection, each (head, position, d).
  split(projected, n, names, d = this.d) {
    const { n_heads } = this.config;
    const parts = {};
    names.forEach((name, part) => {
      const heads = new Float32Array(n * n_heads * d);
      for (let head = 0; head < n_heads; head++)
        for (let t = 0; t < n; t++) {
          const from = ((t * names.length + part) * n_heads + head) * d;
          const to = (head * n + t) * d;
          for (let i = 0; i < d; i++) heads[to + i] = projected[from + i];
        }
      parts[name] = heads;
    });
    return parts;
  }

  // The parts of a projection of states, with roles (head, position, d_role) if they are wanted.
  project(state, n, path, map, names, wantsRole) {
    const { d_role } = this.config;
    const fused = wantsRole && this.isFused ? [...names, "role"] : names;
    const parts = this.split(this.linear(state, n, `${path}.${map}`), n, fused);
    if (wantsRole && !this.isFused) {
      const roles = this.linear(state, n, `${path}.role_proj`);
      Object.assign(parts, this.split(roles, n, ["role"], d_role));
    }
    return parts;
  }

  binding(path) {
    return BINDINGS[this.config.binding](this.d, (name) => this.tensor(`${path}.${name}`));
  }

  // Values bound to the roles of their own positions, for a binding that binds them.
  boundValues(path, { value, role }, n) {
    const { d } = this;
    const binding = this.binding(path);
    const bound = new Float32Array(value.length);
    for (let row = 0; row < this.config.n_heads * n; row++) {
      const part = (vectors) => vectors.subarray(row * d, (row + 1) * d);
      binding.bind(part(value), part(role), part(bound), Math.floor(row / n));
    }
    return bound;
  }

  // Equations 2 to 4 of the paper for n queries; query t of a causal attention sees the keys up
  // to its own.
  attend(path, parts, n, memory, causal, run) {
    const { n_heads, d_role, binds_values } = this.config;
    const { d } = this;
    const binding = this.binding(path);
    const width = memory.length;
    const weights = new Float32Array(n_heads * n * width);
    const bound = new Float32Array(n * n_heads * binding.size);
    const scores = new Float64Array(width);
    const filler = new Float32Array(d);
    const noRole = new Float32Array(0);
    for (let head = 0; head < n_heads; head++)
      for (let t = 0; t < n; t++) {
        const row = (head * n + t) * d;
        const seen = causal ? width - n + t + 1 : width;
        this.score(parts.query, row, head, seen, memory, scores);
        const place = (head * n + t) * width;
        for (let k = 0; k < seen; k++) weights[place + k] = scores[k];
        this.retrieve(scores, head, seen, memory, filler);
        const from = (head * n + t) * d_role;
        const role = parts.role ? parts.role.subarray(from, from + d_role) : noRole;
        const to = (t * n_heads + head) * binding.size;
        if (binds_values) bound.set(filler, to);
        else binding.bind(filler, role, bound.subarray(to, to + binding.size), head);
      }
    run.record(path, "weights", weights, n);
    return this.linear(bound, n, `${path}.out_proj`);
  }

  // Equation 3: the weights of one query.
  score(query, row, head, seen, memory, scores) {
    const { d } = this;
    const { key } = memory;
    const scale = 1 / Math.sqrt(d);
    for (let k = 0; k < seen; k++) {
      const from = (head * memory.capacity + k) * d;
      let sum = 0;
      for (let i = 0; i < d; i++) sum += query[row + i] * key[from + i];
      scores[k] = sum * scale;
    }
    softmax(scores, seen);
  }

  // Equation 2: the filler of one query.
  retrieve(scores, head, seen, memory, filler) {
    const { d } = this;
    const { value } = memory;
    filler.fill(0);
    for (let k = 0; k < seen; k++) {
      const from = (head * memory.capacity + k) * d;
      for (let i = 0; i < d; i++) filler[i] += scores[k] * value[from + i];
    }
  }

  // Attention of positions to themselves and to those in the cache.
  selfAttention(state, n, path, cache, causal, run) {
    const { d_role, binds_values } = this.config;
    const parts = this.project(state, n, path, "in_proj", ["query", "key", "value"], d_role > 0);
    run.operate(path, parts[this.vectorName], n, cache.length);
    run.record(path, "vectors", parts[this.vectorName], n);
    if (binds_values) parts.value = this.boundValues(path, parts, n);
    cache.append(parts.key, parts.value, n);
    return this.attend(path, parts, n, cache, causal, run);
  }

  crossAttention(state, n, path, memory, run) {
    const { d_role, binds_values } = this.config;
    const wantsRole = d_role > 0 && !binds_values;
    const parts = this.project(state, n, path, "in_proj", ["query"], wantsRole);
    if (wantsRole) {
      run.operate(path, parts.role, n, run.step);
      run.record(path, "vectors", parts.role, n);
    }
    return this.attend(path, parts, n, memory, false, run);
  }

  feedForward(state, n, path) {
    const normed = this.norm(state, n, `${path}.feed_forward_norm`);
    const hidden = this.linear(normed, n, `${path}.feed_forward.expand`);
    return this.linear(relu(hidden), n, `${path}.feed_forward.contract`);
  }

  encode(ids, run) {
    const { n_layers, n_heads } = this.config;
    const n = ids.length;
    let state = this.embed(ids, 0);
    for (let layer = 0; layer < n_layers; layer++) {
      const path = `encoder.${layer}`;
      const own = this.norm(state, n, `${path}.self_attention_norm`);
      const memory = new KeyValue(n_heads, n, this.d);
      add(state, this.selfAttention(own, n, `${path}.self_attention`, memory, false, run));
      add(state, this.feedForward(state, n, path));
      state = this.norm(state, n, `${path}.output_norm`);
    }
    return state;
  }

  // The keys and values of the source in each layer of the decoder.
  remember(state, n) {
    const { n_layers, n_heads, binds_values } = this.config;
    return Array.from({ length: n_layers }, (_, layer) => {
      const path = `decoder.${layer}.cross_attention`;
      const parts = this.project(state, n, path, "memory_proj", ["key", "value"], binds_values);
      if (binds_values) parts.value = this.boundValues(path, parts, n);
      const memory = new KeyValue(n_heads, n, this.d);
      memory.append(parts.key, parts.value, n);
      return memory;
    });
  }

  // The scores of every token after one more token.
  step(id, caches, memories, run) {
    let state = this.embed([id], run.step);
    for (let layer = 0; layer < this.config.n_layers; layer++) {
      const path = `decoder.${layer}`;
      const own = this.norm(state, 1, `${path}.self_attention_norm`);
      add(state, this.selfAttention(own, 1, `${path}.self_attention`, caches[layer], true, run));
      const across = this.norm(state, 1, `${path}.cross_attention_norm`);
      add(state, this.crossAttention(across, 1, `${path}.cross_attention`, memories[layer], run));
      add(state, this.feedForward(state, 1, path));
      state = this.norm(state, 1, `${path}.output_norm`);
    }
    return linear(state, 1, this.tensor("embedding.symbols.weight"), null);
  }

  // Decode an answer greedily under operations; `onToken` gets each token as it is found.
  answer(question, operations = [], onToken = () => {}) {
    const { n_layers, n_heads, n_positions } = this.config;
    const started = performance.now();
    const source = this.encodeText(question);
    const run = new Run(this, operations);
    const memories = this.remember(this.encode(source, run), source.length);
    const most = Math.min(this.maxAnswer, n_positions);
    const caches = Array.from({ length: n_layers }, () => new KeyValue(n_heads, most, this.d));
    const end = this.idOf.get("<eos>");
    const tokens = [];
    const logits = [];
    let id = this.idOf.get("<sos>");
    while (tokens.length < most && (id !== end || !tokens.length)) {
      const scores = this.step(id, caches, memories, run);
      run.step += 1;
      id = argmax(scores);
      logits.push(scores);
      tokens.push(this.described(id, scores));
      onToken(tokens[tokens.length - 1], tokens.length - 1);
    }
    const isComplete = id === end;
    const said = isComplete ? tokens.slice(0, -1) : tokens;
    return {
      question,
      answer: said.map((token) => token.text).join(this.isWords ? " " : ""),
      isComplete,
      tokens,
      logits,
      points: run.points(),
      source: source.map((each) => this.spell(each)),
      target: ["<sos>", ...tokens.slice(0, -1).map((token) => token.text)],
      milliseconds: performance.now() - started,
    };
  }

  described(id, scores) {
    const probabilities = softmax(Float64Array.from(scores), scores.length);
    const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
    const alternatives = order
      .slice(0, N_ALTERNATIVES)
      .map((each) => ({ text: this.spell(each), probability: probabilities[each] }));
    return { id, text: this.spell(id), probability: probabilities[id], alternatives };
  }
}
