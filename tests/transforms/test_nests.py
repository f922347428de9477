"""The point to report is found in any nest of optax's wrappers, masked and partitioned ones included."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpsco_jax import transforms
from dpsco_jax.geometry import domains

PARAMS = {"w": {"x": jnp.asarray([1.0, 2.0]), "y": jnp.asarray(3.0)}, "b": jnp.asarray([4.0])}
FIRST = {"w": True, "b": False}
LABELS = {"w": "first", "b": "second"}
KINDS = {
    "average": (lambda: transforms.average(), transforms.average_eval_params),
    "ac_sa": (lambda: transforms.ac_sa(4.0), transforms.ac_sa_eval_params),
}


def run(transformation, params, steps=6):
    """Gradient steps on ‖w‖²/2, with a separable method: each leaf moves as if it were alone."""
    state = transformation.init(params)
    for _ in range(steps):
        gradients = jax.tree.map(lambda p: 0.1 * p, params)
        moves, state = transformation.update(gradients, state, params)
        params = optax.apply_updates(params, moves)
    return params, state


def assert_same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_leaves_are_those_of_the_caller(kind):
    make, eval_params = KINDS[kind]
    params, state = run(optax.chain(optax.masked(make(), FIRST)), PARAMS)
    found = eval_params(state, params)
    assert jax.tree.structure(found) == jax.tree.structure(params)
    alone, alone_state = run(make(), PARAMS)
    assert_same(found["w"], eval_params(alone_state, alone)["w"])
    np.testing.assert_array_equal(found["b"], params["b"])


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_of_a_partition_reports_its_own(kind):
    make, eval_params = KINDS[kind]
    both = optax.partition({"first": make(), "second": make()}, LABELS)
    one = optax.partition({"first": make(), "second": optax.identity()}, LABELS)
    alone, alone_state = run(make(), PARAMS)
    expected = eval_params(alone_state, alone)
    params, state = run(both, PARAMS)
    assert_same(eval_params(state, params), expected)
    params, state = run(one, PARAMS)
    found = eval_params(state, params)
    assert_same(found["w"], expected["w"])
    np.testing.assert_array_equal(found["b"], params["b"])


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_deep_nest(kind):
    make, eval_params = KINDS[kind]

    def nested(scale):
        return optax.chain(optax.scale(scale), optax.masked(optax.chain(make()), FIRST))

    deep = optax.chain(
        optax.identity(),
        optax.MultiSteps(optax.inject_hyperparams(nested)(1.0), 1).gradient_transformation(),
    )
    params, state = run(deep, PARAMS)
    alone, alone_state = run(make(), PARAMS)
    assert_same(eval_params(state, params)["w"], eval_params(alone_state, alone)["w"])


def test_a_restarted_method_under_a_mask():
    method = transforms.restart_every(
        transforms.ac_sa(4.0, domain=domains.ball(50.0)), 3, transforms.ac_sa_eval_params
    )
    params, state = run(optax.masked(method, FIRST), PARAMS, steps=7)
    alone, alone_state = run(method, {"w": PARAMS["w"]}, steps=7)
    assert_same(params["w"], alone["w"])
    expected = transforms.ac_sa_eval_params(alone_state, alone)["w"]
    assert_same(transforms.ac_sa_eval_params(state, params)["w"], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_none_or_two_for_one_parameter_are_refused(kind):
    make, eval_params = KINDS[kind]
    state = make().init(PARAMS)
    masked = optax.masked(make(), FIRST).init(PARAMS)
    for wrong in (optax.EmptyState(), (state, state), (masked, masked), (state, masked)):
        with pytest.raises(ValueError, match="state must be one"):
            eval_params(wrong, PARAMS)
