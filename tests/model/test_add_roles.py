"""add_roles: models of torch's modules compute the same, and then learn roles."""

import copy

import pytest
import torch
from torch import nn

import tp_transformer as tpt
from tp_transformer import TPMultiheadAttention
from tp_transformer.errors import SettingsError
from tp_transformer.model.trace import trace

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True"
)


class VisionTransformer(nn.Module):
    """Patches by a convolution, a class token, positions, an encoder, a classifier."""

    def __init__(self, **options):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, kernel_size=4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 5, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, images):
        state = self.patches(images).flatten(2).transpose(1, 2)
        state = torch.cat([self.token.expand(len(images), -1, -1), state], dim=1)
        return self.head(self.encoder(state + self.positions)[:, 0])


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
        (VisionTransformer(dropout=0.0), (torch.randn(3, 3, 8, 8),), {}),
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


def test_training_only_the_roles_lowers_the_loss():
    model = VisionTransformer(dropout=0.0)
    images, labels = torch.randn(24, 3, 8, 8), torch.arange(24) % 3
    model.requires_grad_(False)
    tpt.add_roles(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 2
    optimizer = torch.optim.Adam(trained, 0.03)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]


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
