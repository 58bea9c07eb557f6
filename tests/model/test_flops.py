"""The operations of a training step, compared with those that torch counts."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import tp_transformer as tpt
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.flops import config_flops, training_flops

N_ROWS, SOURCE, TARGET = 3, 20, 6  # tokens with start and end


def counted(model):
    """The operations that torch counts in a step on rows of one length, without fused kernels."""
    questions, answers = ["1" * (SOURCE - 2)] * N_ROWS, ["2" * (TARGET - 2)] * N_ROWS
    batch = tpt.Batch.from_text(questions, answers, model.vocabulary)
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),
        FlopCounterMode(display=False) as counter,
    ):
        model.train().loss(batch).mean.backward()
    return counter.get_total_flops()


def computed(model):
    return training_flops(model, np.full(N_ROWS, SOURCE), np.full(N_ROWS, TARGET))


@pytest.mark.parametrize("binding", [name for name in BINDINGS if name != "dictionary"])
def test_a_transformer_takes_what_torch_counts(binding):
    options = {"rank": 8} if binding == "low-rank" else {}
    model = tpt.build("tp-transformer-tiny", binding=binding, d_model=32, d_ff=48, **options)
    assert computed(model) == counted(model)


def test_without_a_binding_of_the_embedding():
    model = tpt.build("transformer-tiny", n_layers=3, n_vocab=95)
    assert computed(model) == counted(model)


def test_an_lstm_takes_what_torch_counts_but_for_its_one_hot_inputs():
    model = tpt.build("lstm-saxton", d_hidden=32)
    n_steps = N_ROWS * (SOURCE + model.config.n_thinking + TARGET - 1)
    # Their product and the gradient of its matrix; the inputs themselves have no gradient.
    one_hot = 2 * 2 * (4 * 32 * 95 * n_steps)
    first = 2 * N_ROWS * (4 * 32 * 32)  # the gradient of the initial state, which none needs
    assert computed(model) + one_hot - first == counted(model)


def test_rows_of_different_lengths_are_summed_without_padding():
    model = tpt.build("tp-transformer-tiny")
    each = [training_flops(model, np.array([n]), np.array([m])) for n, m in ((9, 3), (30, 12))]
    assert training_flops(model, np.array([9, 30]), np.array([3, 12])) == sum(each)


def test_a_configuration_is_enough():
    model = tpt.build("tp-transformer-tiny")
    lengths = np.array([9, 30]), np.array([3, 12])
    assert config_flops(model.config, *lengths) == training_flops(model, *lengths)
