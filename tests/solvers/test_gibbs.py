"""The Gibbs mechanism: its law, its ε by two proofs, how often proposals count, and what its cap costs."""

import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, nonconvex_losses
from dpsco_jax.problems.objective import Example, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import _gibbs_numbers as numbers
from dpsco_jax.solvers.nonconvex import gibbs
from dpsco_jax.solvers.sampling import _cells, chain_lengths, log_sobolev
from dpsco_jax.solvers.user_level import sgd

pytestmark = pytest.mark.usefixtures("float64")

CENTER, RADIUS = 0.5, 1.5
LINE = domains.ball(RADIUS, np.array([CENTER]))
SCALE = 0.3
WELSCH = nonconvex_losses.welsch(1.0, scale=SCALE, domain=LINE)
GRID = CENTER + RADIUS * (2 * (np.arange(40_000) + 0.5) / 40_000 - 1)


def capped(params, item):
    """item·min(‖x‖, 0.7), a claim of slope 1 that holds for items within [-1, 1] only."""
    return item * jnp.minimum(jnp.linalg.norm(params), 0.7)


CAPPED = Objective(loss=capped, lipschitz=1.0, smoothness=None, domain=LINE)


def rows(features, labels):
    features = jnp.asarray(features, jnp.float64)
    return UserData(Example(features[:, None], jnp.asarray(labels, jnp.float64)[:, None]))


def two_wells(number):
    """Labels at both ends of the line for features of one, in the ratio of two to one."""
    return rows(np.ones((number, 1)), np.where(np.arange(number) % 3 == 0, 1.7, -0.7))


def planned(objective=WELSCH, number=40, dim=1, epsilon=1.0, delta=0.0, **given):
    problem = Problem(objective, num_users=number, dim=dim)
    return gibbs.plan(problem, Budget(epsilon, delta, allow_large_delta=True), **given)


@functools.cache
def program(objective):
    @jax.jit
    def run(keys, plan, data):
        def one(key):
            found = gibbs.solve(key, plan, objective, data, jnp.zeros(plan.dim))
            return found.params, found.unprivate["trials"]

        return jax.lax.map(one, keys)

    return run


def draws(plan, objective, data, count, seed=0):
    found = program(objective)(jax.random.split(jax.random.key(seed), count), plan, data)
    return jax.tree.map(np.asarray, found)


def welsch_risk(x, data):
    """F on a line, by NumPy."""
    features = np.asarray(data.items.features)[:, 0, 0]
    labels = np.asarray(data.items.label)[:, 0]
    squares = ((x[:, None] * features - labels) / SCALE) ** 2
    return SCALE**2 * np.mean(1.0 - np.exp(-squares / 2), axis=1)


def distribution(logs):
    mass = np.exp(logs - logs.max())
    return functools.partial(np.interp, xp=GRID, fp=(np.cumsum(mass) - 0.5 * mass) / mass.sum())


# -- numbers


def test_the_temperature_of_the_log_sobolev_proof_solves_its_equation():
    table = {
        (10**3, 1, 1.0): 5.62,
        (10**5, 1, 1.0): 13.13,
        (10**5, 5, 0.5): 13.34,
        (10**7, 2, 1.0): 22.01,
    }
    for (n, d, epsilon), known in table.items():
        rho = numbers.zcdp_within(epsilon, 1e-6)
        assert rho + 2 * math.sqrt(rho * math.log(1e6)) == pytest.approx(epsilon, rel=1e-12)
        u = numbers.concentrated_exponent(n, d, rho)
        assert u == pytest.approx(known, abs=0.005)
        assert 2 * u**2 * math.exp(u) / (d * n**2) / rho == pytest.approx(1.0, abs=1e-9)


def test_the_cost_by_a_log_sobolev_constant_is_that_of_linear_losses():
    """⟨z, x⟩ with a regularizer: Gaussians of variance 1/(kμ), at a distance of 2L/(nμ)."""
    slope, k, mu, n, radius = 2.0, 7.0, 0.3, 50, 3.0
    w = k * mu * radius**2
    exact = type("Gaussians", (numbers.LogSobolev,), {"rate": w})(k * slope * radius, w)
    found = numbers.concentrated(k * slope * radius, w, n, exact)
    shift, variance = 2 * slope / (n * mu), 1 / (k * mu)
    assert found == pytest.approx(shift**2 / (2 * variance), rel=1e-12)
    assert found == pytest.approx(0.0746667, abs=5e-8)
    # Nothing is proven of what is steeper or less bent.
    for v, bend in ((1.01 * exact.v, w), (exact.v, 0.99 * w), (math.nan, w)):
        assert numbers.concentrated(v, bend, n, exact) == math.inf


@pytest.mark.parametrize("dim", [1, 2, 7])
def test_how_often_a_proposal_counts_at_least(dim):
    for v, w in ((0.01, 0.0), (1.0, 0.0), (6.0, 0.0), (3.0, 2.0), (20.0, 10.0)):
        base = lambda t, sign: t ** (dim - 1) * math.exp(sign * v * t - w * t * t / 2)  # noqa: B023, E731
        exact = [integrate.quad(base, 0, 1, args=(sign,), epsabs=0)[0] for sign in (-1, 1)]
        found = float(numbers.acceptance(v, w, dim))
        assert found == pytest.approx(exact[0] / exact[1], rel=1e-8)
        assert math.exp(-2 * v) < found <= exact[0] / exact[1]
    # Beyond what nodes resolve it is the bound that always holds.
    assert float(numbers.acceptance(30.0, 0.0, dim)) == pytest.approx(math.exp(-60), rel=1e-8)
    assert float(numbers.acceptance(1.0, 0.0, 100)) == pytest.approx(math.exp(-2), rel=1e-8)


def test_the_worst_losses_attain_the_acceptance():
    """Everybody's loss rises from the centre with slope L."""

    def cone(params, item):
        return item * jnp.linalg.norm(params - CENTER)

    objective = Objective(loss=cone, lipschitz=1.0, smoothness=None, domain=LINE)
    plan = planned(objective, 20, epsilon=1.0)
    p = float(plan.acceptance)
    proposals = 0
    for seed in range(3):
        _, trials = draws(plan, objective, UserData(jnp.ones((20, 1))), 100, seed)
        proposals += trials.sum()
    # Blocks in which none counts: (1 - p)^64 of all.
    blocks, none = proposals / 64, proposals / 64 - 300
    chance = (1 - p) ** 64
    assert 0.2 < chance < 0.9
    assert abs(none / blocks - chance) < 4 * math.sqrt(chance * (1 - chance) / blocks)


# -- the law


@pytest.mark.parametrize("constants", ["tight", "paper"])
def test_draws_follow_the_law_of_a_double_well(constants):
    delta = 1e-6 if constants == "paper" else 0.0
    plan = planned(number=45, epsilon=0.6, delta=delta, constants=constants)
    data, count = two_wells(45), 1000
    points, _ = draws(plan, WELSCH, data, count)
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    logs = -k * (welsch_risk(GRID, data) + mu / 2 * (GRID - CENTER) ** 2)
    assert stats.kstest(points[:, 0], distribution(logs)).statistic < 1.95 / math.sqrt(count)
    # Two modes, and the barrier between them, which the warmer law of the paper hardly sees.
    density = np.exp(logs - logs.max())
    inner, outer = density[np.abs(GRID - 0.4) < 0.3].min(), density[GRID > 1.0].max()
    assert inner < (0.5 if constants == "tight" else 0.999) * outer < density[GRID < 0.0].max()


def test_in_two_dimensions_the_law_is_that_of_the_formula():
    objective = nonconvex_losses.welsch(1.0, domain=domains.ball(1.0))
    rng = np.random.default_rng(4)
    features, labels = rng.standard_normal((30, 2)), 1 + rng.standard_normal(30)
    features[:, 0] += 1
    plan = planned(objective, 30, 2, epsilon=0.5)
    points, _ = draws(plan, objective, rows(features, labels), 2000)
    features = features / np.maximum(1, np.linalg.norm(features, axis=1, keepdims=True))
    marks = (np.arange(400) + 0.5) / 200 - 1
    x = np.stack(np.meshgrid(marks, marks, indexing="ij"), axis=-1).reshape(-1, 2)
    x = x[np.linalg.norm(x, axis=1) <= 1]
    risk = np.mean(1 - np.exp(-((x @ features.T - labels) ** 2) / 2), axis=1)
    mass = np.exp(-float(plan.inverse_temperature) * risk)
    mass /= mass.sum()
    moments = lambda p: np.stack([p[:, 0], p[:, 1], np.sum(p * p, 1), p[:, 0] * p[:, 1]], axis=1)  # noqa: E731
    exact, seen = mass @ moments(x), moments(points)
    errors = np.abs(seen.mean(axis=0) - exact) / (seen.std(axis=0) / math.sqrt(len(seen)))
    assert np.all(errors < 4)
    assert np.max(np.linalg.norm(points, axis=1)) <= 1.0
    # Not the uniform law.
    assert np.max(np.abs(moments(x).mean(axis=0) - exact)) > 0.05


def test_a_capped_loop_ends_in_a_proposal_and_its_density_is_within_the_slack():
    plan = planned(number=100, epsilon=0.8, most_proposals=10**6).replace(num_proposals=64.0)
    v, k = float(plan.steepness), float(plan.inverse_temperature)
    slope, way = plan.lipschitz, np.abs(GRID - CENTER)
    data = two_wells(100)
    risk = welsch_risk(GRID, data)
    moved = np.clip(risk - np.interp(CENTER, GRID, risk), -slope * way, slope * way)
    q = np.exp(k * slope * (way - RADIUS))
    q /= q.sum()
    weights = np.exp(-k * (moved + slope * way))
    target = q * weights / (q @ weights)
    failing = (1 - q @ weights) ** 64
    law = (1 - failing) * target + failing * q
    assert 0.05 < failing < 0.95
    points, trials = draws(plan, WELSCH, data, 1500, 5)
    cdf = functools.partial(np.interp, xp=GRID, fp=np.cumsum(law) - 0.5 * law)
    assert np.all(trials == 64)
    assert stats.kstest(points[:, 0], cdf).statistic < 1.95 / math.sqrt(1500)
    off = plan.slack
    ratio = np.log(law / target)
    assert -float(off.below) <= ratio.min() < ratio.max() <= float(off.above)
    assert (
        float(off.above) < math.log1p((1 - float(plan.acceptance)) ** 64 * math.exp(2 * v)) + 1e-6
    )
    # So few proposals cost more than the budget, and the certificate says so.
    assert plan.certificate().epsilon > 0.8 + 2 * float(off.above)


# -- privacy


def neighbours(number):
    """Two data sets that differ in one user, as far as they can: everybody else has no slope at all."""
    far = np.full(number, 1e6)
    return [rows(np.full((number, 1), s), np.append(far[1:], y)) for s, y in ((1, 1.5), (1, -0.5))]


@pytest.mark.parametrize("number", [3, 12])
def test_divergences_of_neighbours_are_below_both_proofs(number):
    plan = planned(number=number, epsilon=1.0, delta=1e-3, constants="paper")
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    rho, spent = float(plan.concentration), float(plan.range)
    assert rho < math.inf
    steep = plan.lipschitz * (GRID - CENTER)
    # Double wells, and linear losses along the line, which are the worst there are for the range.
    pairs = [[welsch_risk(GRID, data) for data in neighbours(number)]]
    pairs += [[(s + (number - 1) * other) * steep / number for s in (1, -1)] for other in (0, 1)]
    for one, other in (pair[::way] for pair in pairs for way in (1, -1)):
        logs = [-k * (risk + mu / 2 * (GRID - CENTER) ** 2) for risk in (one, other)]
        p, q = (log - np.log(np.sum(np.exp(log))) for log in logs)
        assert np.ptp(p - q) <= spent
        for order in (1.5, 2.0, 8.0):
            divergence = math.log(np.sum(np.exp(order * p + (1 - order) * q))) / (order - 1)
            assert divergence <= order * rho
            assert divergence <= order * spent**2 / 8
    assert np.ptp(p - q) > 0.99 * 4 * k * plan.lipschitz * RADIUS / number


def test_what_a_user_moves_is_clipped_whatever_the_loss_is():
    plan = planned(CAPPED, 6)
    offsets = jnp.asarray(np.linspace(-RADIUS, RADIUS, 41)[:, None])
    items = np.array([0.3, -0.2, 1.0, -1.0, 0.7, 0.0])
    found = []
    for last in (0.0, 1.0, -1.0, 50.0, -1e300, math.inf, math.nan):
        data = UserData(jnp.asarray(np.append(items[:-1], last))[:, None])
        sums = jax.jit(
            lambda data: _cells.clipped_sums(CAPPED, data, jnp.array([CENTER]), 1.0, RADIUS)(
                offsets
            )
        )
        found.append(np.asarray(sums(data)))
    bounds = 2 * np.abs(np.asarray(offsets)[:, 0])
    moved = max(np.max(np.abs(a - b) - bounds) for a in found for b in found)
    assert -0.01 < moved <= 0.0
    k = float(plan.inverse_temperature)
    assert max(np.ptp(a - b) for a in found for b in found) * k / 6 <= float(plan.range)


def test_nothing_but_which_proposal_counts_depends_on_data():
    def coins(key, sums, offsets, plan):
        return jax.random.uniform(key, sums.shape) < 0.01

    plan = planned(number=12)
    with mock.patch.object(gibbs, "_count", coins):
        run = jax.jit(lambda data: gibbs.solve(jax.random.key(3), plan, WELSCH, data, jnp.zeros(1)))
        one, other = run(two_wells(12)), run(rows(np.full((12, 1), np.nan), np.ones(12)))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_loop_in_which_nothing_counts_ends_in_a_fresh_proposal():
    plan, key = planned(number=12).replace(num_proposals=64.0), jax.random.key(3)
    with mock.patch.object(gibbs, "_count", lambda key, sums, *_: jnp.zeros(sums.shape, bool)):
        run = jax.jit(lambda key: gibbs.solve(key, plan, WELSCH, two_wells(12), jnp.zeros(1)))
        found = run(key).params
    with jax.debug_key_reuse(False):
        own = jax.random.split(key)[0]
        fresh = jax.jit(lambda key: gibbs._proposals(key, plan, 1))(own)
    np.testing.assert_allclose(found, CENTER + fresh[0], rtol=1e-12)
    # A loop that hardly ever draws proves nothing.
    assert float(numbers.slack(10.0, 0.0, 1, 1.0).below) == math.inf


def test_an_edited_plan_says_what_it_costs():
    plan = planned(number=25, delta=1e-6)
    assert plan.certificate().epsilon == pytest.approx(1.0, abs=2e-6)
    assert plan.certificate().delta == 0.0
    hotter = plan.replace(inverse_temperature=0.5 * plan.inverse_temperature)
    assert hotter.certificate().epsilon == pytest.approx(0.5, abs=2e-6)
    bent = plan.replace(regularization=0.1)
    assert bent.certificate().epsilon <= 1.0
    for wrong in (
        plan.replace(inverse_temperature=-1.0),
        plan.replace(inverse_temperature=math.inf),
        plan.replace(radius=math.nan),
        plan.replace(regularization=-1.0),
        plan.replace(num_proposals=0.0),
        plan.replace(lipschitz=0.0),
    ):
        assert wrong.certificate().epsilon == math.inf
        assert not np.any(np.isfinite(wrong.loss().rdp))
    assert (
        plan.replace(inverse_temperature=20.0 * plan.inverse_temperature).certificate().epsilon > 20
    )


def test_the_log_sobolev_proof_is_charged_where_it_says_less():
    """Few users and many parameters, where no bound on the risk says anything."""
    objective = nonconvex_losses.welsch(1.0, domain=domains.ball(1.0))
    plan = planned(objective, 3, 50, delta=1e-6, constants="paper")
    found, spent = plan.certificate(), float(plan.range)
    assert found.epsilon < 0.75 * spent
    assert found.delta == 1e-6
    assert plan.excess_bound == 2 * plan.lipschitz
    rho = float(plan.concentration)
    np.testing.assert_allclose(plan.loss().rdp[:40], rho * privacy.ORDERS[:40], rtol=1e-4)
    assert np.all(plan.loss().rdp <= privacy.bounded_range(spent).rdp)
    # It is not proven for a colder law, nor for a flatter regularizer; the range always is.
    colder = plan.replace(inverse_temperature=1.01 * plan.inverse_temperature)
    flatter = plan.replace(regularization=0.9 * plan.regularization)
    for other in (colder, flatter):
        assert float(other.concentration) == math.inf
        assert other.certificate().epsilon == float(other.range)


# -- plans


def test_mean_risks_are_below_the_bounds_of_plans():
    for number, constants in ((60, "tight"), (10**4, "tight"), (60, "paper"), (10**4, "paper")):
        plan = planned(number=number, delta=1e-6, constants=constants)
        k, mu = float(plan.inverse_temperature), float(plan.regularization)
        cone = plan.lipschitz * np.abs(GRID - CENTER + RADIUS)  # the minimizer at an end
        # A narrow well that about half of the mass misses: there the logarithm is needed.
        depth = math.log(max(float(plan.steepness), 1.1)) / k
        well = np.minimum(plan.lipschitz * np.abs(GRID - CENTER), depth)
        for risk in (
            welsch_risk(GRID, two_wells(60)),
            cone,
            well,
            -plan.lipschitz * np.abs(GRID - CENTER),
        ):
            logs = -k * (risk + mu / 2 * (GRID - CENTER) ** 2)
            mass = np.exp(logs - logs.max())
            assert mass @ risk / mass.sum() - risk.min() <= plan.excess_bound
    assert plan.excess_bound < 0.5 * 2 * plan.lipschitz * RADIUS


def test_what_limits_a_plan():
    few = planned(number=20)
    assert float(few.range) == pytest.approx(1.0, abs=2e-6)
    many = planned(number=10**5)
    assert 0.9e5 < float(many.num_proposals) <= 1e5
    assert float(many.range) < 1e-3
    more = planned(number=10**5, most_proposals=10**6)
    assert more.excess_bound < many.excess_bound
    assert 2.0 < float(more.steepness - many.steepness) < math.log(10.0) + 0.1
    # For the law that users come from what a draw learns of few of them costs something.
    both = [planned(number=30, epsilon=4.0, risk=risk) for risk in ("empirical", "population")]
    assert both[1].inverse_temperature < 0.9 * both[0].inverse_temperature
    k = float(both[1].inverse_temperature)
    warmer = both[1].replace(inverse_temperature=0.8 * k)
    colder = both[1].replace(inverse_temperature=1.25 * k)
    assert both[1].excess_bound < min(gibbs._excess(warmer, True), gibbs._excess(colder, True))
    # The temperature of the paper, by its own proof.
    paper = planned(number=1000, delta=1e-6, constants="paper")
    assert 2 * float(paper.steepness) == pytest.approx(5.6217, rel=1e-4)
    assert float(paper.bend) == pytest.approx(0.25, rel=1e-9)
    assert float(paper.concentration) <= numbers.zcdp_within(1.0, 1e-6)
    assert "zCDP" in str(paper)
    assert "acceptance" in str(many)


def test_noisy_gradient_descent_is_the_baseline():
    """Full batches: μ² = T·(2L/(nσ))², on losses that are not convex, of which no risk is claimed."""
    plan = sgd.plan(
        Problem(WELSCH, num_users=200, dim=1, distance=1.0),
        Budget(1.0, 1e-5),
        num_steps=50,
        sampling="full",
    )
    stddev = float(plan.noise_multiplier) * 2 * WELSCH.lipschitz / 200
    mu = math.sqrt(50) * 2 * WELSCH.lipschitz / (200 * stddev)
    assert mu == pytest.approx(privacy.gdp_within(1.0, 1e-5), rel=1e-3)
    assert plan.certificate().epsilon <= 1.0
    assert plan.excess_bound == math.inf
    found = sgd.solve(jax.random.key(0), plan, WELSCH, two_wells(200), jnp.array([CENTER]))
    assert np.all(np.isfinite(found.params))
    assert abs(float(found.params[0]) - CENTER) <= RADIUS


def test_a_chain_has_the_law_and_its_plan_what_it_costs():
    plan = planned(number=4, delta=1e-2, sampler="chain", most_proposals=3000)
    assert plan.chain.num_trials <= 3000
    spent = float(plan.range)
    found = plan.certificate()
    assert (found.epsilon, found.delta) == (spent, 1e-2)
    assert float(plan.failure) == pytest.approx((1 + math.exp(spent)) * plan.variation, rel=1e-6)
    assert 4e-3 < float(plan.failure) <= 0.8e-2
    # As long as the log-Sobolev constant asks for: for convex losses fewer steps would do.
    v, w = float(plan.steepness), float(plan.bend)
    rate = max(w * math.exp(-2 * v), log_sobolev.lipschitz_perturbation(w, v)) / RADIUS**2
    most = float(plan.failure) / (1 + math.exp(spent))
    step = plan.chain.step_size
    needed = log_sobolev.log_sobolev_steps(most, step, rate, RADIUS)
    assert (
        plan.chain.num_steps
        > needed
        > 1.4 * chain_lengths.mixing_steps(most, step, w / RADIUS**2, RADIUS)
    )
    # No other numbers are covered, and no smaller δ.
    for name in ("inverse_temperature", "regularization", "radius"):
        edited = plan.replace(**{name: 1.001 * getattr(plan, name)})
        assert edited.certificate().epsilon == math.inf
    assert plan.replace(delta=3e-3).certificate().epsilon == math.inf
    data, count = two_wells(4), 400
    points, _ = draws(plan, WELSCH, data, count, 7)
    k, mu = float(plan.inverse_temperature), float(plan.regularization)
    logs = -k * (welsch_risk(GRID, data) + mu / 2 * (GRID - CENTER) ** 2)
    limit = 1.95 / math.sqrt(count) + plan.variation
    assert stats.kstest(points[:, 0], distribution(logs)).statistic < limit


def test_losses_are_proven_where_privacy_rests_on_them():
    plan = planned(number=4, delta=1e-2, sampler="chain", most_proposals=3000)
    forged = WELSCH._replace(loss=lambda params, item: WELSCH.loss(params, item))
    for given in ({"sampler": "chain"}, {"constants": "paper"}):
        with pytest.raises(ValueError, match="by construction"):
            planned(forged, 4, delta=1e-2, **given)
        with pytest.raises(ValueError, match=r"budget\.delta"):
            planned(number=4, **given)
    for made in (plan, planned(number=4, delta=1e-2, constants="paper")):
        with pytest.raises(ValueError, match="by construction"):
            gibbs.solve(jax.random.key(0), made, forged, two_wells(4), jnp.zeros(1))
        narrow = made.replace(lipschitz=0.5 * made.lipschitz)
        with pytest.raises(ValueError, match=r"plan\.lipschitz"):
            gibbs.solve(jax.random.key(0), narrow, WELSCH, two_wells(4), jnp.zeros(1))


def test_no_edit_of_what_is_proven_of_the_law_makes_it_cheaper():
    plan = planned(number=12, delta=1e-3, constants="paper")
    for name in plan.log_sobolev._fields:
        for factor in (0.1, 0.9, 1.1, 30.0):
            forged = plan.log_sobolev._replace(**{name: factor * getattr(plan.log_sobolev, name)})
            assert np.all(plan.replace(log_sobolev=forged).loss().rdp >= plan.loss().rdp)


def test_all_proposals_are_made_where_time_is_to_tell_nothing():
    plan = planned(number=12, most_proposals=200)
    _, few = draws(plan, WELSCH, two_wells(12), 5)
    points, trials = draws(plan.replace(constant_time=True), WELSCH, two_wells(12), 5)
    np.testing.assert_array_equal(trials, 64 * math.ceil(float(plan.num_proposals) / 64))
    assert np.min(few) < np.min(trials)
    np.testing.assert_array_equal(points, draws(plan, WELSCH, two_wells(12), 5)[0])


def test_requests_that_are_refused():
    with pytest.raises(ValueError, match="ridge"):
        planned(WELSCH._replace(ridge=1.0))
    box = losses.huber(1.0, domain=domains.box(np.zeros(2), np.ones(2)))
    with pytest.raises(ValueError, match="a ball"):
        planned(box, dim=2)
    with pytest.raises(ValueError, match="of centre"):
        planned(WELSCH, dim=3)
    with pytest.raises(ValueError, match="'rejection'"):
        planned(delta=1e-6, sampler="chain", constants="paper")
    with pytest.raises(Infeasible, match="most_proposals"):
        planned(most_proposals=10)
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        planned()


@pytest.mark.slow
def test_audit_on_the_worst_pair():
    """Two users of linear losses, one of whom changes sides: nine tenths of ε are learned, at 99.9 %."""

    def linear(params, item):
        return jnp.clip(item, -1, 1) * (params[0] - CENTER)

    objective = Objective(loss=linear, lipschitz=1.0, smoothness=None, domain=LINE)
    plan = planned(objective, 2, epsilon=3.0)
    counts = []
    for seed, last in ((0, 1.0), (1, -1.0)):
        points, _ = draws(plan, objective, UserData(jnp.array([[1.0], [last]])), 40_000, seed)
        counts.append(int(np.sum(points[:, 0] > CENTER + 0.9 * RADIUS)))
    rare, common = (stats.binomtest(c, 40_000).proportion_ci(0.999) for c in counts)
    lower = math.log(common.low / rare.high)
    k = float(plan.inverse_temperature)
    mass = [np.exp(-k * s * (GRID - CENTER)) for s in (1.0, 0.0)]
    true = np.diff([math.log(np.sum(m[GRID > CENTER + 0.9 * RADIUS]) / m.sum()) for m in mass])[0]
    assert lower <= true <= math.log(common.high / rare.low)
    assert 0.5 * 3.0 < lower <= 3.0
