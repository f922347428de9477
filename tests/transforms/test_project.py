"""Project: the parameters stay in the domain."""

import jax.numpy as jnp
import numpy as np
import optax

from dpsco_jax import transforms
from dpsco_jax.geometry import domains


def test_project_is_projected_gradient_descent(rng):
    ball = domains.ball(1.0)
    transformation = optax.chain(optax.sgd(0.5), transforms.project(ball))
    params = ours = jnp.array([0.9, 0.1, 0.0])
    state = transformation.init(params)
    for gradient in jnp.float32(rng.normal(size=(10, 3))):
        moves, state = transformation.update(gradient, state, ours)
        ours = optax.apply_updates(ours, moves)
        params = params - 0.5 * gradient
        params = params / jnp.maximum(1.0, jnp.linalg.norm(params))
        np.testing.assert_allclose(ours, params, atol=1e-6)
        assert ball.contains(ours, 1e-6)
