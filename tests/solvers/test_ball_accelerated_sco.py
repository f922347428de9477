"""Private SCO by ball acceleration: blocks, budgets, and an error below that of a single run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import losses, users
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.item_level import ball_accelerated_sco

ABSOLUTE = losses.absolute(1.0)
SIZES = {"dim": 5, "delta": 1e-6, "initial_distance": 1.0, "smoothing_radius": 0.2}


def test_losses_and_sizes_that_have_no_plan_are_refused():
    with pytest.raises(ValueError, match="whole space"):
        ball_accelerated_sco.plan(
            losses.squared(1.0, 1.0, 1.0), num_users=1000, epsilon=1.0, **SIZES
        )
    with pytest.raises(ValueError, match="num_blocks"):
        ball_accelerated_sco.plan(ABSOLUTE, num_users=8, epsilon=1.0, num_blocks=4, **SIZES)


@pytest.mark.slow
def test_localization_finds_the_minimizer_of_forty_thousand_users():
    num_users = 40_000
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(5)
    truth *= 0.7 / np.linalg.norm(truth)
    rows = rng.standard_normal((num_users, 1, 5))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    labels = rows @ truth + 0.05 * rng.standard_normal((num_users, 1))
    data = UserData(Example(jnp.asarray(rows, jnp.float32), jnp.asarray(labels, jnp.float32)))
    plan = ball_accelerated_sco.plan(ABSOLUTE, num_users=num_users, epsilon=1.0, **SIZES)
    sizes = [block.num_users for block in plan.blocks]
    assert sizes == [num_users >> i for i in range(1, len(sizes) + 1)]
    assert len(sizes) >= 3
    assert plan.omitted
    np.testing.assert_allclose(plan.regularizations[1:] / plan.regularizations[:-1], 8.0)
    assert plan.certificate().epsilon <= 1.0
    solve = jax.jit(lambda k, p, d: ball_accelerated_sco.solve(k, p, ABSOLUTE, d, jnp.zeros(5)))
    found = solve(jax.random.key(0), plan, data)
    loss = users.mean_loss(ABSOLUTE)
    start, best, reached = (
        float(loss(jnp.asarray(w, jnp.float32), data)) for w in (np.zeros(5), truth, found.params)
    )
    assert start - best > 0.15
    assert reached - best < 0.003
    worst = max(float(block.loss.rdp[40]) for block in plan.blocks)
    assert float(found.privacy.rdp[40]) <= worst * (1 + 1e-5), "blocks are paid for in parallel"
