"""What every private step must obey, end to end: each test here is one that a planted fault must fail.

The faults are in ``tests/support/mutants.py``; ``tests/test_mutants.py`` plants them one by one.
"""

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem, privacy, transforms
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.oracles import gradients, sampling
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.user_level import sgd
from tests.support.neighbours import worst_pair
from tests.support.replay import assert_no_leak
from tests.support.tested import phase

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
USERS, DIM = 4, 6


def _release(aggregate, data, key=0, noise_multiplier=1.0, steps=1, mask=None):
    chain = transforms.privatize(aggregate, jax.random.key(key), noise_multiplier)
    extra = {} if mask is None else {"user_mask": mask}

    @jax.jit
    def run(data):
        state = chain.init(data[0])
        released = []
        for _ in range(steps):
            out, state = chain.update(data, state, **extra)
            released.append(out)
        return jnp.stack(released), privacy.privacy_spent(state)

    return run(data)


def _worst(relation, dtype=jnp.float32, divisor=2.0):
    aggregate = transforms.clipped_mean(1.0, divisor, relation)

    def statistic(data, mask):
        return aggregate.update(data, aggregate.init(None), user_mask=mask)[0]

    found = worst_pair(statistic, USERS, (DIM,), relation, dtype=dtype, rounds=8)
    return found.distance, float(aggregate.sensitivity)


def test_noise_has_the_standard_deviation_that_is_charged():
    aggregate = transforms.clipped_mean(3.0, 5.0, REPLACE)
    released, _ = _release(aggregate, jnp.zeros((2, 40_000)), noise_multiplier=2.0)
    # 40,000 draws: the standard error of the standard deviation is 0.35 %.
    np.testing.assert_allclose(released.std(), 2.0 * (2 * 3.0 / 5.0), rtol=0.02)


def test_replacing_a_user_moves_the_mean_by_at_most_its_sensitivity():
    distance, sensitivity = _worst(REPLACE)
    assert 0.98 * sensitivity < distance <= sensitivity * (1 + 1e-6)


def test_removing_a_user_moves_the_mean_by_at_most_its_sensitivity():
    distance, sensitivity = _worst(ADD_REMOVE)
    assert 0.98 * sensitivity < distance <= sensitivity * (1 + 1e-6)


def test_half_precision_contributions_obey_the_bound():
    distance, sensitivity = _worst(REPLACE, jnp.float16)
    assert distance <= sensitivity * (1 + 1e-6)


def test_a_nan_user_counts_as_nobody():
    data = jnp.ones((USERS, DIM)).at[0, 1].set(jnp.nan)
    aggregate = transforms.clipped_mean(1.0, USERS)
    mask = jnp.arange(USERS) > 0
    poisoned, _ = _release(aggregate, data)
    absent, _ = _release(aggregate, data.at[0].set(1.0), mask=mask)
    np.testing.assert_array_equal(poisoned, absent)


def test_padding_users_do_not_reach_the_release():
    mask = jnp.arange(USERS) < 2
    data = jnp.ones((USERS, DIM))
    aggregate = transforms.clipped_mean(1.0, USERS)
    first, _ = _release(aggregate, data, mask=mask)
    second, _ = _release(aggregate, data.at[2:].set(-7.0), mask=mask)
    np.testing.assert_array_equal(first, second)


def test_every_step_draws_fresh_noise():
    released, _ = _release(transforms.clipped_mean(1.0, USERS), jnp.zeros((USERS, DIM)), steps=3)
    assert len(np.unique(released)) == released.size


def test_noise_follows_the_key():
    aggregate = transforms.clipped_mean(1.0, USERS)
    first, _ = _release(aggregate, jnp.zeros((USERS, DIM)), key=0)
    second, _ = _release(aggregate, jnp.zeros((USERS, DIM)), key=1)
    assert not np.any(first == second)


def test_every_step_is_charged():
    _, spent = _release(transforms.clipped_mean(1.0, USERS), jnp.zeros((USERS, DIM)), steps=7)
    # Seven Gaussian releases of multiplier 1 are one of multiplier 1/sqrt(7): α·7/2 at each order.
    np.testing.assert_allclose(spent.rdp, 3.5 * privacy.ORDERS, rtol=1e-5)


def test_repetition_is_counted():
    loss = privacy.scale(privacy.gaussian(2.0), 12)
    np.testing.assert_allclose(loss.rdp, 12 * privacy.ORDERS / 8.0, rtol=1e-12)


def _problem(seed):
    objective = losses.logistic(feature_bound=1.0)
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((12, 3, DIM)).astype(np.float32) * 10.0**seed
    label = (generator.random((12, 3)) < 0.5).astype(np.float32)
    data = UserData(Example(jnp.asarray(features), jnp.asarray(label)))
    return objective, data


def _solve(data, scheme):
    objective, _ = _problem(0)
    plan = sgd.plan(
        Problem(objective, num_users=12, dim=DIM),
        Budget(epsilon=2.0, delta=1e-3),
        num_steps=4,
        clip_norm=0.5,
        step_size=0.3,
        **scheme,
    )
    solve = jax.jit(
        lambda data: sgd.solve(jax.random.key(5), plan, objective, data, jnp.zeros(DIM))
    )
    solution = solve(data)
    return solution.params, solution.privacy, solution.status


def test_the_solver_sees_its_data_through_releases_only():
    for scheme in (
        {"sampling": "poisson", "batch_size": 6},
        {"sampling": "fixed", "batch_size": 6},
    ):
        assert_no_leak(lambda data: _solve(data, scheme), _problem(0)[1], _problem(1)[1])  # noqa: B023


def test_removing_a_user_moves_the_clipped_gradient_sum_by_at_most_the_clip():
    objective, data = _problem(0)
    gradient = gradients.user_gradient(objective)
    oracle = gradients.clipped_gradient_sum(gradient, 0.01)
    total = jax.jit(lambda data: oracle(jax.random.key(0), jnp.zeros(DIM), data).gradient)
    everybody = total(data)
    for user in range(12):
        others = jax.tree.map(lambda x: np.delete(x, user, axis=0), data)  # noqa: B023
        without = total(others)
        assert np.linalg.norm(np.float64(everybody) - np.float64(without)) <= 0.01 * (1 + 1e-4)


def test_poisson_samples_are_redrawn_and_of_the_right_rate():
    keys = jax.random.split(jax.random.key(0), 4000)
    counts = jax.jit(jax.vmap(lambda key: sampling.poisson(key, 50, 0.2).size))(keys)
    # The mean of 4,000 binomials has standard error 0.045, the variance one of 0.18.
    np.testing.assert_allclose(np.mean(counts), 10.0, atol=0.2)
    np.testing.assert_allclose(np.var(counts), 8.0, atol=0.8)


def _outlier_removed(users, steps, **numbers):
    plan = {"threshold": 1.0, "test_epsilon": 400.0, "noise_stddev": 0.1} | numbers
    releases = phase(users, steps, **plan)

    def run(key, data):
        mean = transforms.outlier_removed_mean(releases, 0.5, key)

        def step(state, _):
            out, state = mean.update(data, state)
            return state, (out, state.halted)

        return jax.lax.scan(step, mean.init(data[0]), length=steps)[1]

    return jax.jit(run)


def test_who_is_near_whom_does_not_depend_on_a_third():
    generator = np.random.default_rng(0)
    data = generator.standard_normal((40, DIM)).astype(np.float32)
    count = jax.jit(lambda data: concentrated_mean.concentration(data, 1.5).degrees)
    degrees = count(data)
    for record in (0.0, 1e3, 1e6, 3e38):
        moved = data.copy()
        moved[0] = record
        assert np.max(np.abs(count(moved)[1:] - degrees[1:])) <= 1


def test_one_noisy_threshold_serves_all_steps():
    trials = 20_000
    run = _outlier_removed(2, 3, threshold=2.0, test_epsilon=1.0)
    keys = jax.random.split(jax.random.key(0), trials)
    halted = jax.vmap(run, (0, None))(keys, jnp.zeros((2, 1)))[1]
    # Scores at the threshold pass three tests with 3/16; with a threshold drawn in each step, 1/8.
    np.testing.assert_allclose(np.mean(~halted[:, -1]), 3 / 16, atol=0.014)


def test_the_outlier_removed_mean_has_the_noise_of_its_plan():
    released = _outlier_removed(2, 1)(jax.random.key(0), jnp.zeros((2, 20_000)))[0]
    # The margin of the comparisons in 20,000 dimensions is a few percent.
    assert 0.95 * 0.1 * 0.5 < np.std(released) < 1.2 * 0.1 * 0.5
