// The same operations in Python.

function pythonText(text) {
  const escapes = { "\\": "\\\\", '"': '\\"' };
  const printable = /^[ -~]$/;
  const spelled = (character) =>
    escapes[character] ||
    (printable.test(character)
      ? character
      : `\\U${character.codePointAt(0).toString(16).padStart(8, "0")}`);
  return `"${Array.from(text, spelled).join("")}"`;
}

// The statements of one operation on `vector`, which is (batch, head, position, d).
function pythonStatement(operation, position) {
  const head = operation.head === null ? ":" : operation.head;
  const place = position === null ? `vector[:, ${head}]` : `vector[:, ${head}, ${position}]`;
  if (operation.kind === "zero") return `${place} = 0`;
  if (operation.kind === "scale") return `${place} *= ${operation.factor}`;
  if (operation.kind === "set") return `${place} = torch.tensor([${operation.vector.join(", ")}])`;
  const { other } = operation;
  return `vector[:, ${head}, [${position}, ${other}]] = vector[:, ${head}, [${other}, ${position}]]`;
}

// In the encoder all positions pass at once; in the decoder they pass one by one.
function pythonFunction(name, point, operations, size) {
  const lines = [];
  const isEncoder = groupOf(point) === "encoder";
  const needsStep = !isEncoder && operations.some(({ position }) => position !== null);
  if (needsStep) lines.push(`${name}_steps = itertools.count()`, "", "");
  lines.push(`def ${name}(vector):  # (batch, head, position, ${size})`);
  if (needsStep) lines.push(`    step = next(${name}_steps)`);
  for (const operation of operations) {
    const { position } = operation;
    if (isEncoder || position === null) lines.push(`    ${pythonStatement(operation, position)}`);
    else lines.push(`    if step == ${position}:`, `        ${pythonStatement(operation, 0)}`);
  }
  return [...lines, "    return vector", "", ""];
}

function pythonCode(model, question, operations) {
  const byPoint = new Map();
  for (const operation of operations) {
    if (!byPoint.has(operation.point)) byPoint.set(operation.point, []);
    byPoint.get(operation.point).push(operation);
  }
  const lines = ["import tp_transformer as tpt"];
  if (operations.some(({ kind }) => kind === "set")) lines.unshift("import torch");
  const isStepwise = ({ point, position }) => groupOf(point) !== "encoder" && position !== null;
  if (operations.some(isStepwise)) lines.unshift("import itertools");
  lines.push("", `model = tpt.load(${model.folder && pythonText(model.folder)})`, "");
  if (!operations.length) {
    lines.push(`print(model.solve([${pythonText(question)}])[0])`);
    return `${lines.join("\n")}\n`;
  }
  lines.push("");
  const edits = [];
  for (const [point, own] of byPoint) {
    const name = `edit_${point.replaceAll(".", "_")}`;
    const size = model.config.d_role ? "d_role" : "d_head";
    lines.push(...pythonFunction(name, point, own, size));
    edits.push(`    "${point}.${vectorName(model.config)}": ${name},`);
  }
  lines.push("edits = {", ...edits, "}", "with model.trace(edit=edits):");
  lines.push(`    print(model.solve([${pythonText(question)}])[0])`);
  return `${lines.join("\n")}\n`;
}
