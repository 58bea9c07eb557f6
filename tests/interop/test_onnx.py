"""ONNX graphs answer as the models that they were exported from."""

import json

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from interop_models import model_of, questions
from tp_transformer.errors import FolderError, SettingsError
from tp_transformer.interop.onnx import export_onnx
from tp_transformer.model.batch import Batch
from tp_transformer.model.binding import BINDINGS, Binding

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# An export takes seconds.
EACH = [pytest.param(x, marks=() if x == "hadamard" else pytest.mark.slow) for x in BINDINGS]


class Runtime:
    """An exported folder in onnxruntime; there is nothing of torch in it."""

    def __init__(self, folder):
        self.vocabulary = tpt.Vocabulary.from_json(
            json.loads((folder / "vocabulary.json").read_text("utf-8"))
        )
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder")
        )

    def begin(self, source):
        names = ("memory_key", "memory_value", "memory_mask")
        memory = dict(zip(names, self.encoder.run(None, {"source": source}), strict=True))
        empty = memory["memory_key"][:, :, :, :0]
        return {**memory, "key": empty, "value": empty}

    def step(self, previous, state):
        logits, key, value = self.decoder.run(None, {**state, "previous": previous})
        return logits, {**state, "key": key, "value": value}

    def solve(self, texts):
        source = self.vocabulary.encode(texts).padded(self.vocabulary.pad)
        state, previous = self.begin(source), np.full(len(texts), self.vocabulary.sos)
        tokens = []
        for _ in range(self.config["max_answer"]):
            logits, state = self.step(previous, state)
            previous = logits.argmax(axis=-1)
            tokens.append(previous)
        return self.vocabulary.decode(np.stack(tokens, axis=1))


@pytest.mark.parametrize("binding", EACH)
def test_a_runtime_gives_our_answers_and_logits(binding, tmp_path):
    model = model_of(binding, n_layers=1 if binding == "hadamard" else 2)
    model.max_answer = 8
    export_onnx(model, tmp_path / "exported")
    runtime = Runtime(tmp_path / "exported")
    texts, answers = questions(5)
    for asked in (texts, texts[:1], ["x"]):  # other numbers of rows and lengths than the example's
        assert runtime.solve(asked) == model.solve(asked)
    batch = Batch.from_text(texts, answers, model.vocabulary)
    state, found = runtime.begin(batch.source.numpy()), []
    for previous in batch.target_input.numpy().T:
        logits, state = runtime.step(previous, state)
        found.append(torch.from_numpy(logits))
    with torch.no_grad():
        expected = model(batch)
    torch.testing.assert_close(torch.stack(found, dim=1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_longest_text_and_answer(tmp_path):
    model = model_of("none", n_layers=1, n_positions=12)
    model.max_answer = 12
    export_onnx(model, tmp_path / "exported")
    text = "3 + 4 is 7"
    assert Runtime(tmp_path / "exported").solve([text]) == model.solve([text])


def test_other_architectures_and_folders_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="only Transformers can be exported"):
        export_onnx(tpt.build("lstm-saxton", d_hidden=8), tmp_path / "exported")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match=r"has other files \(notes\.txt\)"):
        export_onnx(model_of("none"), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_binding_that_cannot_be_exported_is_named(tmp_path, monkeypatch):
    class Undecided(Binding):
        def forward(self, filler, role):
            return filler if float(role.sum()) > 0 else role  # depends on the data

    monkeypatch.setitem(BINDINGS._entries, "undecided", Undecided)
    with pytest.raises(SettingsError, match="the undecided binding cannot be exported to ONNX: "):
        export_onnx(model_of("undecided", n_layers=1), tmp_path / "exported")
    assert not list(tmp_path.iterdir())
