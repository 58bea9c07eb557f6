// The worker: it holds the models, and answers one question after another.

const engines = [];

// The tensors of a model, which lie one after another in a buffer of float32.
function unpacked(buffer, tensors) {
  const found = {};
  let offset = 0;
  for (const { name, shape } of tensors) {
    const size = shape.reduce((product, length) => product * length, 1);
    found[name] = { shape, data: new Float32Array(buffer, 4 * offset, size) };
    offset += size;
  }
  return found;
}

onmessage = ({ data: message }) => {
  const { id } = message;
  try {
    if (message.kind === "model") {
      const tensors = unpacked(message.buffer, message.model.tensors);
      engines[message.index] = new Engine(message.model, tensors);
      postMessage({ id, kind: "done" });
    } else {
      const onToken = (token, step) => postMessage({ id, kind: "token", token, step });
      const { question, operations } = message;
      const result = engines[message.index].answer(question, operations, onToken);
      postMessage({ id, kind: "done", result });
    }
  } catch (error) {
    postMessage({ id, kind: "error", text: error.message });
  }
};
