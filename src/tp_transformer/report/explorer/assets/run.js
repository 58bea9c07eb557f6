// One pass through the model: the operations that it applies, and what it records.

// An operation is {point, head, position, kind, …}: `point` is the path of an attention, a head or
// position of null means all of them, and the kinds are zero, scale (factor), swap (other: a
// position of the encoder) and set (vector).
class Run {
  constructor(engine, operations) {
    this.nHeads = engine.config.n_heads;
    this.d = engine.config.d_role || engine.d; // of roles, or else of values
    this.operations = operations;
    this.step = 0; // of the decoder
    this.recorded = new Map(); // path -> {weights: [{data, n}], vectors: [{data, n}]}
  }

  // Change the vectors (head, position, d) of positions from `first` on.
  operate(path, vectors, n, first) {
    for (const operation of this.operations) {
      if (operation.point !== path) continue;
      for (let head = 0; head < this.nHeads; head++)
        if (operation.head === null || operation.head === head)
          this.change(
            operation,
            vectors.subarray(head * n * this.d, (head + 1) * n * this.d),
            n,
            first,
          );
    }
  }

  change(operation, vectors, n, first) {
    const { d } = this;
    const at = (position) => vectors.subarray(position * d, (position + 1) * d);
    if (operation.kind === "swap") {
      if (Math.max(operation.position, operation.other) >= n) return;
      const kept = at(operation.position).slice();
      at(operation.position).set(at(operation.other));
      at(operation.other).set(kept);
      return;
    }
    for (let t = 0; t < n; t++) {
      if (operation.position !== null && operation.position !== first + t) continue;
      if (operation.kind === "zero") at(t).fill(0);
      else if (operation.kind === "set") at(t).set(operation.vector);
      else for (let i = 0; i < d; i++) at(t)[i] *= Math.fround(operation.factor);
    }
  }

  record(path, name, data, n) {
    if (!this.recorded.has(path)) this.recorded.set(path, { weights: [], vectors: [] });
    this.recorded.get(path)[name].push({ data, n });
  }

  // For each attention its weights (head, query, key) and vectors (head, position, d), with
  // the steps of the decoder joined.
  points() {
    const points = {};
    for (const [path, { weights, vectors }] of this.recorded) {
      const last = weights[weights.length - 1];
      const nKeys = last.data.length / (this.nHeads * last.n);
      points[path] = {
        weights: this.joined(weights, nKeys),
        vectors: vectors.length ? this.joined(vectors, this.d) : null,
        nQueries: weights.reduce((sum, piece) => sum + piece.n, 0),
        nKeys,
      };
    }
    return points;
  }

  joined(pieces, width) {
    const n = pieces.reduce((sum, piece) => sum + piece.n, 0);
    const all = new Float32Array(this.nHeads * n * width);
    let first = 0;
    for (const piece of pieces) {
      const own = piece.data.length / (this.nHeads * piece.n);
      for (let head = 0; head < this.nHeads; head++)
        for (let t = 0; t < piece.n; t++)
          all.set(
            piece.data.subarray((head * piece.n + t) * own, (head * piece.n + t + 1) * own),
            (head * n + first + t) * width,
          );
      first += piece.n;
    }
    return all;
  }
}
