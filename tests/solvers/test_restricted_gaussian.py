"""Draws from restricted Gaussians against closed forms, quadrature and mpmath."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.geometry import domains
from dpsco_jax.solvers.sampling import attempt_bounds
from dpsco_jax.solvers.sampling import restricted_gaussian as restricted
from dpsco_jax.solvers.sampling.restricted_gaussian import tail_depth

pytestmark = pytest.mark.usefixtures("float64")

CRITICAL = 1.95  # of Kolmogorov's statistic times the root of the number of draws: 1 in 1000


def tangent_acceptance(step, dim, smoothness, slope):
    """What an attempt by the tangent counts with at least: exp(-M(η²L² + ηd)/2), as E exp(-B) ≥ exp(-E B)."""
    return math.exp(-0.5 * smoothness * (step * step * slope * slope + step * dim))


def drawn(law, y, count, seed=0):
    """Points of attempts that count, and the share of those."""

    @jax.jit
    def run(key, y):
        prepared = law.prepare(y)
        return jax.vmap(lambda key: law.attempt(key, prepared))(jax.random.split(key, count))

    points, counts = map(np.asarray, run(jax.random.key(seed), np.asarray(y, np.float64)))
    return points[counts], counts.mean()


def agrees(points, cdf):
    return stats.kstest(points, cdf).statistic < CRITICAL / math.sqrt(len(points))


def marginals(density, lower, upper, count=1201):
    """Distribution functions of both coordinates of a density on a square, by midpoints."""
    sides = [np.linspace(a, b, count) for a, b in zip(lower, upper, strict=True)]
    centers = [(side[1:] + side[:-1]) / 2 for side in sides]
    values = density(np.stack(np.meshgrid(*centers, indexing="ij"), axis=-1))
    found = []
    for axis in (0, 1):
        mass = np.append(0.0, np.cumsum(values.sum(axis=1 - axis)))
        found.append(partial(np.interp, xp=sides[axis], fp=mass / mass[-1]))
    return found


# -- one dimension


@pytest.mark.parametrize("low", [0.0, 1e-8, 0.1, 1.0, 3.0, 6.0, 6.499, 6.501, 20.0, 1e3, 1e6])
def test_tails_are_inverted_as_precisely_far_out_as_at_the_centre(low):
    shares = np.concatenate(
        [10.0 ** -np.arange(1, 13), np.linspace(0.05, 0.95, 7), 1 - 10.0 ** -np.arange(2, 10)]
    )
    inverse = jax.jit(tail_depth)

    def tail(s):
        return mpmath.erfc(s / mpmath.sqrt(2)) / 2

    with mpmath.workdps(60):
        for width in (1e-9, 1e-3, 0.3, 0.33, 1.0, 5.0, math.inf):
            high = low + width
            if high == low:
                continue
            found = np.asarray(
                inverse(
                    jnp.asarray(shares), jnp.full(len(shares), low), jnp.full(len(shares), high)
                )
            )
            start = mpmath.mpf(low)
            whole = tail(start) - (tail(mpmath.mpf(high)) if high < math.inf else 0)
            for share, depth in zip(shares, found, strict=True):
                got = (tail(start) - tail(start + mpmath.mpf(float(depth)))) / whole
                assert abs(got - mpmath.mpf(float(share))) < 2e-14
            assert np.all((found >= 0) & (found <= high - low))


ENDS = {
    "inside": (-0.3, 0.5, 0.1),
    "mean at an end": (0.0, 1.0, 0.0),
    "6 below": (0.0, 1.0, -0.6),
    "6 above": (-2.0, 0.0, 0.6),
    "40 below": (0.0, 5.0, -4.0),
    "narrow": (0.2, 0.2001, 0.0),
    "half line": (0.05, math.inf, 0.0),
    "other half line": (-math.inf, -0.05, 0.0),
    "wide": (-50.0, 50.0, 0.0),
    "one-sided": (-0.02, 3.0, 0.0),
}


def test_boxes_hold_truncated_normals_in_far_tails_too():
    lower, upper, mean = map(np.array, zip(*ENDS.values(), strict=True))
    step, convexity, stddev = 0.02, 50.0, 0.1
    # m = y - vκ(y - x_0), with vκ = 1/2.
    center = np.linspace(-1.0, 1.0, len(mean))
    y = 2 * mean - center
    law = restricted.box(
        *(step, convexity, jnp.asarray(center)), jnp.asarray(lower), jnp.asarray(upper)
    )
    points, share = drawn(law, y, 60_000)
    assert share == 1.0
    assert np.all((points >= lower) & (points <= upper))
    for i, name in enumerate(ENDS):
        ends = (lower[i] - mean[i]) / stddev, (upper[i] - mean[i]) / stddev
        cdf = stats.truncnorm(*ends, loc=mean[i], scale=stddev).cdf
        if name == "40 below":  # beyond SciPy's formulas: exponential but for a four hundredth
            cdf = partial(_tail_cdf, low=40.0, stddev=stddev)
        assert agrees(points[:, i], cdf), name
    correlations = np.corrcoef(points.T) - np.eye(len(mean))
    assert np.max(np.abs(correlations)) < 5 / math.sqrt(len(points))


def _tail_cdf(x, low, stddev):
    t = np.asarray(x) / stddev
    return -np.expm1(stats.norm.logsf(low + t) - stats.norm.logsf(low))


def test_the_whole_space_has_the_normal_law():
    step, convexity, center, y = 0.3, 2.0, np.array([1.0, -2.0]), np.array([0.5, 4.0])
    points, share = drawn(restricted.whole_space(step, convexity, jnp.asarray(center)), y, 50_000)
    assert share == 1.0
    variance = 1 / (1 / step + convexity)
    mean = variance * (y / step + convexity * center)
    for i in (0, 1):
        assert agrees(points[:, i], stats.norm(mean[i], math.sqrt(variance)).cdf)
    assert abs(np.corrcoef(points.T)[0, 1]) < 4 / math.sqrt(len(points))


# -- sets with a projection


# Inside, and so far outside that proposals come from a half-space: both ways of proposing.
@pytest.mark.parametrize(
    "outside", [-0.05, 2.5, *(pytest.param(x, marks=pytest.mark.slow) for x in (-0.6, 0.02, 0.5))]
)
def test_balls_against_a_grid(outside):
    step, convexity, radius = 0.5, 2.0, 1.3
    variance = step / (1 + step * convexity)
    direction, middle = np.array([0.6, 0.8]), np.array([0.4, -0.3])
    mean = middle + (radius + outside) * direction
    center = np.array([0.1, 0.2])
    y = mean / (variance / step) - convexity * step * center
    law = restricted.convex_set(
        *(step, convexity, jnp.asarray(center)), domains.ball(radius, jnp.asarray(middle))
    )
    points, share = drawn(law, y, 60_000, seed=3)
    assert np.all(np.linalg.norm(points - middle, axis=1) <= radius)

    def density(at):
        inside = np.sum((at - middle) ** 2, axis=-1) <= radius**2
        exact = (
            convexity * np.sum((at - center) ** 2, axis=-1) + np.sum((at - y) ** 2, axis=-1) / step
        )
        return inside * np.exp(-0.5 * (exact - exact.min()))

    # In coordinates along and across the direction, too, in which proposals are made.
    turn = np.array([direction, [-direction[1], direction[0]]])
    straight = marginals(density, middle - radius, middle + radius)
    turned = marginals(
        lambda at: density(at @ turn + middle), np.full(2, -radius), np.full(2, radius)
    )
    for i in (0, 1):
        assert agrees(points[:, i], straight[i])
        assert agrees(((points - middle) @ turn.T)[:, i], turned[i])
    # Nothing that a plain proposal could reach is lost: it counts as often as the half-space says.
    plain = stats.ncx2.cdf(radius**2 / variance, 2, (radius + outside) ** 2 / variance)
    half = plain / stats.norm.sf(max(outside, 0.0) / math.sqrt(variance))
    used = half if outside > attempt_bounds.OUTSIDE * math.sqrt(variance) else plain
    assert abs(share - used) < 4 * math.sqrt(used * (1 - used) / 60_000)


def test_a_ball_far_below_the_mean_in_closed_form():
    """Six standard deviations outside, in three dimensions: depths against quadrature."""
    radius, stddev, dim = 1.0, 0.05, 3
    mean = np.array([0.0, 0.0, radius + 6 * stddev])
    law = restricted.convex_set(stddev**2, 0.0, jnp.zeros(dim), domains.ball(radius))
    points, _ = drawn(law, mean, 60_000, seed=4)
    heights = np.linspace(radius - 20 * stddev, radius, 40_001)
    room = (radius**2 - heights**2) / stddev**2
    mass = stats.norm.pdf(heights, mean[2], stddev) * stats.chi2.cdf(room, dim - 1)
    assert agrees(points[:, 2], partial(np.interp, xp=heights, fp=np.cumsum(mass) / mass.sum()))


def test_a_box_by_projection_is_the_box_by_coordinates():
    lower, upper = np.array([-1.0, 0.0]), np.array([0.5, 2.0])
    step, center = 0.04, np.zeros(2)
    y = np.array([0.5 + 6 * 0.2, 1.0])
    law = restricted.convex_set(
        step, 0.0, jnp.asarray(center), domains.box(jnp.asarray(lower), jnp.asarray(upper))
    )
    points, share = drawn(law, y, 40_000, seed=5)
    assert share > 0.99
    for i in (0, 1):
        ends = (lower[i] - y[i]) / 0.2, (upper[i] - y[i]) / 0.2
        assert agrees(points[:, i], stats.truncnorm(*ends, loc=y[i], scale=0.2).cdf)


# -- tangents


def _power(at, p, weight, xp):
    return weight * xp.sum(xp.abs(at) ** p, axis=-1) ** (2 / p) / (2 * (p - 1))


@pytest.mark.parametrize("inside", [False, True])
def test_tangents_against_a_grid(inside):
    p, weight, step, y = 1.2, 0.7, 0.15, np.array([0.5, -0.25])

    def potential(x):
        return _power(x, p, weight, jnp)

    domain = domains.ball(0.8) if inside else None
    law = restricted.tangent(step, potential, jax.grad(potential), domain)
    points, share = drawn(law, y, 100_000, seed=6)
    assert 0.2 < share < 0.95

    def density(at):
        kept = np.sum(at**2, axis=-1) <= 0.64 if inside else 1.0
        return kept * np.exp(
            -_power(at, p, weight, np) - np.sum((at - y) ** 2, axis=-1) / (2 * step)
        )

    size = 0.8 if inside else 3.0
    for i, cdf in enumerate(marginals(density, np.full(2, -size), np.full(2, size))):
        assert agrees(points[:, i], cdf)


# -- caps


def test_attempts_end_with_the_first_that_counts_or_at_the_cap():
    law = restricted.convex_set(0.04, 0.0, jnp.zeros(2), domains.ball(0.1))
    y = jnp.array([0.1, 0.0])
    _, share = drawn(law, y, 20_000)
    for cap in (1, 5):
        run = jax.jit(jax.vmap(lambda key, cap=cap: restricted.draw(key, law, y, cap)))
        end = run(jax.random.split(jax.random.key(8), 3000))
        failed = 1 - np.asarray(end.accepted).mean()
        bound = attempt_bounds.attempts_variation(share, cap)
        assert bound == pytest.approx((1 - share) ** cap, rel=1e-6)
        assert abs(failed - bound) < 5 * math.sqrt(bound * (1 - bound) / 3000)
        norms = np.linalg.norm(np.asarray(end.params), axis=1)
        assert np.array_equal(norms <= 0.1, np.asarray(end.accepted))
        assert int(end.num_attempts.max()) == cap
        assert np.all(np.asarray(end.num_attempts)[~np.asarray(end.accepted)] == cap)
    assert attempt_bounds.attempts_variation(1.0, 1) == 0.0


@pytest.mark.parametrize(
    ("dim", "size"),
    [
        (2, 5.0),
        (10, 40.0),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1, 3.0), (10, 1000.0), (50, 60.0))),
    ],
)
def test_attempts_on_balls_count_at_least_so_often(dim, size):
    farthest = attempt_bounds.farthest_start(dim, 100, 1e-3)
    bound = attempt_bounds.ball_acceptance(dim, size, 1.0, farthest)
    truths = [stats.ncx2.cdf(size**2, dim, (size + attempt_bounds.OUTSIDE) ** 2)]
    for out in np.linspace(attempt_bounds.OUTSIDE, farthest, 6):
        # Six depths of the tail, finely: its chance to have room across.
        t = np.linspace(0, min(2 * size, 12.0), 20_001)
        mass = stats.norm.pdf(out + t) / stats.norm.sf(out)
        across = stats.chi2.cdf(2 * size * t - t**2, dim - 1) if dim > 1 else np.ones_like(t)
        truths.append(np.trapezoid(mass * across, t))
    assert bound <= min(truths)
    assert bound > 0.9 * min(truths) - 0.01
    # The draws themselves, at the farthest.
    law = restricted.convex_set(1.0, 0.0, jnp.zeros(dim), domains.ball(size))
    _, share = drawn(law, np.eye(dim)[0] * (size + farthest), 4000, seed=9)
    error = math.sqrt(max(0.0, truths[-1] * (1 - truths[-1])) / 4000)
    assert abs(share - truths[-1]) < 4 * error + 1e-4


def test_how_far_steps_are_is_the_tail_of_their_length():
    for dim, steps, variation in ((1, 1, 0.1), (10, 1000, 1e-6), (300, 10**6, 1e-12)):
        farthest = attempt_bounds.farthest_start(dim, steps, variation)
        true = steps * stats.chi2.sf(farthest**2, dim)
        assert true <= variation
        assert true > 0.99 * variation


def test_tangents_count_at_least_so_often():
    """In many dimensions and for a potential that is not quadratic: the sum of log cosh."""
    dim, step = 30, 0.05

    def potential(x):
        return jnp.sum(jnp.logaddexp(x, -x))

    law = restricted.tangent(step, potential, jax.grad(potential))
    y = np.linspace(-2, 2, dim)
    _, share = drawn(law, y, 20_000, seed=10)
    bound = tangent_acceptance(step, dim, 1.0, float(np.linalg.norm(np.tanh(y))))
    assert 0.2 < bound <= share


# -- requests


def test_bad_requests():
    zeros = jnp.zeros(2)
    with pytest.raises(ValueError, match="step_size"):
        restricted.whole_space(0.0, 1.0, zeros)
    with pytest.raises(ValueError, match="convexity"):
        restricted.whole_space(1.0, -1.0, zeros)
    with pytest.raises(ValueError, match="center must be of float64"):
        restricted.whole_space(1.0, 1.0, zeros.astype(jnp.float32))
    with pytest.raises(ValueError, match=r"center must be a vector \[dim\]"):
        restricted.whole_space(1.0, 1.0, jnp.zeros((2, 2)))
    with pytest.raises(ValueError, match="upper - lower"):
        restricted.box(1.0, 1.0, zeros, zeros, jnp.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="lower must be of shape"):
        restricted.box(1.0, 1.0, zeros, jnp.zeros(3), jnp.ones(3))
    with pytest.raises(ValueError, match="domain"):
        restricted.convex_set(1.0, 1.0, zeros, "ball")
    with pytest.raises(ValueError, match="gradient"):
        restricted.tangent(1.0, jnp.sum, None)
    with pytest.raises(ValueError, match="num_attempts"):
        restricted.draw(jax.random.key(0), restricted.whole_space(1.0, 1.0, zeros), zeros, 0)


def test_float64_is_asked_for():
    with jax.enable_x64(False):
        zeros = jnp.zeros(2)
        for made in (
            lambda: restricted.whole_space(1.0, 1.0, zeros),
            lambda: restricted.box(1.0, 1.0, zeros, zeros - 1, zeros + 1),
            lambda: restricted.convex_set(1.0, 1.0, zeros, domains.ball(1.0)),
            lambda: restricted.tangent(1.0, jnp.sum, jnp.ones_like),
        ):
            with pytest.raises(ValueError, match="jax_enable_x64"):
                made()
