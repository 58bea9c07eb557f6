"""The collision of section 6.2, to machine precision."""

import numpy as np
import pytest

from tp_transformer import UserError
from tp_transformer.interpret.binding.simplified import STRUCTURES, SimplifiedNetwork, simplified


def network_and_states(d_model=5, seed=0):
    rng = np.random.default_rng(seed)
    return SimplifiedNetwork.random(d_model, rng), rng.standard_normal((5, d_model))


@pytest.mark.parametrize("seed", range(3))
def test_the_network_is_that_of_the_equations(seed):
    """Equations 9 to 11, written down term by term."""
    network, states = network_and_states(seed=seed)
    a, b, c, d, e = states

    def o(layer, vector):
        return network.outputs[layer] @ vector

    def v(layer, vector):
        return network.values[layer] @ vector

    def r(vector):
        return network.role @ vector + network.role_bias

    standard = e + o(1, v(1, a + c + o(0, v(0, b)) + o(0, v(0, d)))) / 2
    for structure in STRUCTURES:
        before, after = network.read(states, structure, "standard")
        np.testing.assert_array_equal(before, e)
        np.testing.assert_allclose(after, standard, rtol=1e-12)
    bound = e + o(1, v(1, a + c + o(0, v(0, b) * r(a)) + o(0, v(0, d) * r(c)))) / 2
    np.testing.assert_allclose(network.read(states, STRUCTURES[0], "tp")[1], bound, rtol=1e-12)
    bound = e + o(1, v(1, a + c + o(0, v(0, d) * r(a)) + o(0, v(0, b) * r(c)))) / 2
    np.testing.assert_allclose(network.read(states, STRUCTURES[1], "tp")[1], bound, rtol=1e-12)


def test_standard_attention_collides_to_machine_precision_and_tp_attention_does_not():
    found = simplified(draws=20, seed=1)
    assert found.distances["standard"].shape == (len(found.sizes), 20)
    assert found.distances["standard"].max() < 1e-14
    assert found.distances["equal roles"].max() < 1e-14
    assert found.distances["tp"].min() > 1e-3
    assert np.median(found.distances["tp"]) > 0.3


def test_one_dimension_and_one_draw_are_enough():
    found = simplified([1], draws=1)
    assert found.distances["standard"][0, 0] < 1e-14 < found.distances["tp"][0, 0]
    for wrong in ({"sizes": []}, {"sizes": [0]}, {"draws": 0}):
        with pytest.raises(UserError, match="at least"):
            simplified(**wrong)
