"""Bindings against their definitions, and the laws that make them bindings."""

import pytest
import torch

import reference
from tp_transformer.errors import SettingsError
from tp_transformer.model.binding import BINDINGS, make_binding

OPTIONS = {"low-rank": {"rank": 7}, "dictionary": {"n_roles": 4}}
VARIANTS = [
    *((name, OPTIONS.get(name, {})) for name in BINDINGS),
    ("sigmoid", {"per_head": True}),
    ("dictionary", {"n_roles": 1}),
    ("dictionary", {"n_roles": 5}),  # as many as a head has dimensions
]


def binding_of(name: str, n_heads: int = 3, d_head: int = 5, options=None):
    options = OPTIONS.get(name, {}) if options is None else options
    binding = make_binding(name, n_heads, d_head, options).double()
    if name == "constant":
        torch.nn.init.normal_(binding.role)  # at first it is one
    return binding


def roles_for(binding, *shape):
    """Random roles for fillers of a shape (…, head, position), or None."""
    if not binding.d_role:
        return None
    return torch.randn(*shape, binding.d_role, dtype=torch.float64)


def learned_by(binding, head):
    """The parameters of a head, by the names of the transcription."""
    names = {"filler_projection": "m", "role_projection": "n", "roles": "dictionary"}
    learned = {}
    for name, parameter in binding.named_parameters():
        if name == "role":
            learned["constant"] = parameter.chunk(binding.n_heads)[head]
        else:
            learned[names[name]] = parameter if name == "roles" else parameter[head]
    return learned


@pytest.mark.parametrize("d_head", [1, 2, 5, 8])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_equals_the_definition(name, options, d_head):
    binding = binding_of(name, d_head=d_head, options=options)
    filler = torch.randn(4, 3, 6, d_head, dtype=torch.float64)
    role = roles_for(binding, 4, 3, 6)
    bound = binding(filler, role)
    assert bound.shape == (4, 3, 6, binding.d_bound)
    for at in [(0, 0, 0), (3, 2, 5), (1, 1, 3)]:
        own = None if role is None else role[at]
        expected = reference.bind(name, filler[at], own, **learned_by(binding, at[1]))
        torch.testing.assert_close(bound[at], expected, rtol=1e-12, atol=1e-13)


def test_a_constant_role_begins_as_plain_attention():
    filler = torch.randn(2, 3, 4, 5)
    assert torch.equal(make_binding("constant", 3, 5, {})(filler, None), filler)


def test_the_roles_of_a_dictionary_count_by_their_direction_alone():
    binding = binding_of("dictionary")
    filler, role = torch.randn(2, 3, 4, 5, dtype=torch.float64), roles_for(binding, 2, 3, 4)
    before = binding(filler, role)
    with torch.no_grad():
        binding.roles *= torch.tensor([0.1, 2.0, 7.0, 30.0])[:, None]
    torch.testing.assert_close(binding(filler, role), before)
    selected = torch.full((2, 3, 4, 4), -1e4, dtype=torch.float64)
    selected[..., 2] = 0
    ratio = binding(filler, selected) / filler - 1
    torch.testing.assert_close(ratio.norm(dim=-1), torch.ones(2, 3, 4, dtype=torch.float64))


@pytest.mark.parametrize(("one_hot", "exclusive"), [(0.7, 0.0), (0.0, 0.3), (2.0, 5.0)])
def test_the_penalties_of_a_dictionary_are_those_of_its_source(one_hot, exclusive):
    options = {"n_roles": 4, "one_hot": one_hot, "exclusive": exclusive}
    binding = binding_of("dictionary", options=options)
    role = roles_for(binding, 2, 3, 6)
    found = binding.penalty(role)
    assert found.shape == (2, 6)
    for batch, position in [(0, 0), (1, 5)]:
        weights = [role[batch, head, position].softmax(dim=0).tolist() for head in range(3)]
        scattered = sum(w * (1 - w) for own in weights for w in own)
        totals = [sum(own[which] for own in weights) for which in range(4)]
        shared = sum((total * (1 - total)) ** 2 for total in totals)
        expected = (one_hot * scattered + exclusive * shared) / 3
        assert found[batch, position].item() == pytest.approx(expected, rel=1e-9)


def test_penalties_vanish_where_every_head_selects_a_role_of_its_own():
    binding = binding_of("dictionary", options={"n_roles": 4, "one_hot": 1.0, "exclusive": 1.0})
    own = 200.0 * torch.eye(4, dtype=torch.float64)[:3, None].expand(1, -1, -1, -1)
    same = own[:, :1].expand(-1, 3, -1, -1)
    assert binding.penalty(own).item() == pytest.approx(0.0, abs=1e-12)
    assert binding.penalty(same).item() == pytest.approx((3 * 2) ** 2 / 3)
    assert all(not binding_of(name).has_penalty for name in BINDINGS)


def test_the_diagonal_of_the_tensor_product_is_the_hadamard_product():
    filler, role = torch.randn(2, 1, 3, 4, 5, dtype=torch.float64)
    diagonal = torch.arange(5) * 6
    tensor, hadamard = binding_of("tensor")(filler, role), binding_of("hadamard")(filler, role)
    assert torch.equal(tensor[..., diagonal], hadamard)


def test_full_rank_can_equal_the_tensor_product():
    low_rank = make_binding("low-rank", 3, 5, {"rank": 25}).double()
    first, second = torch.arange(25) // 5, torch.arange(25) % 5
    with torch.no_grad():
        low_rank.filler_projection.copy_(torch.eye(5).double()[first].expand(3, -1, -1))
        low_rank.role_projection.copy_(torch.eye(5).double()[second].expand(3, -1, -1))
    filler, role = torch.randn(2, 2, 3, 4, 5, dtype=torch.float64)
    assert torch.equal(low_rank(filler, role), binding_of("tensor")(filler, role))


@pytest.mark.parametrize("name", BINDINGS)
def test_works_in_bfloat16_and_keeps_the_type(name):
    binding = make_binding(name, 2, 8, OPTIONS.get(name, {}))
    filler, role = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, binding.d_role or 8)
    exact = binding(filler, role)
    rounded = binding.bfloat16()(filler.bfloat16(), role.bfloat16())
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.15)


def test_convolution_starts_at_the_scale_of_its_filler():
    binding = make_binding("convolution", 1, 64, {})
    filler, role = torch.randn(2, 2000, 1, 1, 64)
    bound = binding(filler, role * binding.role_gain)
    assert bound.std().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hadamrd", {}, "did you mean 'hadamard'"),
        ("low-rank", {}, "needs a rank"),
        ("low-rank", {"rank": None}, "needs a rank"),
        ("low-rank", {"rank": 0}, "rank of the low-rank binding must be from 1"),
        ("low-rank", {"rang": 3}, "did you mean 'rank'"),
        ("tensor", {"rank": 4}, "the tensor binding has no rank"),
        ("sigmoid", {"per_head": "yes"}, "per_head of the sigmoid binding must be true or false"),
        ("dictionary", {"n_roles": 0}, "n_roles of the dictionary binding must be from 1"),
        ("dictionary", {"one_hot": -1}, "one_hot of the dictionary binding must be 0 or more"),
        ("silu", {"per_head": True}, "the silu binding has no per_head"),
    ],
)
def test_refuses_what_is_not_a_binding(name, options, message):
    with pytest.raises(SettingsError, match=message):
        make_binding(name, 2, 4, options)
