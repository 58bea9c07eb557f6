"""Linear layers in int8: exact sums, the bound of rounding, the same in C and in torch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.library import opcheck
from torch.nn import functional as F

import tp_transformer as tpt
from tp_transformer.cli import main
from tp_transformer.errors import FolderError, SettingsError
from tp_transformer.model.layout import Packed
from tp_transformer.ops import library
from tp_transformer.ops.engine import _remembered as remembered
from tp_transformer.ops.engine import engine_for
from tp_transformer.ops.int8 import MOST, Int8Linear, int8_linear
from tp_transformer.ops.weights import Stack

needs_kernels = pytest.mark.skipif(library.load() is None, reason="the kernels are not compiled")
BACKENDS = [
    pytest.param(0, id="fastest", marks=needs_kernels),
    pytest.param(1, id="AVX2", marks=needs_kernels),
    pytest.param(None, id="torch"),
]
QUESTIONS = ["What is 3 + 4?", "Is 7 prime?", "Sort 3, -1, 7.", "Solve 2*x = 4 for x.", "1"]


def made(linear, backend):
    """The layer in int8, by a kernel with these instructions or by torch."""
    layer = Int8Linear(linear)
    if backend is None:
        return lambda state: by_torch(layer, state)
    packed = layer.pack(backend)
    return lambda state: int8_linear(state, packed, layer.out_features)


def by_torch(layer, state):
    """What the layer computes without kernels."""
    with pytest.MonkeyPatch.context() as without:
        without.setattr(library, "load", lambda: None)
        return layer(state)


def whole_numbers(n_rows, width, values):
    """Rows whose largest absolute value is 127, so that their scale is 1."""
    rows = np.random.default_rng(n_rows + width).choice(values, (n_rows, width))
    if len(rows):
        rows[np.arange(n_rows), np.arange(n_rows) % width] = MOST
    return rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("values", [range(-MOST, MOST + 1), [MOST], [-MOST], [-MOST, MOST]])
@pytest.mark.parametrize(
    ("n_rows", "n_in", "n_out"),
    [(1, 1, 1), (0, 8, 8), (3, 5, 7), (6, 64, 64), (7, 13, 17), (13, 128, 80), (247, 12, 33),
     (65, 2048, 66)],
)  # fmt: skip
def test_sums_are_exact(backend, values, n_rows, n_in, n_out):
    inputs, weights = whole_numbers(n_rows, n_in, values), whole_numbers(n_out, n_in, values)
    linear = nn.Linear(n_in, n_out, bias=False)
    linear.weight.data = torch.from_numpy(weights).float()
    exact = inputs.astype(np.int64) @ weights.astype(np.int64).T
    found = made(linear, backend)(torch.from_numpy(inputs).float())
    assert found.shape == (n_rows, n_out)
    # Torch adds in float32, in which sums above 2^24 may be rounded more than once.
    np.testing.assert_allclose(
        found, exact.astype(np.float32), rtol=0 if backend is not None else 1e-6
    )


@needs_kernels
@pytest.mark.parametrize("backend", [0, 1])
def test_the_kernel_computes_the_same_as_torch_for_each_row_by_itself(backend):
    linear, rows = nn.Linear(40, 24), torch.randn(20, 40)
    rows[3], rows[4], rows[5, 7], rows[6, 8], rows[7] = 0, 1e-42, torch.nan, torch.inf, 1e30
    linear.weight.data[2] = 0
    kernel = made(linear, backend)
    found, wanted = kernel(rows), made(linear, None)(rows)
    finite = [*range(5), *range(7, 20)]
    torch.testing.assert_close(found[finite], wanted[finite], rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(found[3:5], linear.bias.expand(2, -1), rtol=0, atol=0)
    torch.testing.assert_close(found[finite, 2], linear.bias[2].expand(18), rtol=0, atol=0)
    for result in (found, wanted):
        assert not result[5:7].isfinite().any(dim=1).all()
        assert result[5].isnan().all()
    alone = torch.cat([kernel(row[None]) for row in rows])
    torch.testing.assert_close(found, alone, rtol=0, atol=0, equal_nan=True)


class FakeLinear(nn.Linear):
    """A linear layer that rounds weights and inputs to 255 levels, in floating point."""

    def forward(self, state):
        """Round, then multiply."""
        scale, weight_scale = (
            numbers.abs().amax(dim=-1, keepdim=True) / 127 for numbers in (state, self.weight)
        )
        inputs = torch.round(state / scale) * scale
        return F.linear(inputs, torch.round(self.weight / weight_scale) * weight_scale, self.bias)


@pytest.fixture(scope="module")
def models():
    """A model, the same in int8, and the same with fake rounding."""
    torch.manual_seed(0)
    model, fake = (tpt.build("tp-transformer-tiny").eval() for _ in range(2))
    fake.load_state_dict(model.state_dict())
    for part in fake.modules():
        if type(part) is nn.Linear:
            part.__class__ = FakeLinear
    return model, model.in_precision("int8"), fake


def steps(model):
    """The logits of some decoding steps."""
    vocabulary = model.vocabulary
    ids, layout = Packed.lay_out(vocabulary.encode(QUESTIONS), vocabulary.pad)
    state = model.begin(model.encode(ids, layout), 6)
    rows = torch.arange(len(QUESTIONS))
    return torch.stack([model.step(3 + (7 * rows + step) % 60, state) for step in range(6)])


@torch.inference_mode()
def test_a_model_in_int8_is_the_one_that_rounds(models, monkeypatch):
    model, rounded, fake = models
    wanted, effect = steps(fake), (steps(model) - steps(fake)).abs().mean()
    if library.load() is not None:
        assert (steps(engine_for(rounded)) - wanted).abs().mean() < effect / 20
        assert rounded.solve(QUESTIONS) == fake.solve(QUESTIONS)
    with monkeypatch.context() as without:  # as on a machine without the kernels
        without.setattr(library, "load", lambda: None)
        eager = model.in_precision("int8")
        assert (steps(eager) - wanted).abs().mean() < effect / 20
        assert eager.solve(QUESTIONS) == fake.solve(QUESTIONS)


@needs_kernels
@pytest.mark.parametrize(("d_model", "n_heads"), [(64, 4), (48, 2), (144, 2), (24, 1)])
@torch.inference_mode()
def test_keys_and_values_of_the_source_are_those_of_the_cells(d_model, n_heads):
    """A half of the outputs may start within a panel of weights, but not within a block."""
    model = tpt.build("tp-transformer-tiny", d_model=d_model, n_heads=n_heads).eval()
    model = model.in_precision("int8")
    if d_model == 24:
        assert engine_for(model) is None
        return
    source = torch.randn(1, 29, d_model)
    memory = remembered(Stack(model.embedding, model.decoder_cells), source)
    for cell, key_value in zip(model.decoder_cells, memory, strict=True):
        for found, wanted in zip(key_value, cell.cross_attention.remember(source), strict=True):
            by_position = wanted[0].transpose(0, 1).flatten(1)
            torch.testing.assert_close(found, by_position, rtol=0, atol=0)


@needs_kernels
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_operator_is_one_of_torch():
    layer = Int8Linear(nn.Linear(16, 8))
    opcheck(int8_linear, (torch.randn(2, 3, 16), layer.packed, 8))


@needs_kernels
def test_a_changed_weight_is_packed_again():
    layer, rows = Int8Linear(nn.Linear(16, 8)), torch.randn(3, 16)
    before, packed = layer(rows), layer.packed
    assert layer.packed is packed
    layer.weight.neg_()
    torch.testing.assert_close(layer(rows) - layer.bias, layer.bias - before)
    other = Int8Linear(nn.Linear(16, 8))
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer(rows), other(rows))
    with torch.inference_mode():
        for made_there in (Int8Linear(nn.Linear(16, 8)), copy.deepcopy(other)):
            assert made_there(rows).shape == (3, 8)


def test_the_model_stays_as_it_is_and_int8_is_for_inference(models, tmp_path):
    model, rounded, _ = models
    assert {type(part) for part in model.modules()}.isdisjoint({Int8Linear})
    assert nn.Linear not in {type(part) for part in rounded.modules()}
    assert rounded.n_parameters == model.n_parameters
    assert "in_features=64, out_features=256, int8" in repr(rounded.encoder[0].feed_forward)
    assert model.in_precision("float32") is model
    with pytest.raises(FolderError, match="in int8 cannot be saved"):
        rounded.save(tmp_path / "model")
    with pytest.raises(RuntimeError, match="int8 has no gradients"):
        rounded.encoder[0].feed_forward(torch.randn(2, 64, requires_grad=True))


def test_what_has_no_int8_is_refused_in_one_line(tmp_path, capsys):
    lstm = tpt.LSTM(tpt.LSTMConfig(d_hidden=8))
    lstm.save(tmp_path / "lstm")
    with pytest.raises(SettingsError, match="architecture lstm has no int8: use float32"):
        lstm.in_precision("int8")
    with pytest.raises(SettingsError, match="int8 needs the device cpu, not meta"):
        tpt.build("tp-transformer-tiny").to("meta").in_precision("int8")
    train = ["train", "--config", "tp-transformer-tiny", "--data", "none", "--run", "none"]
    for given in (
        ["solve", "1 + 1?", "--model", str(tmp_path / "lstm"), "--precision", "int8"],
        [*train, "--training.precision=int8"],
    ):
        with pytest.raises(SystemExit) as stop:
            main(given)
        (line,) = capsys.readouterr().err.splitlines()
        assert stop.value.code == 2
        assert "int8" in line


def test_solve_answers_in_int8(models, tmp_path, capsys):
    model, rounded, _ = models
    model.save(tmp_path / "model")
    main(["solve", *QUESTIONS, "--model", str(tmp_path / "model"), "--precision", "int8"])
    assert capsys.readouterr().out.splitlines() == rounded.solve(QUESTIONS)
