"""Section N of docs/corrections.md, stochastic gradients: the printed claim fails, ours holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import elements
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.element_level import sgd

USERS, SLOTS, DIM = 4, 5, 3
BALL = Objective(lambda w, z: jnp.sum((w - z) ** 2) / 2, 4.0, 1.0, domains.ball(2.0))


def _plan(objective, **given):
    problem = Problem(objective, num_users=USERS, dim=DIM)
    sizes = {"num_steps": 8, "elements_per_user": SLOTS, "step_size": 0.1, "accountant": "rdp"}
    return sgd.plan(problem, Budget(2.0, 1e-3), **sizes | given)


def test_n13_algorithm_1_and_the_update_together_ascend():
    rng = np.random.default_rng(0)
    records = (1.0 + 0.1 * rng.standard_normal((USERS, SLOTS, 1, DIM))).astype(np.float32)

    def project(w):
        return w * min(1.0, 2.0 / np.linalg.norm(w))

    def loss(w):
        return np.mean(np.sum((w - records) ** 2, axis=-1)) / 2

    printed = np.full(DIM, 0.5)
    for _ in range(8):
        total = np.zeros(DIM)
        for z in records.reshape(-1, DIM):
            after = project(printed - 0.1 * (printed - z))
            total += (after - printed) / 0.1  # Algorithm 1
        printed = project(printed - 0.1 * total / USERS)  # equation (15)
    start = np.full(DIM, 0.5)
    assert loss(printed) > loss(start)

    plan = _plan(BALL, sampling="full").replace(noise_multiplier=0.0)
    data = ElementData(records, None)
    run = jax.jit(lambda p: sgd.solve(jax.random.key(0), p, BALL, data, jnp.full(DIM, 0.5)))
    found = run(plan).params
    assert loss(np.asarray(found)) < 0.5 * loss(start)
    assert elements.mean_element_loss(BALL)(found, data) == pytest.approx(
        SLOTS * loss(np.asarray(found)), rel=1e-5
    )


def test_n14_corollary_3_2_speaks_of_users():
    """Noise K∧M times larger covers a user whole: of one element it says much more than it is printed to."""
    given = {"batch_size": 2, "num_steps": 1, "sampling": "user"}
    linear = Objective(lambda w, z: jnp.vdot(z, w), 1.0, 1e-3, domains.whole_space())
    most = 3  # items that a user has at most
    baseline = _plan(linear, cap=float(min(SLOTS, most)), protects="user", **given)
    element = _plan(linear, batch_size=2, num_steps=1)
    # Corollary 3.1's multiplier, over the clip norm, times K∧M.
    assert baseline.noise_multiplier == element.noise_multiplier
    assert baseline.noise_stddev == pytest.approx(most * element.noise_stddev)
    # What it covers is a user who turns round: by 2·min(K, M) clip norms.
    sigma = float(baseline.noise_stddev) * baseline.batch_size
    far = 2.0 * most / sigma
    cut, drawn = -far / 2, 0.5
    ahead, behind = (
        (1 - drawn) * stats.norm.sf(cut) + drawn * stats.norm.sf(cut - s * far / 2)
        for s in (1.0, -1.0)
    )
    user, delta = baseline.certificate(), 1e-3
    assert ahead - np.exp(user.epsilon) * behind <= delta
    assert any("one user, with all elements" in line for line in user.assumptions)
    # The same noise, read as the print has it, for one element: it is far more private than that.
    per_element = baseline.replace(
        protects="element", noise_multiplier=most * baseline.noise_multiplier
    )
    assert per_element.noise_stddev == pytest.approx(baseline.noise_stddev)
    assert per_element.certificate().epsilon < 0.6 * user.epsilon
