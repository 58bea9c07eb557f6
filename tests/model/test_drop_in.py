"""TPMultiheadAttention in the place of torch's."""

import copy
import itertools

import pytest
import torch
from torch import nn

import reference
import tp_transformer as tpt
from exported import attention_parameters
from tp_transformer import TPMultiheadAttention
from tp_transformer.errors import SettingsError
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.trace import trace

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)


def pair(**options):
    """Torch's attention and ours with the same weights and no binding."""
    theirs = nn.MultiheadAttention(12, 3, **options)
    ours = TPMultiheadAttention(12, 3, binding="none", **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict(theirs.state_dict())
    return theirs.eval(), ours.eval()


def masks(kind, batch, queries, keys):
    generator = torch.Generator().manual_seed(3)
    attention = torch.rand(queries, keys, generator=generator) < 0.4
    attention[:, 0] = False
    padding = torch.arange(keys) >= torch.tensor([keys, max(1, keys - 2), 1])[:batch, None]
    added = torch.randn(queries, keys, generator=generator)
    per_head = torch.stack([attention.roll(h, 0) for h in range(batch * 3)])
    return {
        "none": {},
        "boolean": {"attn_mask": attention},
        "numbers": {"attn_mask": added},
        "per head": {"attn_mask": per_head},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": attention, "key_padding_mask": padding},
        "mixed": {
            "attn_mask": added,
            "key_padding_mask": torch.zeros(padding.shape).masked_fill(padding, -torch.inf),
        },
    }[kind]


@pytest.mark.parametrize(
    "mask", ["none", "boolean", "numbers", "per head", "padding", "both", "mixed"]
)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (4, 4), (3, 7)])
def test_without_binding_equals_torch(mask, batch_first, queries, keys):
    theirs, ours = pair(batch_first=batch_first)
    shape = (lambda n: (3, n, 12)) if batch_first else (lambda n: (n, 3, 12))
    query, key, value = (
        torch.randn(shape(queries)),
        torch.randn(shape(keys)),
        torch.randn(shape(keys)),
    )
    for need_weights, average in itertools.product([True, False], repeat=2):
        call = {"need_weights": need_weights, "average_attn_weights": average}
        call |= masks(mask, 3, queries, keys)
        expected, found = theirs(query, key, value, **call), ours(query, key, value, **call)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
        if need_weights:
            torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)
        else:
            assert found[1] is expected[1] is None


@pytest.mark.parametrize("options", [{"bias": False}, {"kdim": 5, "vdim": 7}, {"vdim": 7}])
def test_options_equal_torchs(options):
    theirs, ours = pair(batch_first=True, **options)
    query = torch.randn(2, 4, 12)
    key = torch.randn(2, 6, options.get("kdim", 12))
    value = torch.randn(2, 6, options.get("vdim", 12))
    for expected, found in zip(theirs(query, key, value), ours(query, key, value), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_unbatched_input_equals_torchs(batch_first):
    theirs, ours = pair(batch_first=batch_first)
    query, key = torch.randn(4, 12), torch.randn(6, 12)
    padding = torch.arange(6) > 3
    for expected, found in zip(
        theirs(query, key, key, key_padding_mask=padding),
        ours(query, key, key, key_padding_mask=padding),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_device_and_dtype_are_taken():
    attention = TPMultiheadAttention(8, 2, device="meta", dtype=torch.bfloat16)
    assert {p.dtype for p in attention.parameters()} == {torch.bfloat16}
    assert {p.device.type for p in attention.parameters()} == {"meta"}


def test_initialisation_is_torchs_but_for_each_map_by_itself():
    attention = TPMultiheadAttention(64, 4)
    bound = (6 / 128) ** 0.5
    for weight, bias in attention.maps().values():
        assert 0.97 * bound < weight.abs().max() <= bound
        assert bias.eq(0).all()


def test_without_bias_nothing_has_one():
    names = dict(TPMultiheadAttention(8, 2, bias=False).named_parameters())
    assert sorted(names) == ["in_proj_weight", "out_proj.weight", "role_proj.weight"]


def test_masks_of_numbers_take_the_type_of_the_query():
    attention = TPMultiheadAttention(8, 2, dtype=torch.bfloat16, batch_first=True)
    state = torch.randn(1, 3, 8).bfloat16()
    assert attention(state, state, state, attn_mask=torch.randn(3, 3))[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"attn_mask": torch.ones(4, 6, dtype=torch.long)}, "boolean or of floating point"),
        ({"attn_mask": torch.ones(4, 6, dtype=torch.uint8)}, "boolean or of floating point"),
        ({"attn_mask": torch.ones(1, 6, dtype=torch.bool)}, r"\(1, 6\) and must have \(4, 6\)"),
        ({"attn_mask": torch.ones(6, dtype=torch.bool)}, r"\(6,\) and must"),
        ({"attn_mask": torch.ones(2, 4, 6, dtype=torch.bool)}, r"or \(4, 4, 6\)"),
        ({"key_padding_mask": torch.ones(2, 1, dtype=torch.bool)}, r"must have \(2, 6\)"),
    ],
)
def test_masks_that_would_broadcast_or_add_up_are_refused(masks, message):
    attention = TPMultiheadAttention(8, 2, batch_first=True)
    memory = torch.randn(2, 6, 8)
    with pytest.raises(ValueError, match=message):
        attention(torch.randn(2, 4, 8), memory, memory, **masks)


def test_keys_of_another_batch_are_refused():
    attention = TPMultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(ValueError, match="must have the batch of the queries"):
        attention(torch.randn(2, 4, 8), torch.randn(1, 6, 8), torch.randn(1, 6, 8))


def test_returned_weights_are_the_dropped_ones_as_torchs_are():
    attention = TPMultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    state = torch.randn(4, 20, 8)
    weights = attention(state, state, state, average_attn_weights=False)[1]
    assert 0.4 < weights.eq(0).float().mean() < 0.6


def test_a_causal_hint_needs_its_mask():
    attention = TPMultiheadAttention(8, 2)
    state = torch.randn(3, 1, 8)
    with pytest.raises(ValueError, match="causal mask"):
        attention(state, state, state, is_causal=True)
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    hinted = attention(state, state, state, attn_mask=mask, is_causal=True)[0]
    assert torch.equal(hinted, attention(state, state, state, attn_mask=mask)[0])


@pytest.mark.parametrize("binding", BINDINGS)
def test_equals_the_papers_equations(binding):
    rank = 5 if binding == "low-rank" else None
    attention = TPMultiheadAttention(
        12, 4, batch_first=True, binding=binding, rank=rank, dtype=torch.float64
    )
    query, memory = torch.randn(1, 5, 12).double(), torch.randn(1, 3, 12).double()
    output, _ = attention(query, memory, memory)
    expected = reference.attention(
        attention_parameters(attention),
        list(query[0]),
        list(memory[0]),
        [[True] * 3] * 5,
        4,
        binding,
    )
    torch.testing.assert_close(output[0], torch.stack(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("binding", ["none", "hadamard", "residual", "convolution"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_torchs_weights_load_and_give_torchs_attention(binding, batch_first):
    theirs = nn.MultiheadAttention(12, 3, batch_first=batch_first)
    nn.init.normal_(theirs.in_proj_bias)
    ours = TPMultiheadAttention(12, 3, batch_first=batch_first, binding=binding)
    ours.load_state_dict(theirs.state_dict())
    query, memory = torch.randn(5, 4, 12), torch.randn(5, 4, 12)
    found, expected = (module(query, memory, memory) for module in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"binding": "sigmoid"}, {"bias": False}])
def test_a_role_map_that_cannot_be_neutral_is_missing(options):
    theirs = nn.MultiheadAttention(12, 3, bias=options.get("bias", True))
    ours = TPMultiheadAttention(12, 3, **options)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert "role_proj.weight" in missing
    assert unexpected == []
    with pytest.raises(RuntimeError, match=r"role_proj\.weight"):
        ours.load_state_dict(theirs.state_dict())


def test_its_own_weights_load_with_their_role():
    trained = TPMultiheadAttention(12, 3)
    ours = TPMultiheadAttention(12, 3)
    ours.load_state_dict(trained.state_dict())
    for name, tensor in trained.state_dict().items():
        assert ours.state_dict()[name].equal(tensor)
    without_bias = {k: v for k, v in trained.state_dict().items() if k != "role_proj.bias"}
    with pytest.raises(RuntimeError, match=r"role_proj\.bias"):  # a damaged file is no torch module
        ours.load_state_dict(without_bias)


def encoder_with_roles(norm_first, replaced_after):
    layer = nn.TransformerEncoderLayer(
        12, 4, 24, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    if not replaced_after:
        layer.self_attn = TPMultiheadAttention(12, 4, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=replaced_after)
    if replaced_after:
        for one in encoder.layers:
            one.self_attn = TPMultiheadAttention(12, 4, batch_first=True)
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.3)
    return encoder


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("replaced_after", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_torchs_encoder_does_not_bypass_the_role(norm_first, replaced_after, padded):
    encoder = encoder_with_roles(norm_first, replaced_after)
    source = torch.randn(3, 6, 12)
    padding = torch.arange(6) >= torch.tensor([6, 4, 1])[:, None] if padded else None
    in_training = encoder.train()(source, src_key_padding_mask=padding)
    encoder.eval()
    with torch.no_grad():
        in_evaluation = encoder(source, src_key_padding_mask=padding)
    kept = slice(None) if padding is None else ~padding  # torch may leave padding at zero
    torch.testing.assert_close(in_evaluation[kept], in_training[kept], rtol=1e-5, atol=1e-5)
    for layer in encoder.layers:
        nn.init.zeros_(layer.self_attn.role_proj.weight)
        nn.init.zeros_(layer.self_attn.role_proj.bias)
    with torch.no_grad():
        without_roles = encoder(source, src_key_padding_mask=padding)
    assert (without_roles[kept] - in_evaluation[kept]).abs().max() > 0.01


def test_nested_tensors_only_serve_self_attention():
    attention = TPMultiheadAttention(8, 2, batch_first=True)
    nested = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)])
    with pytest.raises(ValueError, match="nested"):
        attention(nested, nested, nested, need_weights=True)


def test_a_trace_reaches_into_someone_elses_model():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layer.self_attn = TPMultiheadAttention(8, 2, batch_first=True)
    with trace(layer, "self_attn.role", edit={"self_attn.role": torch.ones_like}) as recorded:
        layer(torch.randn(3, 4, 8))
    assert torch.equal(recorded["self_attn.role"], torch.ones(3, 2, 4, 4))


def shaped(batch_first, *lengths):
    return [torch.randn(*((3, n) if batch_first else (n, 3)), 16) for n in lengths]


def causal(length):
    return nn.Transformer.generate_square_subsequent_mask(length)


def cases(batch_first, **options):
    """Models of torch's modules with calls: without masks, with causal masks and with padding."""
    options = {"dropout": 0.0, "batch_first": batch_first, **options}
    source, target = shaped(batch_first, 6, 4)
    padding = torch.arange(6) >= torch.tensor([6, 4, 1])[:, None]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, **options), 2)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, **options), 2)
    both = nn.Transformer(16, 4, 1, 1, 32, **options)
    masks = {"tgt_mask": causal(4), "tgt_is_causal": True, "memory_key_padding_mask": padding}
    return [
        (encoder, (source,), {}),
        (encoder, (source,), {"mask": causal(6)}),
        (encoder, (source,), {"src_key_padding_mask": padding}),
        (decoder, (target, source), masks),
        (both, (source, target), {**masks, "src_key_padding_mask": padding}),
    ]


def attentions(model):
    return [each for each in model.modules() if isinstance(each, TPMultiheadAttention)]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"bias": False}])
def test_models_compute_the_same_until_they_are_trained(batch_first, options):
    for model, inputs, masks in cases(batch_first, **options):
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)  # biases too
        n_attentions = sum(isinstance(each, nn.MultiheadAttention) for each in model.modules())
        ours = tpt.add_roles(copy.deepcopy(model))
        assert len(attentions(ours)) == n_attentions > 0
        assert not any(isinstance(each, nn.MultiheadAttention) for each in ours.modules())
        for training in (True, False):
            with torch.set_grad_enabled(training):
                expected = model.train(training)(*inputs, **masks)
                found = ours.train(training)(*inputs, **masks)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_roles_take_effect_in_training_and_evaluation(batch_first):
    for model, inputs, masks in cases(batch_first):
        ours = tpt.add_roles(model)
        for attention in attentions(ours):
            nn.init.normal_(attention.role_proj.weight, std=0.3)
        outputs = []
        for training, edit in ((True, {}), (False, {}), (False, {"*.role": torch.ones_like})):
            with torch.set_grad_enabled(training), trace(ours, edit=edit):
                outputs.append(ours.train(training)(*inputs, **masks))
        kept = outputs[1] != 0  # torch may leave padding at zero in evaluation
        torch.testing.assert_close(outputs[1][kept], outputs[0][kept], rtol=1e-4, atol=1e-5)
        assert (outputs[2] - outputs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("binding", ["hadamard", "residual", "convolution"])
@pytest.mark.parametrize(
    "options", [{"bias": False}, {"kdim": 5, "vdim": 7}, {"dropout": 0.3}, {"dtype": torch.float64}]
)
def test_an_attention_itself(binding, options):
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, **options)
    ours = tpt.add_roles(theirs, binding=binding)
    assert isinstance(ours, TPMultiheadAttention)
    assert ours.dropout == theirs.dropout
    dtype = options.get("dtype", torch.float32)
    query = torch.randn(2, 4, 12, dtype=dtype)
    key, value = (torch.randn(2, 6, options.get(n, 12), dtype=dtype) for n in ("kdim", "vdim"))
    outputs = [each.eval()(query, key, value) for each in (ours, theirs)]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    assert ours.role_proj.bias is not None


def test_parameters_stay_the_same_objects():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    layer.self_attn.out_proj.requires_grad_(False)
    shared = nn.ModuleList([layer, nn.ModuleDict({"again": layer.self_attn})])
    before = dict(shared.named_parameters())
    added = tpt.add_roles(shared)
    assert added[0].self_attn is added[1]["again"]
    after = dict(added.named_parameters())
    assert after.keys() - before.keys() == {
        "0.self_attn.role_proj.weight",
        "0.self_attn.role_proj.bias",
    }
    assert all(after[name] is parameter for name, parameter in before.items())
    assert not after["0.self_attn.out_proj.weight"].requires_grad


class OtherAttention(nn.MultiheadAttention):
    pass


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        (nn.MultiheadAttention(8, 2, add_zero_attn=True), {}, "'0' has add_bias_kv or add_zero"),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), {}, "'0' has add_bias_kv or add_zero"),
        (OtherAttention(8, 2), {}, "'0' is a OtherAttention"),
        (nn.MultiheadAttention(8, 2), {"binding": "sigmoid"}, "use hadamard, residual or"),
        (nn.MultiheadAttention(8, 2), {"binding": "nothing"}, "there is no binding"),
    ],
)
def test_what_would_compute_something_else_is_refused(attention, options, message):
    model = nn.ModuleList([attention])
    with pytest.raises(SettingsError, match=message):
        tpt.add_roles(model, **options)
    assert model[0] is attention
