"use strict";
// How a filler and a role become one vector, as src/tp_transformer/model/binding.py does it.
//
// A binding is made for one attention, from the size of its fillers and a function that gives its
// tensors by name. It has the size of the bound vector and the function that writes it. The role of
// `none` and `constant` is empty.

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

// A binding that multiplies each number of the filler by a factor.
const factors = (factorOf) => (d) => ({
  size: d,
  bind: (filler, role, out) => {
    for (let i = 0; i < d; i++) out[i] = filler[i] * factorOf(role, i);
  },
});

// The rows (row, d) as vectors of length one.
function unitRows({ data, shape: [rows, d] }) {
  const units = Float32Array.from(data);
  for (let r = 0; r < rows; r++) {
    const row = units.subarray(r * d, (r + 1) * d);
    const length = Math.max(1e-12, Math.hypot(...row));
    for (let i = 0; i < d; i++) row[i] /= length;
  }
  return units;
}

const BINDINGS = {
  none: (d) => ({
    size: d,
    bind: (filler, role, out) => out.set(filler),
  }),
  constant: (d, tensor) => {
    const roles = tensor("binding.role").data; // (head * d_head)
    return {
      size: d,
      bind: (filler, role, out, head) => {
        for (let i = 0; i < d; i++) out[i] = filler[i] * roles[head * d + i];
      },
    };
  },
  hadamard: factors((role, i) => role[i]),
  residual: factors((role, i) => 1 + role[i]),
  sigmoid: factors((role, i) => sigmoid(role[role.length === 1 ? 0 : i])), // one number if per_head
  silu: factors((role, i) => role[i] * sigmoid(role[i])),
  value: factors((role, i) => sigmoid(role[i])), // of values, before attention
  dictionary: (d, tensor) => {
    const units = unitRows(tensor("binding.roles")); // (role, d_head)
    return {
      size: d,
      bind: (filler, role, out) => {
        const weights = softmax(Float64Array.from(role), role.length);
        for (let i = 0; i < d; i++) {
          let selected = 0;
          for (let r = 0; r < role.length; r++) selected += weights[r] * units[r * d + i];
          out[i] = filler[i] * (1 + selected);
        }
      },
    };
  },
  tensor: (d) => ({
    size: d * d,
    bind: (filler, role, out) => {
      for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) out[i * d + j] = filler[i] * role[j];
    },
  }),
  "low-rank": (d, tensor) => {
    const fillers = tensor("binding.filler_projection"); // (head, rank, d_head)
    const roles = tensor("binding.role_projection");
    const rank = fillers.shape[1];
    return {
      size: rank,
      bind: (filler, role, out, head) => {
        for (let r = 0; r < rank; r++) {
          const row = (head * rank + r) * d;
          let a = 0;
          let b = 0;
          for (let i = 0; i < d; i++) {
            a += fillers.data[row + i] * filler[i];
            b += roles.data[row + i] * role[i];
          }
          out[r] = a * b;
        }
      },
    };
  },
  convolution: (d) => ({
    size: d,
    bind: (filler, role, out) => {
      for (let j = 0; j < d; j++) {
        let sum = 0;
        for (let k = 0; k < d; k++) sum += filler[k] * role[(j - k + d) % d];
        out[j] = sum;
      }
    },
  }),
};
