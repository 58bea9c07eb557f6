"""Bindings against their definitions, and the laws that make them bindings."""

import pytest
import torch

import reference
from tp_transformer.foundation.errors import SettingsError
from tp_transformer.model.binding import BINDINGS, LowRankBinding, make_binding

OPTIONS = {"low-rank": {"rank": 7}}


def binding_of(name: str, n_heads: int = 3, d_head: int = 5):
    return make_binding(name, n_heads, d_head, OPTIONS.get(name, {})).double()


@pytest.mark.parametrize("d_head", [1, 2, 5, 8])
@pytest.mark.parametrize("name", BINDINGS)
def test_equals_the_definition(name, d_head):
    binding = binding_of(name, d_head=d_head)
    filler, role = torch.randn(2, 4, 3, 6, d_head, dtype=torch.float64)
    bound = binding(filler, role)
    assert bound.shape == (4, 3, 6, binding.d_bound)
    for batch, head, position in [(0, 0, 0), (3, 2, 5), (1, 1, 3)]:
        projections = {}
        if isinstance(binding, LowRankBinding):
            projections = {
                "m": binding.filler_projection[head],
                "n": binding.role_projection[head],
            }
        at = (batch, head, position)
        expected = reference.bind(name, filler[at], role[at], **projections)
        torch.testing.assert_close(bound[at], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", BINDINGS)
def test_exchanging_the_fillers_changes_the_structure_only_where_there_are_roles(name):
    binding = binding_of(name)
    a, b, r1, r2 = torch.randn(4, 1, 3, 1, 5, dtype=torch.float64)
    distance = ((binding(a, r1) + binding(b, r2)) - (binding(a, r2) + binding(b, r1))).norm()
    if name == "none":
        assert distance < 1e-14
    else:
        assert distance > 0.1


@pytest.mark.parametrize("name", [name for name in BINDINGS if name != "none"])
def test_is_linear_in_filler_and_in_role(name):
    binding = binding_of(name)
    f, g, r, s = torch.randn(4, 2, 3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(binding(2 * f + g, r), 2 * binding(f, r) + binding(g, r))
    torch.testing.assert_close(binding(f, 2 * r + s), 2 * binding(f, r) + binding(f, s))


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


def test_unit_projections_of_rank_d_head_are_the_hadamard_product():
    low_rank = make_binding("low-rank", 2, 5, {"rank": 5}).double()
    for projection in low_rank.parameters():
        projection.data.copy_(torch.eye(5).expand(2, -1, -1))
    filler, role = torch.randn(2, 1, 2, 4, 5, dtype=torch.float64)
    assert torch.equal(low_rank(filler, role), filler * role)


@pytest.mark.parametrize("name", BINDINGS)
def test_works_in_bfloat16_and_keeps_the_type(name):
    binding = make_binding(name, 2, 8, OPTIONS.get(name, {}))
    filler, role = torch.randn(2, 1, 2, 4, 8)
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
    ],
)
def test_refuses_what_is_not_a_binding(name, options, message):
    with pytest.raises(SettingsError, match=message):
        make_binding(name, 2, 4, options)
