"""DP-SGD pulled to its start: its steps, its noise, the law of its points, and what its plan claims."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.rates import dimension_free
from dpsco_jax.solvers import first_order
from dpsco_jax.solvers.item_level import regularized_sgd
from dpsco_jax.solvers.user_level import sgd

USERS, DIM, STEPS = 12, 3, 9
LOSS = losses.huber(1.0)
PROBLEM = Problem(LOSS, num_users=USERS, dim=DIM, distance=1.0)
BUDGET = Budget(2.0, 1e-3)
FALLING = (1.0, 0.5, 0.1, 0.0)
BY_RECORD = Objective(
    loss=lambda w, z: jnp.vdot(z, w),
    lipschitz=1.0,
    smoothness=1e-3,
    domain=domains.whole_space(),
)


def _data():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((USERS, 1, DIM)).astype(np.float32)
    return UserData(Example(rows, rng.standard_normal((USERS, 1)).astype(np.float32)))


@pytest.mark.parametrize("sampling", ["single", "full"])
def test_without_noise_and_pull_it_is_sgd_bit_for_bit(sampling):
    data, start = _data(), jnp.full(DIM, 0.3)
    given = {"num_steps": STEPS, "accountant": "rdp"}  # of either, the noise is not kept
    plan = regularized_sgd.plan(PROBLEM, BUDGET, sampling=sampling, **given)
    plan = plan.replace(noise_multiplier=0.0, pull=0.0, step_size=0.2)
    size = {"batch_size": 1} if sampling == "single" else {}
    kind = "fixed" if sampling == "single" else "full"
    plain = sgd.plan(PROBLEM, BUDGET, sampling=kind, **size, **given)
    plain = plain.replace(noise_multiplier=0.0, step_size=0.2)
    # Traced: a concrete plan without noise is refused.
    found, base = (
        jax.jit(lambda k, p, solver=solver: solver.solve(k, p, LOSS, data, start))(
            jax.random.key(3), p
        )
        for solver, p in ((regularized_sgd, plan), (sgd, plain))
    )
    np.testing.assert_array_equal(found.params, base.params)
    assert int(found.gradients) == int(base.gradients) == plan.user_gradients


@pytest.mark.parametrize(("regularization", "clip_norm"), [(0.0, 2.0), (0.7, 0.4)])
def test_steps_are_those_of_the_recursion(regularization, clip_norm):
    """Full batches, clipped, pulled to the start and not to the origin; the average is reported."""
    plan = regularized_sgd.plan(
        PROBLEM,
        BUDGET,
        num_steps=STEPS,
        step_size=0.3,
        regularization=regularization,
        clip_norm=clip_norm,
    )
    plan = plan.replace(noise_multiplier=0.0)
    data, start, key = _data(), np.array([0.5, -2.0, 1.0]), jax.random.key(0)
    solve = jax.jit(lambda plan: regularized_sgd.solve(key, plan, LOSS, data, jnp.asarray(start)))
    found = solve(plan).params

    rows = np.asarray(data.items.features[:, 0], float)
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=-1, keepdims=True))
    point, total = start.copy(), np.zeros(DIM)
    for _ in range(STEPS):
        slopes = np.clip(rows @ point - np.asarray(data.items.label[:, 0], float), -1, 1)
        each = slopes[:, None] * rows
        each *= np.minimum(1.0, clip_norm / np.linalg.norm(each, axis=1, keepdims=True))
        point = point - 0.3 * (each.mean(0) + regularization * (point - start))
        total += point / STEPS
    np.testing.assert_allclose(found, total, rtol=2e-5)


def _zero(dim):
    """A loss that does not depend on the point, of one user; each coordinate is a chain of its own."""
    objective = BY_RECORD._replace(loss=lambda w, z: 0.0 * jnp.vdot(z, w))
    return objective, UserData(jnp.zeros((1, 1, dim))), jnp.zeros(dim)


def test_the_noise_of_a_step_is_normal_and_as_large_as_planned():
    dim = 100_000
    objective, data, start = _zero(dim)
    problem = Problem(objective, num_users=1, dim=dim, distance=1.0)
    plan = regularized_sgd.plan(
        problem, BUDGET, num_steps=1, sampling="single", step_size=0.25, clip_norm=3.0
    )
    moved = regularized_sgd.solve(jax.random.key(5), plan, objective, data, start).params
    # The thesis's multiplier is over G, ours over the 2G by which a replaced user moves the gradient.
    theirs = 2 * plan.noise_multiplier
    noise = np.asarray(moved) / (-0.25 * 3.0 * theirs)
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert stats.kstest(noise * 1.05, "norm").pvalue < 1e-3


def test_without_gradients_points_are_an_autoregression():
    dim, eta, alpha, steps = 40_000, 0.2, 0.8, 60
    objective, data, start = _zero(dim)
    problem = Problem(objective, num_users=1, dim=dim, distance=1.0)
    plan = regularized_sgd.plan(
        problem, BUDGET, num_steps=steps, sampling="single", step_size=eta, regularization=alpha
    )
    trace = lambda params, opt_state, estimate: jnp.mean(params**2)  # noqa: E731
    found = regularized_sgd.solve(jax.random.key(6), plan, objective, data, start, trace)
    stationary = (eta * 2 * plan.noise_multiplier) ** 2 / (1 - (1 - eta * alpha) ** 2)
    assert float(found.unprivate["trace"][-1]) == pytest.approx(stationary, rel=0.03)


@pytest.mark.parametrize(
    ("users", "steps", "epsilon", "delta", "sigma"),
    [
        (100, 10**4, 1.0, 1e-5, 8.886),
        pytest.param(1000, 10**4, 1.0, 1e-6, 2.038, marks=pytest.mark.slow),
        pytest.param(1000, 10**6, 2.0, 1e-6, 5.572, marks=pytest.mark.slow),
        pytest.param(10_000, 10**8, 2.0, 1e-6, 5.573, marks=pytest.mark.slow),
    ],
)
def test_single_draws_need_no_more_noise_than_by_renyi_divergences(
    users, steps, epsilon, delta, sigma
):
    """``sigma`` is the least of an independent Rényi accountant, over G and not over 2G."""
    problem = dataclasses.replace(PROBLEM, num_users=users)
    plan = regularized_sgd.plan(problem, Budget(epsilon, delta), sampling="single", num_steps=steps)
    theirs = 2 * plan.noise_multiplier
    assert 0.8 * sigma < theirs <= sigma
    certificate = plan.certificate()
    assert certificate.epsilon <= epsilon < 1.01 * certificate.epsilon
    half = plan.replace(noise_multiplier=plan.noise_multiplier / 2).certificate()
    assert half.epsilon > 1.5 * epsilon


def test_full_batches_are_one_gaussian():
    plan = regularized_sgd.plan(PROBLEM, BUDGET, num_steps=STEPS)
    alone = privacy.certificate(
        privacy.events.gaussian(plan.noise_multiplier / math.sqrt(STEPS)),
        BUDGET.delta,
        plan.certificate().relation,
    )
    assert plan.certificate().epsilon == pytest.approx(alone.epsilon, rel=1e-4)
    assert plan.mean.noise_stddev(DIM) == pytest.approx(2 * plan.noise_multiplier / USERS)


@pytest.mark.parametrize("constants", ["tight", "paper"])
@pytest.mark.parametrize("risk", ["empirical", "population"])
def test_the_bound_is_that_of_the_numbers_that_run(constants, risk):
    plan = regularized_sgd.plan(
        PROBLEM,
        BUDGET,
        sampling="single",
        num_steps=5000,
        coefficients=FALLING,
        accountant="rdp",
        risk=risk,
        constants=constants,
    )
    of = (
        dimension_free.excess_bound if constants == "tight" else dimension_free.printed_excess_bound
    )
    stddev = float(plan.mean.noise_stddev(DIM))
    bound = of(
        FALLING,
        int(plan.rank),
        lipschitz=1.0,
        distance=1.0,
        stddev=stddev,
        num_steps=5000,
        step_size=plan.step_size,
        regularization=plan.pull,
    )
    if risk == "population":
        bound += 2 * plan.step_size * math.sqrt(5000) + 4 * plan.step_size * 5000 / USERS
    assert plan.excess_bound == pytest.approx(bound)
    assert plan.step_size * plan.pull <= 0.5
    if constants == "paper":
        variance = plan.rank * stddev**2 + (5000 / USERS if risk == "population" else 0)
        assert plan.step_size == pytest.approx(1 / math.sqrt(5000 * variance))
        assert plan.pull == dimension_free.regularization(FALLING, int(plan.rank), 1.0)


@pytest.mark.parametrize("given", [{}, {"step_size": 0.01}, {"regularization": 0.4}])
def test_tight_numbers_are_the_best_there_are(given):
    known = np.append(np.arange(1.0, 3001) ** -1.5, 0.0)
    problem = Problem(LOSS, num_users=200, dim=3000, distance=3.0)
    made = regularized_sgd.plan(problem, BUDGET, coefficients=known, **given)
    fields = {"regularization": "pull"}
    assert all(getattr(made, fields.get(name, name)) == value for name, value in given.items())
    setting = {
        "lipschitz": 1.0,
        "distance": 3.0,
        "stddev": float(made.mean.noise_stddev(1)),
        "num_steps": 200,
    }
    eta, alpha = np.meshgrid(np.geomspace(1e-4, 10, 300), np.geomspace(1e-4, 10, 301))
    eta = np.full_like(eta, given["step_size"]) if "step_size" in given else eta
    alpha = np.full_like(alpha, given["regularization"]) if "regularization" in given else alpha
    best = min(
        np.min(
            dimension_free.excess_bound(known, k, step_size=eta, regularization=alpha, **setting)
        )
        for k in dimension_free.ranks(3000)
    )
    assert 0.98 * best <= made.excess_bound <= best * (1 + 1e-6)
    blind = regularized_sgd.plan(problem, BUDGET)
    assert made.rank < 3000
    assert given or made.excess_bound < blind.excess_bound / 2
    assert (blind.rank, blind.pull) == (3000, 0.0)
    plain = sgd.plan(problem, BUDGET, num_steps=200, sampling="full")
    assert blind.excess_bound == pytest.approx(plain.excess_bound, rel=0.01)


def test_nothing_is_claimed_where_nothing_is_proven():
    # Clipped below the Lipschitz constant, with a ridge, on a bounded domain.
    small = regularized_sgd.plan(PROBLEM, BUDGET, clip_norm=0.5)
    ridged = regularized_sgd.plan(
        dataclasses.replace(PROBLEM, objective=losses.huber(1.0, ridge=0.1)), BUDGET
    )
    bounded = regularized_sgd.plan(
        dataclasses.replace(PROBLEM, objective=losses.huber(1.0, domain=domains.ball(2.0))), BUDGET
    )
    assert {small.excess_bound, ridged.excess_bound, bounded.excess_bound} == {math.inf}
    assert regularized_sgd.plan(PROBLEM, BUDGET).excess_bound < math.inf


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"step_size": 2.0, "regularization": 0.3}, "step_size"),
        ({"step_size": 2.0, "regularization": 0.3, "constants": "paper"}, "step_size"),
        ({"coefficients": FALLING, "rank": 1, "step_size": 5.0, "constants": "paper"}, "step_size"),
        ({"coefficients": (1.0, 0.0)}, "coefficients"),
        ({"coefficients": (1.0, 0.5, 0.6, 0.0)}, "coefficients"),
        ({"coefficients": (1.0, 0.5, 0.1, 0.1)}, "coefficients"),
        ({"coefficients": (1.0, -0.5, -0.5, -0.5)}, "coefficients"),
        ({"rank": 4}, "rank"),
    ],
)
def test_bad_arguments_are_refused_by_name(given, name):
    with pytest.raises(ValueError, match=name):
        regularized_sgd.plan(PROBLEM, BUDGET, **given)


def test_the_theorem_s_number_of_steps_is_planned_where_it_can_be_counted():
    problem = Problem(LOSS, num_users=30, dim=100, distance=1.0)
    plan = regularized_sgd.plan(problem, BUDGET, sampling="single", accountant="rdp")
    assert plan.num_steps == 900 + math.ceil(100 * math.log2(100) ** 2)
    assert regularized_sgd.plan(problem, BUDGET).num_steps == 200
    with pytest.raises(ValueError, match="num_steps must be"):
        regularized_sgd.plan(
            dataclasses.replace(problem, num_users=10**5), Budget(2.0, 1e-6), sampling="single"
        )
    with pytest.raises(ValueError, match="distance must be"):
        regularized_sgd.plan(dataclasses.replace(problem, distance=None), BUDGET)


def test_the_pull_is_not_clipped_and_has_no_noise():
    """However far from the start a point is, two runs from starts with the same differences are the same."""
    plan = regularized_sgd.plan(PROBLEM, BUDGET, num_steps=STEPS, step_size=0.1, regularization=3.0)
    objective, data = BY_RECORD, UserData(jnp.zeros((USERS, 1, DIM)).at[:, 0, 0].set(1.0))
    plan = plan.replace(made_for=None)
    ends = [
        np.asarray(
            regularized_sgd.solve(jax.random.key(2), plan, objective, data, start).params - start
        )
        for start in (jnp.zeros(DIM), jnp.full(DIM, 64.0))
    ]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-4)
    assert first_order.Pull(1.0).centre is None
