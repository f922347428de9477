"""The peer that sees values only: its differences, its clip and its steps against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import geometry
from dpsco_jax.oracles import smoothed
from dpsco_jax.problems import losses
from experiments.studies import table_dp_sgd
from experiments.studies.peers import zeroth_order_sgd as peer

ROWS = np.array([[0.6, 0.0], [0.0, 0.8], [-0.6, 0.6]])
LABELS = np.array([2.0, -1.0, 5.0])


def test_differences_are_directional_derivatives_and_clipped_together():
    objective = losses.absolute(1.0)
    directions = jnp.asarray(np.array([[1.0, 0.0], [0.0, 1.0]]))
    found = smoothed.two_point_slopes(
        objective.linear_model,
        jnp.asarray(ROWS),
        jnp.asarray(LABELS),
        jnp.zeros(2),
        directions,
        1e-2,
        10.0,
    )
    # At zero |m - y| falls in the direction of the label.
    np.testing.assert_allclose(found, -np.sign(LABELS)[:, None] * ROWS, atol=1e-5)
    clipped = smoothed.two_point_slopes(
        objective.linear_model,
        jnp.asarray(ROWS),
        jnp.asarray(LABELS),
        jnp.zeros(2),
        directions,
        1e-2,
        0.1,
    )
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), 0.1, rtol=1e-5)
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(clipped, 0.1 * found / lengths, atol=1e-5)


def test_one_user_moves_the_mean_by_no_more_than_the_noise_is_made_for():
    objective = losses.absolute(1.0)
    generator = np.random.default_rng(0)
    directions = jnp.asarray(np.linalg.qr(generator.standard_normal((2, 2)))[0])
    worst = 0.0
    for _ in range(50):
        rows = generator.standard_normal((2, 3, 2))
        labels = generator.standard_normal((2, 3)) * 10
        rows[1, 1:], labels[1, 1:] = rows[0, 1:], labels[0, 1:]
        means = [
            smoothed.two_point_slopes(
                objective.linear_model,
                jnp.asarray(r),
                jnp.asarray(y),
                jnp.ones(2),
                directions,
                0.1,
                0.5,
            ).mean(axis=0)
            for r, y in zip(rows, labels, strict=True)
        ]
        worst = max(worst, float(jnp.linalg.norm(means[0] - means[1])))
    assert 0.25 < worst <= 2 * 0.5 / 3 * (1 + 1e-6)


def test_without_noise_it_descends_and_averages_are_those_of_its_points():
    objective = losses.absolute(1.0, domain=geometry.ball(4.0))
    rows, labels = jnp.asarray(np.eye(2)), jnp.asarray(np.array([1.0, -2.0]))
    quiet = peer.Plan(noise_multiplier=0.0, clip=10.0, path=8.0, width=1e-2, decay=1.0)
    found = peer.solve(jax.random.key(0), quiet, objective, rows, labels, 400, 2)
    np.testing.assert_allclose(found[0], labels, atol=0.02)
    one = peer.solve(jax.random.key(0), quiet, objective, rows, labels, 1, 2)
    np.testing.assert_allclose(one, np.broadcast_to(one[0], one.shape))
    # One step: minus path times the mean gradient.
    np.testing.assert_allclose(one[0], 8.0 * np.array([0.5, -0.5]) * (4 / (32**0.5)), rtol=1e-4)


def test_noise_is_that_of_the_accountant():
    made = peer.plan(1.0, 1e-4, 7, 0.5, 1.0, 0.1, False)
    assert made.noise_multiplier == table_dp_sgd.multiplier(7, 1.0, 1e-4)
    objective = losses.absolute(1.0)
    rows, labels = jnp.zeros((4, 3)), jnp.zeros(4)
    single = made._replace(noise_multiplier=3.0, path=1.0)
    keys = jax.random.split(jax.random.key(1), 4000)
    ends = jax.vmap(lambda key: peer.solve(key, single, objective, rows, labels, 1, 3)[0])(keys)
    stddev = 3.0 * 2 * 0.5 / 4
    assert float(jnp.std(ends)) == pytest.approx(stddev, rel=4 / (2 * ends.size) ** 0.5)
    assert peer.value_queries(10, 7, 3) == 420
