"""The sampler by log-Laplace transforms: both moves, their constants, and chains against grids."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, linalg, special, stats

from dpsco_jax.solvers.sampling import _llt_numbers as llt
from dpsco_jax.solvers.sampling import _self_concordant as rejection
from dpsco_jax.solvers.sampling import alternating_sampler, llt_sampler
from dpsco_jax.solvers.sampling.llt_sampler import Errors

pytestmark = pytest.mark.usefixtures("float64")

POINT = np.array([6.0, 1.0])
POWER = 1.1


@functools.cache
def psi():
    return llt_sampler.transform(1.5, 2, 40.0)


@functools.cache
def grid():
    """Points of a square that holds all mass of what is drawn, and ψ there."""
    side = np.linspace(-14.0, 18.0, 97)
    points = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    inside = np.linalg.norm(points, ord=1.5, axis=1) <= 40.0
    return points[inside], np.asarray(
        jax.jit(lambda x: jax.lax.map(psi().value, x, batch_size=64))(points[inside])
    )


def drawn_duals(count, point=POINT):
    return np.asarray(_duals()(jax.random.split(jax.random.key(0), count), point))


@functools.cache
def _duals():
    return jax.jit(jax.vmap(lambda key, x: llt_sampler.dual_draw(key, psi(), x), (0, None)))


@functools.cache
def _primals():
    def draw(key, y):
        return llt_sampler.primal_draw(key, psi(), y, power=POWER, radius=38.0)

    return jax.jit(jax.vmap(draw, (0, None)))


def near(sample, mean, deviation, errors=4.0):
    assert abs(np.mean(sample) - mean) <= errors * deviation / math.sqrt(len(sample))


# --- y given x
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_dual_draws_have_the_moments_of_the_law_they_are_of(count):
    """‖y‖_q² is half of a χ²_d at x = 0; mean and covariance at another x come from a grid over y."""
    at_zero = drawn_duals(count, jnp.zeros(2))
    squares = np.linalg.norm(at_zero, ord=3.0, axis=1) ** 2
    near(squares, 1.0, 1.0)
    assert stats.kstest(squares, stats.expon.cdf).pvalue > 1e-3

    side = np.linspace(-9.0, 13.0, 441)
    y = np.stack(np.meshgrid(side, side, indexing="ij"), -1)
    log = y @ np.asarray(POINT) - np.sum(np.abs(y) ** 3, -1) ** (2 / 3)
    mass = np.exp(log - log.max())
    mass /= mass.sum()
    found = drawn_duals(count)
    for i in (0, 1):
        edge = np.sum(mass, axis=1 - i)
        mean = side @ edge
        near(found[:, i], mean, math.sqrt((side - mean) ** 2 @ edge))
        ends = np.cumsum(edge)

        def law(at, ends=ends):
            return np.interp(at, side + 0.5 * (side[1] - side[0]), ends)

        assert stats.kstest(found[:, i], law).pvalue > 1e-3


def test_moments_of_the_dual_law_are_the_derivatives_of_the_transform():
    moves = np.concatenate([np.zeros((1, 2)), 1e-3 * np.eye(2), -1e-3 * np.eye(2)])
    both = jax.jit(jax.vmap(lambda x: (psi().value(x), *psi().local(x))))
    values, means, covariances = both(POINT + moves)
    np.testing.assert_allclose((values[1:3] - values[3:]) / 2e-3, means[0], rtol=1e-6)
    np.testing.assert_allclose((means[1:3] - means[3:]) / 2e-3, covariances[0], rtol=1e-5)


# --- x given y
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_primal_draws_have_the_law_of_a_grid(count):
    y = jnp.asarray([3.5, 1.5])
    found = _primals()(jax.random.split(jax.random.key(2), count), y)
    assert np.all(found.counts)
    assert count / np.sum(found.num_attempts) >= rejection.acceptance(2)
    points, values = grid()
    mass = points @ np.asarray(y) - POWER * values
    mass = np.exp(mass - mass.max())
    mass /= mass.sum()
    for i in (0, 1):
        order = np.unique(points[:, i])
        ends = np.cumsum([mass[points[:, i] == at].sum() for at in order])

        def law(at, order=order, ends=ends):
            return np.interp(at, order + 0.5 * (order[1] - order[0]), ends)

        assert stats.kstest(np.asarray(found.params)[:, i], law).pvalue > 1e-3


@functools.cache
def _quadratic(dim):
    """The transform of p = 2, drawn from as any other is."""
    return llt_sampler.transform(2.0, dim)._replace(gaussian=False)


def test_rejection_that_knows_nothing_of_a_quadratic_draws_normal_numbers():
    y = jnp.asarray([30.0, -4.0, 1.0])

    @jax.jit
    @jax.vmap
    def draw(key):
        return llt_sampler.primal_draw(key, _quadratic(3), y, power=1.3, radius=90.0)

    found = draw(jax.random.split(jax.random.key(3), 4000))
    rate = 4000 / np.sum(found.num_attempts)
    # ∫ r²·exp(-r²/2) over ∫ r²·(1 + r)·e^{-(1-ε)r}.
    exact = math.sqrt(math.pi / 2) / (2 + 6)
    assert abs(rate - exact) <= 0.05 * exact
    assert rate >= rejection.acceptance(3)
    for i in range(3):
        law = stats.norm(2 * float(y[i]) / 1.3, math.sqrt(2 / 1.3))
        assert stats.kstest(np.asarray(found.params)[:, i], law.cdf).pvalue > 1e-3


def test_no_probability_is_above_one_and_none_below_what_is_proven():
    """ω(r) - λr ≤ V(x) - V(w) ≤ ω*(r) + λr, for the transform and points near and far."""
    rng, local, value_of = np.random.default_rng(0), jax.jit(psi().local), jax.jit(psi().value)
    for anchor in (np.zeros(2), np.array([20.0, 0.01]), np.array([5.0, -5.0])):
        mean, hessian = (np.asarray(part) for part in local(anchor))
        factor = np.linalg.cholesky(POWER * hessian)
        value = float(value_of(anchor))
        for r in (0.05, 0.3, 0.9, 3.0, 8.0):
            free = rng.standard_normal(2)
            move = np.linalg.solve(factor.T, r * free / np.linalg.norm(free))
            there = float(value_of(anchor + move))
            above = POWER * (there - value) - POWER * (mean @ move)
            assert above >= r - math.log1p(r) - 1e-9
            if r < 1:
                assert above <= -r - math.log1p(-r) + 1e-9


def test_points_outside_of_the_set_do_not_count():
    y = jnp.asarray([30.0, -4.0, 1.0])
    keys = jax.random.split(jax.random.key(8), 200)
    for transform in (_quadratic(3), llt_sampler.transform(2.0, 3)):
        found = jax.jit(
            jax.vmap(
                lambda key, of=transform: llt_sampler.primal_draw(
                    key, of, y, power=1.3, radius=46.0, num_attempts=400
                )
            )
        )(keys)
        sizes = np.linalg.norm(np.asarray(found.params)[np.asarray(found.counts)], axis=1)
        assert len(sizes) >= 150
        assert np.all(sizes <= 46.0)
        assert np.mean(np.asarray(found.num_attempts) > 1) >= 0.3


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_the_acceptance_is_the_ratio_of_two_integrals(dim):
    slope = rejection.SLOPE
    top, _ = integrate.quad(lambda r: r ** (dim - 1) * (1 - r) * math.exp(r - slope * r), 0, 1)
    whole, _ = integrate.quad(
        lambda r: r ** (dim - 1) * (1 + r) * math.exp(-(1 - slope) * r), 0, 200
    )
    found = rejection.acceptance(dim)
    assert (1 - 2e-3) * top / whole <= found <= top / whole


def test_newton_finds_an_anchor_in_the_steps_that_are_proven():
    """From a point 400 above the minimum; an anchor that was not found lets no attempt count."""
    y = jnp.asarray([5.0, 2.0])

    def prepared(steps):
        return rejection.prepare(
            psi().value, psi().local, POWER, y, jnp.asarray([-20.0, 25.0]), steps, False
        )

    far = jax.jit(prepared)(10_000)
    assert bool(far.ready)
    start = POWER * float(jax.jit(psi().value)(np.array([-20.0, 25.0]))) - np.dot(y, [-20.0, 25.0])
    lowest = POWER * float(far.value) - np.dot(y, far.anchor)
    enough = int(rejection.newton_steps(float(start - lowest)))
    assert bool(jax.jit(prepared)(enough).ready)
    short = jax.jit(prepared)(1)
    assert not bool(short.ready)
    always = lambda x: jnp.array(True)  # noqa: E731
    for constant in (False, True):
        given = (short, psi().value, always, POWER, 0.0, 50, constant)
        ended = jax.jit(lambda key, of=given: rejection.attempts(key, *of))(jax.random.key(0))
        assert not bool(ended.counts)


def test_newton_s_method_is_damped_far_from_the_minimum():
    """V(x) = |x| - log(1 + |x|), the most that self-concordance allows: a full step from x ends at -x²."""

    def value(x):
        return jnp.sum(jnp.abs(x) - jnp.log1p(jnp.abs(x)))

    def moments(x):
        return x / (1.0 + jnp.abs(x)), jnp.diag(1.0 / (1.0 + jnp.abs(x)) ** 2)

    start = jnp.asarray([30.0])

    @jax.jit
    def found(steps, tilt):
        return rejection.prepare(value, moments, 1.0, tilt, start, steps, False)

    for slope in (0.0, 0.4):
        tilt = jnp.full(1, slope)
        lowest = slope + math.log1p(-slope)
        enough = rejection.newton_steps(float(value(start) - slope * start[0]) - lowest)
        made = found(int(enough), tilt)
        assert bool(made.ready)
        # V' = x/(1 + x) - slope.
        assert math.isclose(float(made.anchor[0]), slope / (1.0 - slope), abs_tol=2e-3)


# --- the start
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [600, pytest.param(5000, marks=pytest.mark.slow)])
def test_the_start_has_the_law_of_the_regularizer(count):
    drift = 0.2

    @jax.jit
    @jax.vmap
    def draw(key):
        return llt_sampler.start_draw(key, psi(), 2, drift=drift, radius=38.0)

    found = draw(jax.random.split(jax.random.key(4), count))
    assert np.all(found.counts)
    assert count / np.sum(found.num_attempts) >= llt.start_acceptance(np, 2, 1.5, drift)
    points, values = grid()
    half = np.max(np.abs(points), axis=1) <= 14.0
    points, mass = points[half], np.exp(-drift * (values[half] - values.min()))
    mass /= mass.sum()
    sizes = np.linalg.norm(points, axis=1)
    mean = mass @ sizes
    near(np.linalg.norm(found.params, axis=1), mean, math.sqrt(mass @ (sizes - mean) ** 2))
    order = np.unique(points[:, 1])
    ends = np.cumsum([mass[points[:, 1] == at].sum() for at in order])
    law = lambda at: np.interp(at, order + 0.5 * (order[1] - order[0]), ends)  # noqa: E731
    assert stats.kstest(np.asarray(found.params)[:, 1], law).pvalue > 1e-3


# --- mixing
# ----------------------------------------------------------------------------------------------------------


def discretized(phi, drift, loss, side=None):
    """The chain for one φ on a line: its target, the law of the start, and P = E[·|y]E[·|x], by sums."""
    x = np.linspace(-12.0, 12.0, 241) if side is None else side
    y = np.linspace(-8.0, 8.0, 401)
    log = x[:, None] * y - phi(y)
    transform = special.logsumexp(log, axis=1)
    dual = np.exp(log - transform[:, None])
    potential = loss(x) + drift * transform
    target = np.exp(-(potential - potential.min()))
    target /= target.sum()
    start = np.exp(-drift * (transform - transform.min()))
    start /= start.sum()
    joint = target[:, None] * dual
    there = joint.sum(axis=0) > 0  # in float64
    joint, dual = joint[:, there], dual[:, there]
    back = joint / joint.sum(axis=0)
    return target, start, joint, dual @ back.T


@pytest.mark.parametrize("drift", [1.0, 0.3, 0.03])
@pytest.mark.parametrize("power", [2.0, 4.0, 1.5])
@pytest.mark.parametrize("slope", [0.0, 1.5])
def test_the_gap_of_the_chain_is_what_the_proof_says(drift, power, slope):
    """The second singular value of the pair (x, y), squared, is at most 1/(1 + β)."""
    target, _, joint, _ = discretized(
        lambda y: np.abs(y) ** power, drift, lambda x: slope * np.abs(x - 1.0)
    )
    scaled = joint / np.sqrt(target[:, None]) / np.sqrt(joint.sum(axis=0))
    second = linalg.svdvals(scaled)[1] ** 2
    assert second <= 1 / (1 + drift) + 1e-6
    if slope == 0.0 and drift >= 0.3:
        assert second >= 0.98 / (1 + drift)


def test_mixing_bounds_the_distance_of_a_chain_that_is_solved_exactly():
    """½·(1 + β)^{-T}·exp(½·(kG)²·h/β) with h = 2, φ = y²: never below the truth, by linear algebra."""
    drift, slope = 0.3, 0.4
    target, start, _, step = discretized(lambda y: y * y, drift, lambda x: slope * np.abs(x - 2.0))
    warm = slope**2 * 2.0 / drift
    assert np.sum(start**2 / target) <= math.exp(warm)
    law, last = start, math.inf
    for steps in range(1, 40):
        law = law @ step
        distance = 0.5 * np.sum(np.abs(law - target))
        proven = float(llt.mixing_of(np, float(steps), math.log1p(drift), warm))
        assert distance <= proven + 1e-12
        assert distance <= last
        last = distance
    assert distance >= 1e-4 * proven


# --- the chain of the Gaussian case is that of the proximal sampler
# ---------------------------------------------------


def _moves(loss, records, transform, drift, scale, num_terms, radius=200.0, **given):
    sizes = {"radius": radius, "num_records": len(records), "scale": scale, "num_terms": num_terms}
    return llt_sampler.oracle(loss, records, transform, drift=drift, **sizes, **given)


def _end(key, moves, transform, dim, drift, steps, trials, **given):
    sizes = {"drift": drift, "radius": 200.0, "num_steps": steps, "num_trials": trials}
    return llt_sampler.alternate(key, moves, transform, dim, **sizes, **given)


def test_the_quadratic_gives_the_proximal_sampler():
    """A step from x: N(x/(1 + β), 2/(1 + β) + 2/(1 + β)²) in these units, as y = x + √η·N(0, I) and x | y
    have it.
    """
    drift, transform = 0.5, llt_sampler.transform(2.0, 2)
    nothing = lambda x, record: 0.0 * x[0] * record  # noqa: E731
    moves = _moves(nothing, jnp.zeros(3), transform, drift, 1.0, 3, radius=1e3)
    point = jnp.asarray([3.0, -1.0])

    @jax.jit
    @jax.vmap
    def step(key):
        return alternating_sampler.run(key, moves, point, 1, 60).params

    found = np.asarray(step(jax.random.split(jax.random.key(6), 6000)))
    # Algorithm 13 with η = 2: y ~ N(x, 2), x ~ N(y/(1 + β), 2/(1 + β)).
    spread = math.sqrt(2 / (1 + drift) + 2 / (1 + drift) ** 2)
    for i in (0, 1):
        law = stats.norm(float(point[i]) / (1 + drift), spread)
        assert stats.kstest(found[:, i], law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "lanes"),
    [("gaussian", 2500), pytest.param("rejection", 1500, marks=pytest.mark.slow)],
)
def test_chains_end_in_the_law_of_quadrature(name, lanes):
    """f = k·|x - s| in one dimension, both ways of drawing x: Kolmogorov's distance to quadrature."""
    drift, records, scale = 0.4, jnp.asarray([-1.0, 0.5, 2.0]), 0.3
    transform = llt_sampler.transform(2.0, 1) if name == "gaussian" else _quadratic(1)
    moves = _moves(lambda x, s: jnp.abs(x[0] - s), records, transform, drift, scale, 12)
    chain = jax.vmap(lambda key: _end(key, moves, transform, 1, drift, 30, 40 * 30))
    found = jax.jit(chain)(jax.random.split(jax.random.key(5), lanes))
    assert np.all(found.num_accepted == 30)
    x = np.linspace(-14, 16, 20_001)
    potential = (
        scale * np.mean(np.abs(x[:, None] - np.asarray(records)), axis=1) + drift * x * x / 4
    )
    ends = np.cumsum(np.exp(-potential))
    law = lambda at: np.interp(at, x, ends / ends[-1])  # noqa: E731
    assert stats.kstest(np.asarray(found.params)[:, 0], law).statistic <= 1.95 / math.sqrt(lanes)


@pytest.mark.slow
def test_constant_time_makes_the_same_draws():
    drift, transform = 0.4, _quadratic(1)

    @functools.partial(jax.jit, static_argnums=1)
    def end(key, constant):
        given = {"num_attempts": 30, "num_newton": 12, "constant_time": constant}
        records = jnp.asarray([-1.0, 2.0])
        loss = lambda x, s: jnp.abs(x[0] - s)  # noqa: E731
        moves = _moves(loss, records, transform, drift, 0.3, 5, **given)
        given = {"num_starts": 20, "constant_time": constant}
        return _end(key, moves, transform, 1, drift, 6, 40, **given)

    ends = [end(jax.random.key(7), constant) for constant in (False, True)]
    made = [(float(end.params[0]), int(end.num_accepted)) for end in ends]
    assert math.isclose(made[0][0], made[1][0], rel_tol=1e-12)
    assert made[0][1] == made[1][1] == 6


# --- numbers
# ---------------------------------------------------------------------------------------------------------

SETTING = llt.Setting(8, 1, 2, 1.5, 1.0, 1.0, 1.0, 1 / 260, 200.0, 16.0, 4000.0, None)
RUN = (2.0, 0.6, 1 / 270 / 4, 9000.0, 20_000.0)


def test_the_numbers_of_a_chain_in_a_second_writing():
    made = llt.numbers(SETTING, Errors(1e-10, 1e-13), *RUN)
    k, mu, eta, steps, _ = RUN
    assert bool(made.valid)
    assert math.isclose(made.unit, math.sqrt(eta / 4))
    assert math.isclose(made.start_convexity, eta * k * mu)
    warm = k / mu
    mixing = 0.5 * math.exp(0.5 * warm) / (1 + eta * k * mu) ** steps
    assert mixing <= float(made.variation.mixing) <= 1.0001 * mixing
    assert float(made.variation.inner) >= steps * llt.least_error(SETTING.inner)[0]
    assert 1e-13 * steps <= float(made.variation.transform)
    cap = stats.binom.cdf(steps - 1, RUN[4], float(made.acceptance))
    assert cap <= float(made.variation.capped)
    # The set holds points as far as the target is likely to have them, and Gaussian tails beyond.
    assert float(made.radius * made.unit) >= 1 / mu + math.sqrt(2 / (k * mu)) + 6 / math.sqrt(
        k * mu
    )


def test_every_part_of_the_distance_is_charged_as_often_as_it_occurs():
    errors = Errors(2.0**-28, 1e-12)
    made = llt.numbers(SETTING, errors, *RUN)
    k, mu, eta, steps, _ = RUN
    parts = made.variation
    off = k * SETTING.loss_error + (1 + float(made.start_convexity)) * errors.value
    assert bool(made.valid)
    assert float(parts.transform) >= 0.5 * math.expm1(2 * off) + steps * errors.draw
    assert float(parts.far) >= 0.99 * 2.0**-10 * float(parts.mixing) > 0
    assert math.isclose(float(parts.total), sum(float(part) for part in parts), rel_tol=1e-9)
    # What estimates are rounded by is in every step; of the last point is little.
    twice = llt.numbers(SETTING, errors, k, mu, eta, 2 * steps, 2.0**31 - 1).variation
    assert float(twice.rounding) >= 1.9 * float(parts.rounding)
    assert float(parts.rounding) >= steps * 2.0**-53
    # A regularizer so steep that the start is hard to find, and trials that never run out.
    steep = llt.numbers(SETTING, errors, k, 1e6, eta, 10.0, 2.0**31 - 1)
    drift = eta * k * 1e6
    missed = math.exp(-SETTING.num_starts * llt.start_acceptance(np, 2, 1.5, drift))
    assert float(steep.variation.capped) >= missed > 0.1


@pytest.mark.parametrize(
    "broken",
    [
        {"inner": 1 / 280},
        {"reach": 100.0},
        {"farthest": 1.0},
        {"dim": 11},
    ],
)
def test_nothing_is_proven_where_a_bound_is_broken(broken):
    assert not bool(llt.numbers(SETTING._replace(**broken), Errors(1e-10, 1e-13), *RUN).valid)


def test_a_transform_that_is_too_rough_proves_nothing():
    assert not bool(llt.numbers(SETTING, Errors(1e-6, 1e-13), *RUN).valid)


def test_heights_are_as_rare_as_they_are_said_to_be():
    """V(x) - min V for y ~ D_x, against its bound at probability 1/50."""
    found = drawn_duals(200)
    values = psi()
    inside = float(jnp.linalg.norm(POINT, ord=2) + 1.0)
    bound = float(llt.height_of(np, 2, 1.5, 0.0, inside, math.log(50.0)))

    def height(y):
        anchored = rejection.prepare(values.value, values.local, 1.0, y, POINT, 200, False)
        lowest = anchored.value - jnp.dot(y, anchored.anchor)
        return values.value(POINT) - jnp.dot(y, POINT) - lowest

    heights = np.asarray(jax.jit(lambda y: jax.lax.map(height, y, batch_size=50))(found))
    assert np.all(heights >= -1e-9)
    assert np.mean(heights > bound) <= 1 / 50
    # Of two parameters the mean is about one: half a χ² of two degrees.
    assert 0.7 <= np.mean(heights) <= 1.4


# --- bad arguments
# ---------------------------------------------------------------------------------------------------


def _good_calls():
    key, point, psi_of_two = jax.random.key(0), jnp.zeros(2), llt_sampler.transform(2.0, 2)
    oracle = {
        "loss": lambda x, record: x[0] * record,
        "data": jnp.zeros(3),
        "psi": psi_of_two,
        "drift": 0.1,
        "radius": 9.0,
        "num_records": 3,
        "scale": 1.0,
        "num_terms": 3,
        "num_attempts": 5,
        "num_newton": 5,
        "constant_time": False,
    }
    chain = {"key": key, "psi": psi_of_two, "dim": 2, "drift": 0.1, "radius": 9.0}
    return {
        "transform": {"p": 2.0, "dim": 2, "reach": 3.0},
        "dual_draw": {"key": key, "psi": psi_of_two, "point": point},
        "primal_draw": {
            **{"key": key, "psi": psi_of_two, "tilt": point},
            **{"power": 1.0, "radius": 9.0, "num_attempts": 5},
        },
        "start_draw": chain | {"num_attempts": 5, "constant_time": False},
        "oracle": oracle,
        "alternate": chain
        | {
            "moves": llt_sampler.oracle(**oracle),
            "num_steps": 1,
            "num_trials": 9,
            "num_starts": 5,
            "constant_time": False,
        },
    }


_BAD = {
    "p": (1.0, 2.5, "nonsense", None),
    "reach": (0.0, math.nan, "nonsense"),
    "dim": (0, 1.5, None),
    "key": (None, 7, "nonsense"),
    "psi": (None, 7, "nonsense"),
    "point": (None, np.zeros(2, np.float32), np.zeros((2, 2))),
    "tilt": (None, np.zeros(2, np.float32)),
    "power": (0.0, -1.0, math.nan, "nonsense"),
    "drift": (0.0, math.inf, "nonsense"),
    "radius": (0.0, -1.0, "nonsense"),
    "num_attempts": (0, 1.5, None),
    "num_starts": (0, None),
    "num_newton": (0, 1.5, "nonsense"),
    "num_steps": (0, 0.5),
    "num_trials": (0, 2**31),
    "num_records": (0, 4, None),
    "num_terms": (2, 19),
    "scale": (0.0, "nonsense"),
    "loss": (None, 7),
    "moves": (None, 7),
    "constant_time": (None, 7, "nonsense"),
}


@pytest.mark.parametrize(
    "name", ["transform", "dual_draw", "primal_draw", "start_draw", "oracle", "alternate"]
)
def test_bad_arguments_are_refused_by_name(name):
    good = _good_calls()[name]
    for argument in good.keys() & _BAD.keys():
        for bad in _BAD[argument]:
            with pytest.raises(ValueError, match=argument):
                getattr(llt_sampler, name)(**(good | {argument: bad}))


def test_float64_is_asked_for():
    good = _good_calls()["dual_draw"]
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        llt_sampler.dual_draw(**good)
