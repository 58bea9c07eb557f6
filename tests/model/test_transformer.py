"""Cells, encoder, decoder and the whole model against the plain-loop transcription; their laws."""

import pytest
import torch

import reference
from exported import model_parameters
from tp_transformer import Batch, Transformer, TransformerConfig
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.errors import SettingsError, TextError
from tp_transformer.model.attention import Attention
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.layers import FeedForward
from variants import DISTINCT

VOCABULARY = MATHEMATICS.vocabulary


def model_of(binding="hadamard", **fields):
    sizes = {"d_model": 12, "d_ff": 20, "n_heads": 3, "n_layers": 2}
    options = {"rank": 5} if binding == "low-rank" else {}
    config = TransformerConfig(
        **{**sizes, "binding": binding, "binding_options": options, **fields}
    )
    model = Transformer(config).double().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:  # as drawn, they would not show a mistake in their use
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    return model


def batch_of(*lengths, width=None):
    """Random sources and targets of the given lengths, start and end included."""
    generator = torch.Generator().manual_seed(5)
    rows = []
    for length in lengths:
        symbols = torch.randint(3, 72, (length,), generator=generator)
        symbols[0], symbols[-1] = VOCABULARY.sos, VOCABULARY.eos
        rows.append(symbols)
    padded = torch.full((len(lengths), width or max(lengths)), VOCABULARY.pad)
    for row, symbols in enumerate(rows):
        padded[row, : len(symbols)] = symbols
    return padded


def scores(model, source, target):
    """The model's scores for padded ids."""
    return model.decode(target, model.encode(source))


def assert_near(found, expected):
    assert (found - expected).norm() < 1e-9 * expected.norm()


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("embedding_binding", [True, False])
@pytest.mark.parametrize(("sources", "targets"), [((2,), (1,)), ((9, 2, 6), (4, 7, 2))])
def test_whole_model_equals_the_transcription(binding, embedding_binding, sources, targets):
    model = model_of(binding, embedding_binding=embedding_binding)
    source, target = batch_of(*sources), batch_of(*targets)
    logits = scores(model, source, target)
    assert logits.shape == (len(sources), max(targets), 72)
    for row, (length, written) in enumerate(zip(sources, targets, strict=True)):
        expected = reference.logits(
            model_parameters(model),
            source[row, :length].tolist(),
            target[row, :written].tolist(),
            3,
            binding,
        )
        assert_near(logits[row, :written], expected)


def test_whole_model_gradients_equal_the_transcriptions():
    model = model_of()
    source, target = batch_of(7), batch_of(5)
    direction = torch.randn(5, 72, dtype=torch.float64)
    (scores(model, source, target)[0] * direction).sum().backward()
    parameters = {k: v.clone().requires_grad_() for k, v in model_parameters(model).items()}
    logits = reference.logits(parameters, source[0].tolist(), target[0].tolist(), 3, "hadamard")
    (logits * direction).sum().backward()
    symbols = parameters["embedding.tok_embedding.weight"].grad
    assert_near(model.embedding.symbols.weight.grad, symbols)
    for layer in range(2):
        cell, prefix = model.decoder[layer], f"decoder.layers.{layer}."
        weight = cell.feed_forward.expand.weight.grad
        assert_near(weight, parameters[f"{prefix}densefilter.linear1.weight"].grad)
        keys, values = cell.cross_attention.memory_proj.weight.grad.chunk(2)
        assert_near(keys, parameters[f"{prefix}encAttn.W_k.weight"].grad)
        assert_near(values, parameters[f"{prefix}encAttn.W_v.weight"].grad)
        cell, prefix = model.encoder[layer], f"encoder.layers.{layer}."
        role = cell.self_attention.in_proj.weight.grad.chunk(4)[3]
        assert_near(role, parameters[f"{prefix}MHA.W_r.weight"].grad)


@pytest.mark.parametrize("binding", BINDINGS)
def test_padding_never_changes_an_answer(binding):
    model = model_of(binding)
    source, target = batch_of(6), batch_of(4)
    alone = scores(model, source, target)
    among_others = scores(model, batch_of(6, 11, 2, width=15), batch_of(4, 9, 3, width=12))
    torch.testing.assert_close(among_others[0, :4], alone[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("binding", BINDINGS)
def test_the_decoder_never_sees_the_future(binding):
    model = model_of(binding)
    source, target = batch_of(6), batch_of(8)
    changed = target.clone()
    changed[0, 5:] = 40
    before, after = scores(model, source, target), scores(model, source, changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-6


@pytest.mark.parametrize("binding", BINDINGS)
def test_steps_equal_decoding_at_once(binding):
    model = model_of(binding)
    source, target = batch_of(6, 9, 2), batch_of(7, 7, 7)
    with torch.no_grad():
        state = model.begin(model.encode(source), max_length=7)
        steps = [model.step(target[:, t], state) for t in range(7)]
    assert_near(torch.stack(steps, dim=1), scores(model, source, target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("binding", DISTINCT)
def test_every_binding_trains_and_then_decodes(binding, dtype):
    model = model_of(binding, d_model=32, d_ff=64, n_heads=4).to(dtype).train()
    batch = Batch.from_text(["1+1", "1+2", "2+2"], ["2", "3", "4"], VOCABULARY)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    first = None
    for _ in range(60):
        loss = model.loss(batch).mean
        first = loss.item() if first is None else first
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    assert loss.item() < 0.1 * first
    assert model.solve(["1+1", "1+2", "2+2"]) == ["2", "3", "4"]
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize("binding", BINDINGS)
def test_every_binding_trains_under_autocast(binding):
    model = model_of(binding).float().train()
    batch = Batch.from_text(["1+1", "12+2"], ["2", "14"], VOCABULARY)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.loss(batch)
    assert loss.total.dtype == torch.float32
    loss.mean.backward()
    exact = model.loss(batch)
    assert loss.total.item() == pytest.approx(exact.total.item(), rel=0.05)


def test_paper_initialisation_has_the_papers_spread():
    model = Transformer(TransformerConfig(n_layers=1))
    scaled = model.embedding.symbols.weight * 512**0.5
    assert scaled.std().item() == pytest.approx(1.0, abs=0.02)  # E from N(0, 1)
    factor = model.embedding.role_proj.weight * 512**0.5
    assert factor.std().item() == pytest.approx(1.0, abs=0.02)
    assert factor.mean().item() == pytest.approx(0.0, abs=0.02)
    square, wide = (6 / 1024) ** 0.5, (6 / (512 + 2048)) ** 0.5
    for module in model.modules():
        if isinstance(module, Attention):
            assert len(module.maps()) == 5
            for weight, bias in module.maps().values():
                assert 0.97 * square < weight.abs().max() <= square
                assert 0 < bias.abs().max() <= 512**-0.5  # as nn.Linear draws them
        if isinstance(module, FeedForward):
            assert 0.97 * wide < module.expand.weight.abs().max() <= wide
            assert 0.97 * wide < module.contract.weight.abs().max() <= wide


def test_initialisation_scales_the_roles_of_convolutions_alone():
    bound = (6 / 1024) ** 0.5
    for binding, gain in (("convolution", 64**-0.5), ("hadamard", 1.0)):
        attention = Transformer(TransformerConfig(n_layers=1, binding=binding)).encoder[0]
        for name, (weight, _) in attention.self_attention.maps().items():
            largest = bound * (gain if name == "role" else 1.0)
            assert 0.97 * largest < weight.abs().max() <= largest


@pytest.mark.parametrize("binding", BINDINGS)
def test_an_empty_batch_has_no_loss(binding):
    loss = model_of(binding).loss(Batch.from_text([], [], VOCABULARY))
    assert loss.total == loss.n_tokens == 0


def test_there_is_no_step_beyond_the_last():
    model = model_of()
    state = model.begin(model.encode(batch_of(4)), max_length=2)
    with torch.no_grad():
        for _ in range(2):
            model.step(torch.tensor([1]), state)
        with pytest.raises(ValueError, match="the cache has 2 positions, not 3"):
            model.step(torch.tensor([1]), state)


@pytest.mark.parametrize(
    ("binding", "bound"), [("hadamard", 512**-0.5), ("none", (6 / 1024) ** 0.5)]
)
def test_authors_initialisation_differs_in_tp_attention_alone(binding, bound):
    config = TransformerConfig(n_layers=1, binding=binding, initialisation="authors")
    model = Transformer(config)
    for module in model.modules():
        if isinstance(module, Attention):
            for weight, _ in module.maps().values():
                assert 0.97 * bound < weight.abs().max() <= bound
    wide = (6 / (512 + 2048)) ** 0.5
    assert 0.97 * wide < model.encoder[0].feed_forward.expand.weight.abs().max() <= wide


def test_positions_are_not_rounded_by_a_detour_through_half_precision():
    model = model_of()
    source = batch_of(9)
    expected = model.encode(source).state
    rounded = Transformer(model.config).bfloat16()
    rounded.encode(source)
    rounded.double().load_state_dict(model.state_dict())
    assert torch.equal(rounded.eval().encode(source).state, expected)


def test_positions_have_an_end():
    model = model_of(n_positions=10)
    scores(model, batch_of(10), batch_of(10))
    with pytest.raises(TextError, match=r"11 tokens.*10 positions"):
        scores(model, batch_of(11), batch_of(4))


@pytest.mark.parametrize("binding", ["none", "hadamard"])
def test_dropout_acts_in_training_only_and_everywhere(binding):
    model = model_of(binding, dropout=0.3)
    source, target = batch_of(6), batch_of(4)
    assert torch.equal(scores(model, source, target), scores(model, source, target))
    model.train()
    # With all else off, each place alone must make a difference.
    places = [model.embedding, *model.encoder, *model.decoder]
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for module in attentions:
        module.dropout = 0.0
    for place in places:
        place.dropout.p = 0.0
    assert torch.equal(scores(model, source, target), scores(model, source, target))
    for place in places:
        place.dropout.p = 0.3
        assert not torch.equal(scores(model, source, target), scores(model, source, target))
        place.dropout.p = 0.0
    for module in attentions:
        module.dropout = 0.3
        assert not torch.equal(scores(model, source, target), scores(model, source, target))
        module.dropout = 0.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 5}, "n_heads must divide d_model, but 5 does not"),
        ({"d_ff": 0}, "d_ff must be from 1 to"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"binding": "low-rank"}, "needs a rank"),
        ({"binding": "hadamar"}, "did you mean 'hadamard'"),
        ({"initialisation": "mine"}, "one of paper, authors"),
    ],
)
def test_refuses_a_shape_that_cannot_be(fields, message):
    with pytest.raises(SettingsError, match=message):
        TransformerConfig(**fields)


def test_refuses_a_vocabulary_that_is_too_large():
    with pytest.raises(SettingsError, match="72 tokens needs n_vocab"):
        model_of(n_vocab=71)
