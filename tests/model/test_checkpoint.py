"""Presets, their sizes, and building from them."""

from dataclasses import replace

import pytest
import torch

import tp_transformer as tpt
from documents import ROOT
from tp_transformer import settings
from tp_transformer.errors import SettingsError
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.checkpoint import (
    count_parameters,
    from_config,
    match_parameters,
    model_config,
)
from tp_transformer.model.config import WithoutWeights
from tp_transformer.scoring.published import TABLE_1

COUNTS = {
    "lstm-saxton": 17_766_495,
    "transformer-saxton": 29_482_496,
    "transformer": 44_187_648,
    "tp-transformer": 49_178_112,
    "tp-transformer-b": 43_001_280,
    "tp-transformer-c": 30_022_656,
    "tp-transformer-small": 1_564_416,
    "transformer-small": 1_399_296,
    "tp-transformer-tiny": 267_712,
    "transformer-tiny": 238_592,
    "lookup": 267_712,
    "quotients": 397_184,
    "recall": 267_712,
    "scan": 267_712,
}


def test_every_preset_has_a_count_here():
    assert sorted(COUNTS) == tpt.preset_names()


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name):
    assert count_parameters(name) == COUNTS[name]


@pytest.mark.parametrize("name", TABLE_1)
def test_counts_are_the_papers_to_the_digits_printed(name):
    millions = COUNTS[name] / 1e6
    printed = TABLE_1[name].weights.removesuffix("M")
    digits = len(printed.partition(".")[2])
    # The paper cuts 49.178 to 49.1, and calls Saxton et al.'s 29.48 30: a digit's worth either way.
    assert abs(millions - float(printed)) < 10**-digits


def test_counts_without_weights_are_those_with_them():
    for name in ("tp-transformer-tiny", "transformer-tiny"):
        assert tpt.build(name).n_parameters == COUNTS[name]


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        # The design's facts: B and C with a binding in the embedding, and the authors' <unk>.
        ({"d_model": 480, "d_ff": 1920}, 43_232_160),
        ({"d_ff": 512}, 30_285_312),
        ({"n_vocab": 73}, 49_178_624),
    ],
)
def test_counts_of_variants(fields, count):
    with torch.device("meta"):
        assert tpt.build("tp-transformer", **fields).n_parameters == count


@pytest.mark.parametrize("binding", BINDINGS)
def test_counts_of_bindings_are_the_documented_ones(binding):
    d_model, n_heads, rank = 64, 4, 7
    d_head, n_attentions = d_model // n_heads, 2 + 2 * 2
    role, n_roles = d_model**2 + d_model, 20
    extra = {
        "none": 0,
        "constant": d_model,
        "hadamard": role,
        "tensor": role + (d_head - 1) * d_model**2,
        "low-rank": role + 2 * n_heads * rank * d_head + n_heads * (rank - d_head) * d_model,
        "convolution": role,
        "residual": role,
        "sigmoid": role,
        "silu": role,
        "value": role,
        "dictionary": n_heads * n_roles * (d_model + 1) + n_roles * d_head,
    }[binding]
    model = tpt.build(
        "transformer-tiny", binding=binding, rank=rank if binding == "low-rank" else None
    )
    assert model.n_parameters == COUNTS["transformer-tiny"] + n_attentions * extra


def test_a_gate_per_head_has_the_documented_count():
    model = tpt.build("transformer-tiny", binding="sigmoid", per_head=True)
    assert model.n_parameters == COUNTS["transformer-tiny"] + 6 * 4 * (64 + 1)


@pytest.mark.parametrize("size", ["", "-small", "-tiny"])
@pytest.mark.parametrize("embedding_binding", [False, True])
def test_a_plain_transformer_can_have_the_parameters_of_a_tp_transformer(size, embedding_binding):
    plain = model_config(settings.read(f"transformer{size}")["model"])
    plain = replace(plain, embedding_binding=embedding_binding)
    wanted = COUNTS[f"tp-transformer{size}"]
    matched = match_parameters(plain, wanted)
    assert replace(matched, d_ff=plain.d_ff) == plain
    with torch.device("meta"):
        counts = [
            tpt.Transformer(replace(matched, d_ff=matched.d_ff + step)).n_parameters
            for step in (-1, 0, 1)
        ]
    below, found, above = (abs(count - wanted) for count in counts)
    assert found <= min(below, above)
    assert found < 0.005 * wanted
    if not embedding_binding:
        row = f"| `transformer{size}` | {matched.d_ff} | {counts[1]:,} | {wanted:,} |"
        assert row in (ROOT / "docs" / "model.md").read_text("utf-8")


def test_parameters_are_matched_for_the_vocabulary_of_a_task():
    digits = tpt.Vocabulary(("<pad>", "<sos>", "<eos>", *"0123456789"))
    tp, plain = (
        tpt.build(f"{name}-tiny", vocabulary=digits) for name in ("tp-transformer", "transformer")
    )
    matched = match_parameters(plain.config, tp.n_parameters, digits)
    assert matched.d_ff == 312
    assert abs(from_config(matched, digits).n_parameters - tp.n_parameters) <= 2 * (2 * 64 + 1)


def test_matching_fewer_parameters_than_there_can_be_leaves_a_narrow_model():
    assert match_parameters(tpt.TransformerConfig(d_model=8, n_heads=2, n_layers=1), 1).d_ff == 1


def test_presets_are_the_design():
    def fields(name):
        config = model_config(settings.read(name)["model"])
        return (config.d_model, config.d_ff, config.n_heads, config.n_layers, config.binding)

    assert model_config(settings.read("lstm-saxton")["model"]) == tpt.LSTMConfig()
    assert model_config(settings.read("tp-transformer")["model"]) == tpt.TransformerConfig()
    assert fields("transformer-saxton") == (512, 2048, 8, 4, "none")
    assert fields("tp-transformer-c") == (512, 512, 8, 6, "hadamard")
    assert fields("tp-transformer-small") == (128, 512, 8, 3, "hadamard")
    assert fields("transformer-small") == (128, 512, 8, 3, "none")
    assert fields("tp-transformer-b") == (480, 1920, 8, 6, "hadamard")


def test_build_changes_fields_and_reads_files(tmp_path):
    assert len(tpt.build("tp-transformer-tiny", n_layers=1).encoder) == 1
    (tmp_path / "mine.yaml").write_text("model: {d_model: 32, d_ff: 8, n_heads: 2, n_layers: 1}")
    assert tpt.build(tmp_path / "mine.yaml").config.d_model == 32


def test_build_reads_the_model_out_of_the_settings_of_a_run(tmp_path):
    text = "training: {steps: 3}\nmodel: {d_model: 32, d_ff: 8, n_heads: 2, n_layers: 1}\noptim: {}"
    (tmp_path / "config.yaml").write_text(text)
    assert tpt.build(tmp_path / "config.yaml").config.d_model == 32


def test_build_refuses_unknown_fields():
    with pytest.raises(SettingsError, match=r"no setting 'n_layer' \(did you mean 'n_layers'"):
        tpt.build("tp-transformer-tiny", n_layer=1)
    with pytest.raises(SettingsError, match=r"no preset 'tp-transfomer' \(did you mean 'tp-tran"):
        tpt.build("tp-transfomer")


@pytest.mark.parametrize(
    ("text", "message"),
    [("modle: {}", "did you mean 'model'"), ("model: 3", "must hold the fields of a model")],
)
def test_build_refuses_files_of_something_else(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        tpt.build(tmp_path / "mine.yaml")


@pytest.mark.parametrize("name", ["tp-transformer-tiny", "lstm-saxton"])
def test_a_model_as_text_and_in_a_notebook(name):
    with WithoutWeights():
        model = tpt.build(name)
    counted = f"{model.n_parameters:,} parameters"
    assert f"{counted}, vocabulary of 72 characters" in repr(model)
    page = model._repr_html_()
    assert f"{type(model).__name__}: {counted}" in page
    for field, value in model.config_values(model.config).items():
        assert f"<td>{field}</td><td>{value}</td>" in page
    for part, module in model.named_children():
        n_parameters = sum(parameter.numel() for parameter in module.parameters())
        assert f"<td>{part}</td><td>{n_parameters:,} parameters</td>" in page
