"""The oracle by rejection: its law at one y and in chains, and the certificate, against quadrature."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.geometry import domains
from dpsco_jax.solvers.sampling import _exponential_series as series
from dpsco_jax.solvers.sampling import _rejection_certificate as certificate
from dpsco_jax.solvers.sampling import _rejection_error as error
from dpsco_jax.solvers.sampling import _rejection_rounding as roundings
from dpsco_jax.solvers.sampling import (
    alternating_sampler,
    attempt_bounds,
    rejection_oracle,
    restricted_gaussian,
)
from tests.support.compiled import OPTIMIZED

CRITICAL = 1.95  # of Kolmogorov's statistic times the root of the number of draws: 1 in 1000


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def distances(x, s):
    return jnp.sum(jnp.abs(x - s))


def linear(x, s):
    return jnp.dot(x, s)


def lanes(function, count, seed=0):
    run = jax.jit(jax.vmap(function), compiler_options=OPTIMIZED)
    return jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(seed), count)))


def trials(oracle, y_start, count, seed=0):
    """Points that counted at the y that one step from a start leads to, and the share of those."""
    state = oracle.diffuse(jax.random.key(99), oracle.init(y_start))
    points, counts = lanes(
        lambda key: (lambda end: (oracle.point(end[0]), end[1]))(oracle.trial(key, state)),
        count,
        seed,
    )
    return points[counts], counts.mean()


def at(restricted, y):
    """The same law, whatever is asked for: that of this y."""
    prepared = restricted.prepare(jnp.asarray(y, jnp.float64))
    return restricted._replace(prepare=lambda _: prepared)


def quadrature(log_density, lower, upper, count=200_001):
    grid = np.linspace(lower, upper, count)
    values = log_density(grid)
    mass = np.exp(values - values.max())
    return partial(np.interp, xp=grid, fp=(np.cumsum(mass) - 0.5 * mass) / mass.sum())


def agrees(points, cdf):
    return stats.kstest(points, cdf).statistic < CRITICAL / math.sqrt(len(points))


# -- the estimate


@pytest.mark.parametrize("cap", [8, 16])
def test_the_number_of_terms_has_the_law_of_the_exponential_series(cap):
    draws = 400_000
    found = lanes(lambda key: series.draw_length(key, cap), draws)
    assert found.min() == 1
    assert found.max() <= cap
    for b in range(1, 7):
        chance = 1 / math.factorial(b)
        spread = math.sqrt(chance * (1 - chance) / draws)
        assert abs((found >= b).mean() - chance) <= 4 * spread


def test_uniform_numbers_have_fifty_three_bits():
    bits = np.array([0, 1, 2**11 - 1, 2**11, 2**63, 2**64 - 1], np.uint64)
    found = np.asarray(series.unit_interval(jnp.asarray(bits)))
    assert found.tolist() == [0.0, 0.0, 0.0, 2.0**-53, 0.5, 1.0 - 2.0**-53]


def test_every_record_is_read_as_often():
    found = lanes(lambda key: series.draw_indices(key, 8, 7), 20_000).ravel()
    assert stats.chisquare(np.bincount(found, minlength=7)).pvalue > 1e-3
    assert found.max() == 6


@pytest.mark.parametrize(("indices", "average"), [("prefix", math.e - 1), ("fresh", math.e)])
@pytest.mark.parametrize("middle", [-0.5, -0.1, 0.1, 0.5])
def test_the_estimate_is_unbiased_and_reads_as_little_as_is_said(indices, average, middle):
    """Differences of records are far apart; only their mean may matter."""
    values = jnp.asarray(middle + np.array([-0.9, -0.2, 0.3, 0.8]))

    def one(key):
        read = lambda part, j: jnp.where(part == 1, values[j], 0.3) - jnp.where(part == 1, 0.0, 0.3)  # noqa: E731
        return series.estimate(key, read, 2, 1.0, 4, 16, indices, False)

    found = lanes(one, 200_000, seed=1)
    spread = found.value.std() / math.sqrt(len(found.value))
    assert abs(found.value.mean() - math.exp(middle)) <= 4 * spread
    assert found.num_differences.mean() == pytest.approx(average, rel=0.01)
    if indices == "prefix":
        assert np.array_equal(found.num_differences, found.num_terms)


def test_the_scale_multiplies_differences_once():
    read = lambda part, j: 0.25 * part + 1000.0  # noqa: E731
    for scale, parts, expected in ((2.0, 2, math.exp(0.5)), (0.4e-3, 1, math.exp(0.4))):
        draw = partial(series.estimate, read=read, parts=parts, scale=scale, num_records=3)
        found = lanes(
            lambda key, draw=draw: (
                draw(key, num_terms=16, indices="prefix", constant_time=False).value
            ),
            50_000,
        )
        assert abs(found.mean() - expected) <= 4 * found.std() / math.sqrt(len(found))


@pytest.mark.parametrize("indices", series.INDICES)
def test_losses_are_evaluated_twice_for_each_difference_and_all_of_them_in_constant_time(indices):
    seen = []

    def loss(x, s):
        jax.debug.callback(lambda: seen.append(1))
        return distances(x, s)

    normal = restricted_gaussian.whole_space(0.01, 1.0, jnp.zeros(1))
    make = partial(
        rejection_oracle.oracle, loss, jnp.ones((5, 1)), normal, num_records=5, scale=1.0
    )
    counts = {}
    for constant_time in (False, True):
        oracle = make(num_terms=6, indices=indices, constant_time=constant_time)
        run = jax.jit(
            lambda key, oracle=oracle: alternating_sampler.run(
                key, oracle, jnp.zeros(1), 10**6, 300
            )
        )
        end = run(jax.random.key(5))
        jax.block_until_ready(end)
        jax.effects_barrier()
        counts[constant_time] = (len(seen), float(end.params[0]))
        seen.clear()
    expected = 2 * (math.e - 1 if indices == "prefix" else math.e)
    assert counts[False][0] / 300 == pytest.approx(expected, rel=0.2)
    assert counts[True][0] == 300 * (12 if indices == "prefix" else 42)
    # And what is not needed changes nothing.
    assert counts[True][1] == counts[False][1]


# -- the law at one y


@pytest.mark.parametrize("indices", series.INDICES)
def test_what_counts_has_the_law_of_the_oracle(indices):
    """c = 0.03: losses |x - s|, so that the law has a kink at every record."""
    step, scale, convexity, y = 0.03 / 16, 4.0, 30.0, 0.31
    records = np.array([-1.0, 0.25, 0.29, 0.3, 0.33, 0.9, 2.0])
    normal = at(restricted_gaussian.whole_space(step, convexity, jnp.ones(1)), [y])
    oracle = rejection_oracle.oracle(
        *(distances, jnp.asarray(records)[:, None], normal),
        **{"num_records": 7, "scale": scale, "num_terms": 12, "indices": indices},
    )
    points, share = trials(oracle, jnp.zeros(1), 150_000)

    def log_density(x):
        mean = np.abs(x[:, None] - records).mean(axis=1)
        return -scale * mean - convexity * (x - 1) ** 2 / 2 - (x - y) ** 2 / (2 * step)

    assert agrees(points[:, 0], quadrature(log_density, y - 0.5, y + 0.5))
    lost = error.inner_variation(0.03, 12, indices)
    assert (1 - lost) / 2 <= share <= 0.53


@pytest.mark.parametrize(("c", "clipped"), [(0.002, 0.0), (0.02, 3e-4), (0.04, 4e-3)])
def test_linear_losses_are_accepted_as_often_as_is_known(c, clipped):
    scale, draws = 3.0, 150_000
    normal = restricted_gaussian.whole_space(c / scale**2, 0.0, jnp.zeros(1))
    oracle = rejection_oracle.oracle(
        linear, jnp.ones((1, 1)), normal, num_records=1, scale=scale, num_terms=14
    )
    _, share = trials(oracle, jnp.zeros(1), draws)
    assert abs(share - math.exp(c) / 2) <= 4 * 0.5 / math.sqrt(draws) + clipped


FAR = 6.0  # standard deviations from the set to the mean


def _tilted(inside, scale, c, records, dim):
    step = c / scale**2
    return rejection_oracle.oracle(
        *(linear, records, inside), num_records=len(records), scale=scale, num_terms=14
    ), step


def test_linear_losses_on_a_box_with_the_mean_six_deviations_outside():
    scale, c = 5.0, 0.03
    step = c / scale**2
    records = np.array([[1.0, 0.4], [0.6, -0.6], [1.0, 0.5]])
    pull = scale * records.mean(axis=0) * step
    y = np.array([pull[0] - FAR * math.sqrt(step), pull[1]])
    inside = restricted_gaussian.box(step, 0.0, jnp.zeros(2), jnp.zeros(2), jnp.ones(2))
    oracle, _ = _tilted(at(inside, y), scale, c, jnp.asarray(records), 2)
    points, share = trials(oracle, jnp.zeros(2), 100_000)
    assert 0.49 < share < 0.53
    for i in (0, 1):
        mean, deviation = y[i] - pull[i], math.sqrt(step)
        ends = (0 - mean) / deviation, (1 - mean) / deviation
        assert agrees(points[:, i], stats.truncnorm(*ends, loc=mean, scale=deviation).cdf)


def test_linear_losses_on_a_ball_with_the_mean_six_deviations_outside():
    scale, c, radius, dim = 5.0, 0.03, 1.0, 3
    step = c / scale**2
    deviation = math.sqrt(step)
    records = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.5]])
    pull = scale * 0.75 * step
    y = np.array([0.0, 0.0, radius + FAR * deviation])
    inside = restricted_gaussian.convex_set(step, 0.0, jnp.zeros(dim), domains.ball(radius))
    oracle, _ = _tilted(at(inside, y), scale, c, jnp.asarray(records), dim)
    points, share = trials(oracle, jnp.zeros(dim), 100_000)
    assert np.all(np.linalg.norm(points, axis=1) <= radius)
    assert share <= 0.53
    heights = np.linspace(radius - 20 * deviation, radius, 40_001)
    room = (radius**2 - heights**2) / step
    mass = stats.norm.pdf(heights, y[2] - pull, deviation) * stats.chi2.cdf(room, 2)
    assert agrees(points[:, 2], partial(np.interp, xp=heights, fp=np.cumsum(mass) / mass.sum()))


def test_both_points_must_lie_in_the_set():
    """Outside it the loss is what it likes: here so steep that each z out there would have x accepted."""
    scale, c = 5.0, 0.03
    step = c / scale**2
    inside = at(restricted_gaussian.convex_set(step, 0.0, jnp.zeros(1), domains.ball(1.0)), [1.0])

    def loss(x, s):
        return jnp.where(jnp.abs(x[0]) <= 1.0, s[0] * x[0], 1e6 * x[0])

    oracle = rejection_oracle.oracle(
        loss, jnp.ones((1, 1)), inside, num_records=1, scale=scale, num_terms=14
    )
    points, share = trials(oracle, jnp.zeros(1), 200_000)
    law = quadrature(lambda x: -scale * x - (x - 1) ** 2 / (2 * step), 1 - 0.5, 1.0)
    assert agrees(points[:, 0], law)
    # A quarter of the pairs lies inside, and half of those counts.
    assert abs(share - 0.125) < 0.01


def test_x_and_z_are_independent_and_both_new_in_every_trial():
    seen = []

    def loss(x, s):
        return s[0] * x[0]

    def difference(z, x, s):
        jax.debug.callback(lambda *pair: seen.append([float(v) for v in pair]), x[0], z[0])
        return loss(z, s) - loss(x, s)

    oracle = rejection_oracle.oracle(
        *(loss, jnp.ones((1, 1)), restricted_gaussian.whole_space(1.0, 0.0, jnp.zeros(1))),
        **{"num_records": 1, "scale": 1e-3, "num_terms": 3, "difference": difference},
    )
    state = oracle.diffuse(jax.random.key(0), oracle.init(jnp.zeros(1)))
    once = jax.jit(oracle.trial)
    for seed in range(300):
        once(jax.random.key(seed + 1), state)
    jax.effects_barrier()
    pairs = np.unique(np.array(seen), axis=0)
    assert len(pairs) == len(np.unique(pairs[:, 0])) == len(np.unique(pairs[:, 1])) == 300
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 4 / math.sqrt(300)


def test_a_difference_without_cancellation_takes_the_place_of_two_values():
    normal = restricted_gaussian.whole_space(1e-3, 2.0, jnp.zeros(2))
    records = jnp.asarray(np.random.default_rng(0).normal(size=(9, 2)))
    make = partial(
        rejection_oracle.oracle, linear, records, normal, num_records=9, scale=3.0, num_terms=9
    )
    ends = [
        alternating_sampler.run(jax.random.key(3), made, jnp.ones(2), 40, 400)
        for made in (make(), make(difference=lambda z, x, s: jnp.dot(z - x, s)))
    ]
    np.testing.assert_allclose(ends[0].params, ends[1].params, rtol=1e-12)
    # With none at all what is left is the law of the regularizer.
    flat = make(difference=lambda z, x, s: 0.0 * z[0])
    end = lanes(lambda key: alternating_sampler.run(key, flat, jnp.zeros(2), 1, 100).params, 5_000)
    assert agrees(end[:, 0], stats.norm(0, math.sqrt((1 - 1.002**-2) / 2)).cdf)


# -- chains


def test_a_gaussian_target_is_kept_and_forgotten_as_fast_as_is_known():
    """Start in the target, one step: mean, variance, and the correlation with the start."""
    step, scale, convexity, chains = 0.5, 0.2, 1.0, 30_000
    records = np.array([[1.0], [0.2], [0.9]])
    center = 0.3
    mean = center - scale * records.mean() / convexity
    starts = mean + np.random.default_rng(1).normal(size=(chains, 1)) / math.sqrt(convexity)
    normal = restricted_gaussian.whole_space(step, convexity, jnp.full(1, center))
    oracle = rejection_oracle.oracle(
        linear, jnp.asarray(records), normal, num_records=3, scale=scale, num_terms=10
    )
    run = jax.jit(
        jax.vmap(lambda key, x: alternating_sampler.run(key, oracle, x, 1, 60)),
        compiler_options=OPTIMIZED,
    )
    end = run(jax.random.split(jax.random.key(2), chains), jnp.asarray(starts))
    assert np.all(np.asarray(end.num_accepted) == 1)
    points = np.asarray(end.params)[:, 0]
    assert abs(points.mean() - mean) <= 4 / math.sqrt(chains * convexity)
    assert points.var() == pytest.approx(1 / convexity, rel=0.03)
    correlation = np.corrcoef(points, starts[:, 0])[0, 1]
    assert abs(correlation - 1 / (1 + step * convexity)) <= 4 / math.sqrt(chains)


def chain_of_distances(c, chains, tau, seed, constant_time=False):
    """Records as in S2 of one dimension, but to one side; planned for a distance, so with its own T and N."""
    records = np.concatenate([np.linspace(0.2, 1.0, 15), np.linspace(-1.0, -0.8, 5)])
    scale, convexity = 4.0, 8.0
    step = c / scale**2
    steps = alternating_sampler.mixing_steps(tau, step, convexity, 2.0)
    lost = error.inner_variation(c, 12)
    cap = alternating_sampler.capped_trials(steps, (1 - lost) / 2, 1e-4 / chains)
    normal = restricted_gaussian.whole_space(step, convexity, jnp.zeros(1))
    oracle = rejection_oracle.oracle(
        *(distances, jnp.asarray(records)[:, None], normal),
        **{"num_records": 20, "scale": scale, "num_terms": 12, "constant_time": constant_time},
    )
    end = lanes(
        lambda key: alternating_sampler.run(key, oracle, jnp.zeros(1), steps, cap), chains, seed
    )
    return end, steps, records, scale, convexity


def _law_of_distances(records, scale, convexity):
    def log_density(x):
        return -scale * np.abs(x[:, None] - records).mean(axis=1) - convexity * x**2 / 2

    return quadrature(log_density, -3.0, 3.0, 60_001)


def test_a_chain_has_its_target_and_needs_no_more_trials_than_its_cap():
    chains = 1500
    end, steps, *target = chain_of_distances(0.05, chains, 2e-3, 4)
    assert np.all(end.num_accepted == steps)
    assert agrees(end.params[:, 0], _law_of_distances(*target))


def test_the_flat_loop_has_the_law_of_nested_loops_in_numpy():
    chains = 2500
    end, steps, records, scale, convexity = chain_of_distances(0.05, chains, 0.3, 5)
    step = 0.05 / scale**2
    rng = np.random.default_rng(6)
    x = np.zeros(chains)
    variance = 1 / (1 / step + convexity)
    for _ in range(steps):
        y = x + math.sqrt(step) * rng.normal(size=chains)
        waiting = np.arange(chains)
        while len(waiting):
            mean = variance * y[waiting] / step
            new, other = mean + math.sqrt(variance) * rng.normal(size=(2, len(waiting)))
            rho, product, going = (
                np.ones(len(waiting)),
                np.ones(len(waiting)),
                np.ones(len(waiting), bool),
            )
            for b in range(1, 13):
                s = records[rng.integers(20, size=len(waiting))]
                product *= scale * (np.abs(other - s) - np.abs(new - s))
                rho += going * product
                going &= rng.random(len(waiting)) < 1 / (b + 1)
            taken = rng.random(len(waiting)) <= rho / 2
            x[waiting[taken]] = new[taken]
            waiting = waiting[~taken]
    assert stats.ks_2samp(end.params[:, 0], x).statistic < CRITICAL * math.sqrt(2 / chains)


def test_the_order_of_records_has_no_meaning_and_the_origin_has_none():
    records = np.random.default_rng(7).normal(size=(6, 2))
    step, scale, shift = 0.01, 2.0, np.array([3.0, -5.0])

    def ends(data, origin, seed, count):
        normal = restricted_gaussian.whole_space(step, 2.0, jnp.asarray(origin))
        oracle = rejection_oracle.oracle(
            distances, jnp.asarray(data), normal, num_records=6, scale=scale, num_terms=10
        )
        run = lambda key: alternating_sampler.run(key, oracle, jnp.asarray(origin), 8, 100)  # noqa: E731
        return lanes(lambda key: run(key).params, count, seed)

    plain = ends(records, np.zeros(2), 8, 1500)
    turned = ends(records[::-1], np.zeros(2), 9, 1500)
    assert stats.ks_2samp(plain[:, 0], turned[:, 0]).statistic < CRITICAL * math.sqrt(2 / 1500)
    moved = ends(records + shift, shift, 8, 1500)
    np.testing.assert_allclose(moved - shift, plain, atol=1e-9)


def test_one_program_serves_all_scales_and_lanes_are_single_runs():
    compiled = []
    records = jnp.linspace(-1, 1, 5)[:, None]

    def run(key, scale, step):
        compiled.append(1)
        normal = restricted_gaussian.whole_space(step, 1.0, jnp.zeros(1))
        oracle = rejection_oracle.oracle(
            distances, records, normal, num_records=5, scale=scale, num_terms=8
        )
        return alternating_sampler.run(key, oracle, jnp.zeros(1), 20, 200).params

    single = jax.jit(run)
    scales = jnp.arange(1.0, 4.0)
    keys = jax.random.split(jax.random.key(0), 3)
    found = [single(key, scale, 0.01 / scale) for key, scale in zip(keys, scales, strict=True)]
    assert len(compiled) == 1
    again = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(run))(again, scales, 0.01 / scales)
    np.testing.assert_allclose(together, jnp.stack(found), rtol=1e-9)


@pytest.mark.slow
def test_chains_at_the_sizes_of_the_sheet():
    chains = 20_000
    end, steps, *target = chain_of_distances(0.02, chains, 1e-3, 10)
    assert np.all(end.num_accepted == steps)
    assert agrees(end.params[:, 0], _law_of_distances(*target))


@pytest.mark.slow
def test_two_dimensions_in_a_hundred_cells():
    """ℓ1 distances in the plane: coordinates are independent, with quantiles by quadrature."""
    records = np.random.default_rng(11).normal(size=(12, 2))
    scale, convexity, chains = 4.0, 8.0, 20_000
    step = 0.02 / (2 * scale**2)
    steps = alternating_sampler.mixing_steps(1e-3, step, convexity, 2.0)
    normal = restricted_gaussian.whole_space(step, convexity, jnp.zeros(2))
    oracle = rejection_oracle.oracle(
        distances, jnp.asarray(records), normal, num_records=12, scale=scale, num_terms=12
    )
    run = partial(alternating_sampler.run, oracle=oracle, params=jnp.zeros(2))
    cap = alternating_sampler.capped_trials(steps, 0.49, 1e-9)
    end = lanes(lambda key: run(key, num_steps=steps, num_trials=cap).params, chains)
    cells = np.zeros(chains, int)
    for i in (0, 1):
        cdf = quadrature(
            lambda x, i=i: (
                -scale * np.abs(x[:, None] - records[:, i]).mean(axis=1) - convexity * x**2 / 2
            ),
            -4.0,
            4.0,
        )
        cells = 10 * cells + np.minimum((10 * cdf(end[:, i])).astype(int), 9)
    assert stats.chisquare(np.bincount(cells, minlength=100)).pvalue > 1e-3


# -- the certificate


def _by_quadrature(c, terms, fresh):
    """δ(c, A) as it is defined, by adaptive quadrature."""
    total = 0.0
    for a in range(1, terms + 1):
        weight = 1 / math.factorial(a) - (1 / math.factorial(a + 1) if a < terms else 0)
        count = a * (a + 1) // 2 if fresh else a
        rising = np.polynomial.Polynomial([-1.0] + [1.0] * a)
        root = optimize.brentq(rising, 0.4, 1.0) if a > 1 else 1.0
        corner = max(root, math.sqrt(4 * c * math.log(2 * count)))

        def tail(t, rising=rising, count=count):
            return rising.deriv()(t) * 2 * count * math.exp(-(t**2) / (4 * c))

        total += weight * (rising(corner) - rising(root))
        for k in range(20):
            ends = corner + 2 * math.sqrt(c) * np.array([k, k + 1])
            total += weight * integrate.quad(tail, *ends, epsabs=1e-300)[0]
    for b in range(terms + 1, terms + 200):
        logs = 0.5 * b * math.log(4 * c) + math.log(b) + special.gammaln(b / 2)
        total += math.exp(logs - special.gammaln(b + 1))
    return total


@pytest.mark.parametrize("indices", series.INDICES)
@pytest.mark.parametrize("c", [0.04, 0.02, 0.005, 0.003])
@pytest.mark.parametrize("terms", [3, 6, 16])
def test_the_error_of_a_draw_is_what_it_is_defined_as(c, terms, indices):
    found = error.inner_variation(c, terms, indices)
    assert found == pytest.approx(_by_quadrature(c, terms, indices == "fresh"), rel=1e-6, abs=0)


def _true_variation(c, terms):
    """Of one linear loss, by quadrature in units in which x and z are N(0, c)."""
    grid = np.linspace(-9, 9, 601) * math.sqrt(c)
    fine = np.linspace(-9, 9, 6001) * math.sqrt(c)
    mass = stats.norm.pdf(fine, 0, math.sqrt(c)) * (fine[1] - fine[0])
    jump = fine - grid[:, None]
    clipped, rho = 0.0, np.ones_like(jump)
    for a in range(1, terms + 1):
        weight = 1 / math.factorial(a) - (1 / math.factorial(a + 1) if a < terms else 0)
        rho = 1 + jump * rho
        clipped = clipped + weight * np.clip(rho, 0, 2) @ mass
    base = stats.norm.pdf(grid, 0, math.sqrt(c))
    found, ideal = base * clipped, base * np.exp(-grid)
    return 0.5 * np.abs(found / found.sum() - ideal / ideal.sum()).sum()


@pytest.mark.parametrize(
    ("c", "known", "bound"), [(0.02, 1.39e-4, 9.3e-3), (0.01, 1.47e-6, 1.21e-4)]
)
def test_the_error_of_a_draw_is_above_the_true_one(c, known, bound):
    true = _true_variation(c, 8)
    assert true == pytest.approx(known, rel=0.05)
    found = error.inner_variation(c, 16)
    assert found == pytest.approx(bound, rel=0.01)
    assert all(true <= error.inner_variation(c, a) for a in (8, 12, 16))


def test_the_table_of_steps_for_errors():
    table = {
        1e-2: (47.8, 54.0),
        1e-4: (102.3, 112.9),
        1e-6: (161.6, 173.8),
        1e-8: (224.0, 237.2),
        1e-10: (288.3, 302.4),
        1e-12: (354.1, 368.8),
        1e-15: (454.6, 470.1),
    }
    for target, inverses in table.items():
        for indices, inverse in zip(series.INDICES, inverses, strict=True):
            best = max(error.largest_c(target, a, indices) for a in range(3, 19))
            assert 1 / best == pytest.approx(inverse, rel=2e-3)
            # The closed form that is always on the safe side.
            if indices == "prefix":
                assert error.inner_variation(1 / (14 * math.log(1 / target)), 16) <= target


def test_the_error_rises_with_the_step_and_falls_with_the_terms_while_their_end_matters():
    cs = np.geomspace(1e-6, 0.2, 60)
    for terms in (3, 9, 18):
        found = [error.inner_variation(c, terms) for c in cs]
        assert all(a < b or b == 1.0 or b < 1e-299 for a, b in itertools.pairwise(found))
    for c in (0.02, 0.01, 0.003):
        found = np.array([error.inner_variation(c, terms) for terms in range(3, 19)])
        least = int(np.argmin(found))
        assert np.all(np.diff(found[: least + 1]) < 0)
        # More terms than that can be clipped, too, which the bound has to count.
        assert np.all(np.diff(found[least:]) >= 0)
        assert found[-1] < 1.3 * found[least] + 1e-300
        assert np.all(
            found <= np.array([error.inner_variation(c, a, "fresh") for a in range(3, 19)])
        )


SHEET = [  # n, d, k, μ, δ, T in units of ten thousand, as printed
    (100, 2, 31.1, 0.129, 1e-4, 170),
    (100, 10, 69.6, 0.287, 1e-4, 170),
    (300, 10, 179.0, 0.112, 1e-5, 1600),
]


def sizes_of(n, d, k, mu, reach=1.0, **fields):
    losses = certificate.rounded_losses(k, d, 1.0, 0.0, 1.0)
    return certificate.Sizes(n, d, k, k * mu, 1.0, losses, reach)._replace(**fields)


@pytest.mark.parametrize(("n", "d", "k", "mu", "delta", "steps"), SHEET)
def test_plans_of_the_sheet(n, d, k, mu, delta, steps):
    tau = 0.1 * delta / (1 + math.e)
    sizes = sizes_of(n, d, k, mu)
    for asked in (sizes, sizes._replace(ball_radius=1.0)):
        chain = certificate.planned(tau, asked)
        assert chain.variation <= tau
        assert chain.num_steps == pytest.approx(1e4 * steps, rel=0.08)
        parts = chain.mixing + chain.inner + chain.rounding + chain.cap
        assert chain.variation == pytest.approx(parts, rel=1e-6)
        # Each part again, from its formula.
        c = chain.step_size * k**2
        assert chain.inner == pytest.approx(
            chain.num_steps * error.inner_variation(c, chain.num_terms), rel=1e-4
        )
        bound = -(chain.num_steps - 1) * math.log1p(chain.step_size * k * mu)
        assert math.log(chain.mixing * 2 * math.sqrt(chain.step_size)) == pytest.approx(
            bound, abs=1e-4
        )
        assert stats.binom.cdf(chain.num_steps - 1, chain.num_trials, chain.acceptance) <= chain.cap
        assert chain.acceptance <= 0.5
    # x and z must both lie in the ball, which each does half of the time if y is on its sphere.
    deviation = 1 / math.sqrt(1 / chain.step_size + k * mu)
    far = (1 / deviation + attempt_bounds.OUTSIDE) ** 2
    assert chain.acceptance <= 0.5 * stats.ncx2.cdf(deviation**-2, d, far) ** 2
    assert certificate.planned(tau, sizes, indices="fresh").num_steps > chain.num_steps


def test_a_chain_that_is_not_the_planned_one_says_so():
    sizes = sizes_of(100, 10, 69.6, 0.287)
    chain = certificate.planned(2.7e-6, sizes)
    same = (chain.step_size, chain.num_terms, chain.num_steps, chain.num_trials)
    assert certificate.certified(sizes, *same).variation <= 2.7e-6
    for changed in (
        (2 * same[0], *same[1:]),
        (same[0], 3, *same[2:]),
        (same[0], same[1], same[2] // 2, same[3]),
        (same[0], same[1], same[2], same[3] // 2),
    ):
        assert certificate.certified(sizes, *changed).variation > 1e-4
    assert certificate.certified(sizes, 1.0, *same[1:]).variation == 1.0
    steeper = certificate.certified(sizes._replace(lipschitz=2 * 69.6), *same)
    assert steeper.variation > 1e-3


def test_the_whole_space_is_certified_by_how_far_chains_go():
    k, mu, d = 69.6, 0.287, 10
    far = 1 / mu + math.sqrt(d / (k * mu))
    sizes = sizes_of(100, d, k, mu, reach=None, start_distance=far)
    chain = certificate.planned(2.7e-6, sizes)
    assert chain.variation <= 2.7e-6
    # How likely a bound may fail is part of it, on the whole space and on balls.
    for asked in (sizes, sizes._replace(reach=1.0, ball_radius=1.0)):
        looser = certificate.certified(asked, *chain[:3], 2**31 - 1, escape=1e-3)
        assert 1e-3 <= looser.cap < 1.001e-3
    within = certificate.certified(sizes._replace(reach=1.0), *chain[:3], 2**31 - 1, escape=1e-3)
    assert within.cap < 1e-9
    # A target that is far away has all of its points there.
    assert 5.0 < roundings.farthest_point(1, 1e-3, 1e4, 5.0, 10**6, 1e-9) < 11.0
    # Chains of a Gaussian target as far out as can be: none comes near the bound, which holds for all points.
    step, convexity, start, steps = 0.1, 2.0, 3.0, 50
    radius = roundings.farthest_point(2, step, convexity, start, steps, 1e-3)
    rng = np.random.default_rng(12)
    x = np.tile([start, 0.0], (4000, 1))
    largest = 0.0
    for _ in range(steps):
        y = x + math.sqrt(step) * rng.normal(size=x.shape)
        x = y / (1 + step * convexity) + math.sqrt(step / (1 + step * convexity)) * rng.normal(
            size=x.shape
        )
        largest = max(largest, *(np.linalg.norm(p - [start, 0.0], axis=1).max() for p in (x, y)))
    assert start < largest < radius < 6 * largest


def test_targets_that_float64_cannot_reach_are_refused():
    with pytest.raises(Infeasible, match="rounding"):
        certificate.planned(1e-12, sizes_of(100, 10, 69.6, 0.287))
    loose = certificate.Rounding(1e-9, 0.0, consistent=False)
    with pytest.raises(Infeasible, match="rounding"):
        certificate.planned(2.7e-6, sizes_of(100, 10, 69.6, 0.287, rounding=loose))


# -- rounding


def _exact_acceptance(differences, terms):
    """Half the clipped average of ρ over its number of terms, in extended precision."""
    wide = np.longdouble(1.0)
    product, partial_sum, found = wide, wide, np.longdouble(0.0)
    for a in range(1, terms + 1):
        product = product * differences[a - 1]
        partial_sum = partial_sum + product
        weight = wide / math.factorial(a) - (wide / math.factorial(a + 1) if a < terms else 0)
        found += weight * min(max(partial_sum, np.longdouble(0)), np.longdouble(2))
    return found / 2


@pytest.mark.parametrize("off", [0.0, 1e-9, 1e-4])
@pytest.mark.parametrize("c", [0.002, 0.02])
def test_acceptance_is_wrong_by_no_more_than_is_said(c, off):
    """Differences N(0, 2c), wrong by the worst sign: what that does to the probability of acceptance."""
    rng = np.random.default_rng(13)
    terms, changes = 12, []
    for _ in range(400):
        # One record only, whose differences are all the same: their powers are largest then.
        exact = np.full(terms, rng.normal() * math.sqrt(2 * c), np.longdouble)
        wrong = exact * (1 + np.longdouble(2.0**-52)) + np.copysign(off, exact)
        changes.append(_exact_acceptance(wrong, terms) - _exact_acceptance(exact, terms))
    measured = math.sqrt(np.mean(np.square(np.array(changes, float))))
    bound = roundings.acceptance_error(c, terms, 100, off)
    assert measured <= bound
    if off > 0:
        assert bound <= 3 * measured
    else:
        # At least what the uniform number and the last sum have.
        assert 1.5 * 2.0**-53 <= bound < 2.0**-50
        least = roundings.acceptance_error(1e-14, terms, 1, 0.0)
        assert least == pytest.approx(1.01 * 1.5 * 2.0**-53, rel=0.01, abs=0)


def test_sums_of_estimates_are_rounded_by_no_more_than_is_said():
    """The program's ρ against extended precision, for the indices that it drew."""
    values = np.random.default_rng(14).normal(size=5) * 0.2
    records = jnp.asarray(values)

    def one(key):
        length_key, index_key = jax.random.split(jax.random.clone(key))
        made = series.estimate(key, lambda part, j: records[j], 1, 3.0, 5, 9, "prefix", False)
        return made.value, series.draw_length(length_key, 9), series.draw_indices(index_key, 9, 5)

    rho, lengths, drawn = lanes(one, 2000)
    for value, length, j in zip(rho, lengths, drawn, strict=True):
        powers = np.cumprod(np.longdouble(3.0) * values[j[:length]].astype(np.longdouble))
        assert abs(value - (1 + powers.sum())) <= 2.0**-53 * (
            1.01 + np.sum((3 * np.arange(1, length + 1) + 9) * np.abs(powers))
        )


def test_what_rounding_costs_a_chain():
    e, counts = 1e-9, 0.49
    every = roundings.steps_rounding(e, counts, 0.2, 1e-5, 10**6, contracts=False)
    assert every == pytest.approx(10**6 * e / counts, rel=1e-6)
    drift = roundings.steps_rounding(e, counts, 0.2, 1e-5, 10**6, contracts=True)
    assert drift == pytest.approx(e / counts * (1 + 0.5 * (1 + 0.1 / counts) * 100_001), rel=1e-6)
    assert roundings.steps_rounding(e, counts, 0.2, 1e-5, 10, True) <= 10.0001 * e / counts


@pytest.mark.parametrize("error_of_each", [1e-6, 1e-3])
def test_computed_losses_have_a_target_near_that_of_exact_ones(error_of_each):
    """Losses off by a square wave of that size: distance of densities and tails of differences."""
    c, k = 0.01, 5.0
    target = roundings.computed_target(c, 2.0, 1.0, error_of_each)
    grid = np.linspace(-6, 6, 200_001)
    exact = np.exp(-k * np.abs(grid) - grid**2)
    wrong = exact * np.exp(error_of_each * np.sign(grid))
    variation = 0.5 * np.abs(exact / exact.sum() - wrong / wrong.sum()).sum()
    assert 0.4 * target.variation < variation <= target.variation
    assert target.convexity < 2.0 < 2.0 * target.start_distance
    for t in (0.5, 0.7, 1.0):
        assert math.exp(-((t - 2 * error_of_each) ** 2) / (4 * c)) <= math.exp(
            -(t**2) / (4 * target.c)
        )


def test_dot_products_are_rounded_by_no_more_than_is_said():
    rng = np.random.default_rng(15)
    d, k = 40, 3.0
    rounding = certificate.rounded_losses(k, d, 1.0, 0.5, 1.0, link_ulps=1.0)
    start = rng.normal(size=d)
    start *= 0.5 / np.linalg.norm(start)
    for _ in range(200):
        move, s = rng.normal(size=(2, d))
        s /= np.linalg.norm(s)
        distance = rng.uniform(0, 10)
        x = start + move * distance / np.linalg.norm(move)
        exact = abs(
            1 + math.fsum(np.longdouble(a) * np.longdouble(b) for a, b in zip(x, s, strict=True))
        )
        computed = abs(1 + float(jnp.dot(jnp.asarray(x), jnp.asarray(s))))
        # Adding one to the product is the link, with one rounding.
        assert k * abs(exact - computed) <= rounding.within(distance) + 1e-18


# -- requests


def test_bad_requests():
    normal = restricted_gaussian.whole_space(0.1, 1.0, jnp.zeros(2))
    make = partial(rejection_oracle.oracle, linear, jnp.ones((4, 2)), normal)
    good = {"num_records": 4, "scale": 1.0, "num_terms": 5}
    for name, bad in (
        ("num_records", 5),
        ("num_records", 0),
        ("scale", 0.0),
        ("scale", -1.0),
        ("num_terms", 2),
        ("num_terms", 19),
        ("indices", "none"),
        ("constant_time", 2),
        ("difference", 3),
    ):
        with pytest.raises(ValueError, match=name):
            make(**(good | {name: bad}))
    with pytest.raises(ValueError, match="loss"):
        rejection_oracle.oracle(None, jnp.ones((4, 2)), normal, **good)
    narrow = rejection_oracle.oracle(
        lambda x, s: jnp.dot(x, s).astype(jnp.float32), jnp.ones((4, 2)), normal, **good
    )
    with pytest.raises(ValueError, match="loss must be of a float64 scalar"):
        alternating_sampler.run(jax.random.key(0), narrow, jnp.zeros(2), 1, 1)
    with pytest.raises(ValueError, match="params must be of float64"):
        make(**good).init(jnp.zeros(2, jnp.float32))
    for field, bad in (
        ("lipschitz", 0.0),
        ("convexity", 0.0),
        ("start_distance", math.inf),
        ("reach", -1.0),
        ("num_records", 0),
    ):
        with pytest.raises(ValueError, match=field):
            certificate.planned(1e-6, sizes_of(100, 10, 1.0, 1.0)._replace(**{field: bad}))
    with pytest.raises(ValueError, match="variation"):
        certificate.planned(0.0, sizes_of(100, 10, 1.0, 1.0))


def test_float64_is_asked_for():
    normal = restricted_gaussian.whole_space(0.1, 1.0, jnp.zeros(2))
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        rejection_oracle.oracle(
            linear, np.ones((4, 2)), normal, num_records=4, scale=1.0, num_terms=5
        )
