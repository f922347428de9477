"""Section S of docs/corrections.md: the printed claim fails, ours holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.problems import concentration, losses
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status, _sequence
from dpsco_jax.solvers.user_level import localized_sgd, multipass_sgd, phased_sgd
from tests.support.planned import planned

ROUGH = losses.geometric_median(domains.ball(1.0))


def test_s1_a_ball_of_radius_tau_has_diameter_two_tau():
    vectors = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)
    radius = float(np.linalg.norm(vectors, axis=1).max())  # all are within it of the origin
    score = jax.jit(lambda r: concentrated_mean.concentration(vectors, r).score)
    assert score(radius) < 0.05 * 300, "the printed score radius: Lemma 3.7 says 300"
    assert score(2 * radius) == 300


def test_s2_one_test_for_all_steps():
    """T calls of Algorithm 1, each at the whole budget, cost far more than one call with T queries."""
    objective = _mean_estimation(domains.ball(1.0))
    plan = planned(
        multipass_sgd.plan,
        objective,
        num_users=800,
        items_per_user=10,
        dim=2,
        epsilon=1.0,
        delta=1e-5,
        num_steps=20,
        radius=0.05,
    )
    assert plan.certificate().epsilon <= 1.0
    called_anew = privacy.scale(privacy.compose(plan.loss()), plan.num_steps)
    assert privacy.epsilon(called_anew, 1e-4) > 10.0


def test_s2_a_halt_stays_in_the_domain():
    """Algorithm 31 outputs 0 when it halts, which here is far outside of the domain."""
    center = jnp.asarray([5.0, 0.0])
    objective = _mean_estimation(domains.ball(1.0, center))
    camps = jnp.where(jnp.arange(40)[:, None, None] % 4 < 2, 1.0, -1.0) * jnp.ones((40, 2, 2))
    plan = planned(
        phased_sgd.plan,
        objective,
        num_users=40,
        items_per_user=2,
        dim=2,
        epsilon=8.0,
        delta=1e-3,
        num_groups=20,
        num_phases=1,
        step_size=0.2,
        radius=0.005,
    )
    run = jax.jit(
        lambda key, plan: phased_sgd.solve(key, plan, objective, UserData(center + camps), center)
    )
    solution = run(jax.random.key(0), plan)
    assert solution.status == Status.HALTED
    np.testing.assert_array_equal(solution.params, center)
    assert not objective.domain.contains(jnp.zeros(2), 1e-3)
    # Line 22 adds noise and does not project; the next phase needs its start in the domain.
    loud = plan.releases.__class__(
        **(vars(plan.releases) | {"threshold": -1e9, "noise_stddev": 1e4})
    )
    loud = plan.__class__(**(vars(plan) | {"releases": loud}))
    moved = run(jax.random.key(0), loud)
    assert moved.status == Status.OK
    np.testing.assert_allclose(
        np.linalg.norm(np.asarray(moved.params) - 5 * np.eye(2)[0]), 1.0, rtol=1e-4
    )


def test_s3_the_step_of_the_smooth_bound():
    """½βx² from 1 without noise: with step η the bound fails, with 1/(β + 1/η) it holds."""
    beta, num_steps = 1.0, 20

    def average_gap(step):
        path = (1 - step * beta) ** np.arange(1, num_steps + 1)
        return 0.5 * beta * np.mean(path**2)

    for eta in (0.1, 1.0, 3.0, 10.0):
        bound = (beta + 1 / eta) / num_steps
        assert average_gap(1 / (beta + 1 / eta)) <= bound / 2, "ours, with the half that is due"
        assert (average_gap(eta) > bound) == (eta > 2 / beta)
    # The paper's η·β is (d/T)^(1/4)·T^(-3/4+3/4) at most, above 2 where T is below d/16.
    problem = Problem(ROUGH, num_users=10**4, items_per_user=10**4, dim=10**6, distance=1.0)
    printed = multipass_sgd._printed(problem, Budget(8.0, 1e-6), 10**3)
    curvature = math.sqrt(problem.dim) / printed.smoothing_radius
    assert printed.eta * curvature > 2
    sizes = 10**3, 0.0, printed.smoothing_radius, printed.eta
    step = multipass_sgd._step(problem, "per_item", *sizes)
    assert step.step_size < printed.eta / 2
    assert step.step_size * curvature < 2


def test_s4_no_pure_mechanism_is_near():
    """Publishing each record with probability δ is (0, δ)-DP; each pure one is farther than δ from it."""
    n, delta, epsilon, universe = 100, 0.01, 1.0, 10**9
    shown = 1 - (1 - delta) ** n
    # A pure 2ε-DP mechanism that names k records on average names one of the data's by luck only.
    lucky = n * math.exp(2 * epsilon) / universe
    assert shown - lucky > 60 * delta


def test_s4_the_deviation_along_a_trajectory():
    """Users on a sphere; the second query looks along the noisy mean that the first has released."""
    n, dim, stddev, threshold, runs = 5, 10, 0.2, 0.6, 40_000
    rng = np.random.default_rng(0)
    users = rng.normal(size=(runs, n, dim))
    users /= np.linalg.norm(users, axis=-1, keepdims=True)
    released = users.mean(1) + stddev * rng.normal(size=(runs, dim))
    direction = released / np.linalg.norm(released, axis=-1, keepdims=True)
    adaptive = np.mean(np.einsum("rnd,rd->rn", users, direction) > threshold)
    fixed = np.mean(users[:, :, 0] > threshold)
    gdp = 2 / (n * stddev)
    assert adaptive > 1.5 * fixed, "a query that was computed from the data finds more outliers"
    assert adaptive <= special.ndtr(special.ndtri(fixed) + gdp)
    # Where the failure counts: at n·T·δ of order one, Lemma 4.6 says nothing, this still does.
    sizes = {"lipschitz": 1.0, "items_per_user": 100, "num_users": 5000, "num_steps": 1000}
    ours = concentration.trajectory_gradient_radius(**sizes, gdp=0.02, failure=1e-6)
    assert ours < concentration.user_gradient_radius(*sizes.values(), 1.0, 1e-6) * 1.02
    assert 5000 * 1000 * 1e-6 > 1


def test_s5_the_localization_schedule():
    gap, error_0 = 2.0, 1e-6  # D_0 and E_0, with E_i/E_(i+1) = 4 as in the regime of privacy
    errors = [error_0 / 4**i for i in range(12)]
    printed = [16 * errors[i] * (gap / (16 * error_0)) ** (1 / 2**i) for i in range(12)]
    assert printed[0] == pytest.approx(gap)
    for i in range(11):
        ratios = [printed[j] / (16 * errors[j]) for j in (i, i + 1)]
        # The printed middle has the 2^i-th root where the 2^(i+1)-th belongs.
        assert ratios[1] == pytest.approx(math.sqrt(ratios[0]))
        assert ratios[1] < ratios[0]
        assert math.sqrt(printed[i] * errors[i + 1]) <= printed[i + 1] * (1 + 1e-12)
    for items in (2.0**16, 2.0**20, 2.0**32):
        start = items  # the most that D_0/(16E_0) can be
        base_two = math.ceil(math.log2(math.log2(items)))
        natural = math.ceil(math.log(math.log(items)))
        assert start ** (1 / 2**base_two) <= 2 * (1 + 1e-12)
        assert start ** (1 / 2**natural) > 2
    # The first block has down to n/(2·log₂(mn)) users, not n/log₂(mn).
    users, items = 20_000, 100
    blocks = localized_sgd.printed_num_blocks(users, items)
    level = math.log2(users * items)
    assert users / (2 * level) <= users >> blocks < users / level


def test_s6_phases_use_all_users():
    users = 1024
    printed = [users // 2 ** (i + 1) for i in range(1, 11)]  # q = 1, from i = 1
    assert sum(printed) < users / 2
    ours = _sequence.block_sizes(users, 0.5, 9)
    assert sum(ours) == users
    assert ours[0] > 0.49 * users


def test_s6_the_printed_condition_lets_groups_be_empty():
    n, m, epsilon, delta, q = 15_000, 10, 10.0, 1e-6, 0.07
    decay = 1 - 0.5**q
    assert n ** (1 - q) >= 100 / decay * math.log(n / delta) / epsilon, "the theorem's condition"
    groups = 100 * math.log(20 * n * m * math.exp(epsilon) / delta) / epsilon
    last = decay * n * 2.0 ** (-q * math.floor(math.log2(n)))
    assert last < groups
    objective = _mean_estimation(domains.ball(1.0))
    settings = {
        "num_users": 10_000,
        "items_per_user": m,
        "dim": 2,
        "epsilon": epsilon,
        "delta": delta,
    }
    with pytest.raises(ValueError, match=r"num_users must be .*at least"):
        planned(phased_sgd.plan, objective, constants="paper", **settings)
    assert min(planned(phased_sgd.plan, objective, **settings).group_users) >= 1


def test_s7_smoothing_earns_nothing():
    for dim in (1, 10, 1000):
        for num_steps in (10, 1000, 10**6):
            for stddev in (0.0, 0.1, 10.0):
                bounds = {}
                for how in ("none", "per_item", "per_round"):
                    sizes = {"num_users": 1000, "items_per_user": 100, "dim": dim}
                    problem = Problem(ROUGH, **sizes, distance=1.0)
                    radius = multipass_sgd._balanced_radius(problem, num_steps)
                    radius = 0.0 if how == "none" else radius
                    found = multipass_sgd._step(problem, how, num_steps, stddev, radius)
                    bounds[how] = found.excess_bound
                assert bounds["none"] < 1.15 * bounds["per_item"]
                if num_steps <= 1000 or dim == 1000:
                    assert bounds["none"] < 1.05 * bounds["per_round"]


def _mean_estimation(domain):
    return Objective(
        loss=lambda w, z: 0.5 * jnp.sum((w - z) ** 2),
        lipschitz=4.0,
        smoothness=1.0,
        domain=domain,
        loss_strong_convexity=1.0,
    )
