"use strict";
// The page's side of the worker: it hands over the models, and asks one question at a time.

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

// The weights of a model, which the page holds as base64 in several elements.
function weightsOf(index) {
  const elements = [...document.querySelectorAll(`script[data-weights="${index}"]`)];
  const chunks = elements.map((element) => {
    const bytes = bytesOf(element.textContent);
    element.remove();
    return bytes;
  });
  const all = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let offset = 0;
  for (const chunk of chunks) {
    all.set(chunk, offset);
    offset += chunk.length;
  }
  return all.buffer;
}

class Client {
  constructor(models) {
    const source = document.getElementById("worker").textContent;
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    this.worker = new Worker(url);
    this.waiting = new Map(); // id -> {resolve, reject, onToken}
    this.lastId = 0;
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.ready = Promise.all(
      models.map((model, index) => {
        const buffer = weightsOf(index);
        return this.send({ kind: "model", index, model, buffer }, () => {}, [buffer]);
      }),
    );
  }

  send(message, onToken, transfer = []) {
    const id = ++this.lastId;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, onToken });
      this.worker.postMessage({ ...message, id }, transfer);
    });
  }

  receive({ id, kind, token, step, result, text }) {
    const { resolve, reject, onToken } = this.waiting.get(id);
    if (kind === "token") return onToken(token, step);
    this.waiting.delete(id);
    return kind === "error" ? reject(new Error(text)) : resolve(result);
  }

  // The answer of a model to a question under operations.
  async run(index, question, operations = [], onToken = () => {}) {
    await this.ready;
    return this.send({ kind: "run", index, question, operations }, onToken);
  }
}
