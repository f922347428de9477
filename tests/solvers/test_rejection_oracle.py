"""The oracle by rejection: its law at one y and in chains, and the certificate, against quadrature."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpsco_jax.geometry import domains
from dpsco_jax.solvers.sampling import _rejection_certificate as error
from dpsco_jax.solvers.sampling import (
    alternating_sampler,
    chain_lengths,
    log_sobolev,
    rejection_oracle,
    restricted_gaussian,
)
from dpsco_jax.solvers.sampling import rejection_oracle as series
from tests.support.compiled import OPTIMIZED

pytestmark = pytest.mark.usefixtures("float64")

CRITICAL = 1.95  # of Kolmogorov's statistic times the root of the number of draws: 1 in 1000


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
def test_the_number_of_terms_has_the_law_of_therejection_oracle(cap):
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
def test_the_estimate_is_unbiased_and_reads_as_little_as_is_said(indices, average):
    """Differences of records are far apart; only their mean may matter."""

    @partial(jax.jit, compiler_options=OPTIMIZED)
    def lanes_of(values, keys):
        return jax.vmap(lambda key: one(values, key))(keys)

    def one(values, key):
        read = lambda part, j: jnp.where(part == 1, values[j], 0.3) - jnp.where(part == 1, 0.0, 0.3)  # noqa: E731
        return series.estimate(key, read, 1.0, 4, 16, indices, False)

    keys = jax.random.split(jax.random.key(1), 200_000)
    for middle in (-0.5, -0.1, 0.1, 0.5):
        values = jnp.asarray(middle + np.array([-0.9, -0.2, 0.3, 0.8]))
        with jax.debug_key_reuse(False):  # the same draws for all
            found = jax.tree.map(np.asarray, lanes_of(values, keys))
        spread = found.value.std() / math.sqrt(len(found.value))
        assert abs(found.value.mean() - math.exp(middle)) <= 4 * spread
        assert found.num_differences.mean() == pytest.approx(average, rel=0.01)
        if indices == "prefix":
            assert np.array_equal(found.num_differences, found.num_terms)


def test_the_scale_multiplies_differences_once():
    read = lambda part, j: 0.25 * part + 1000.0  # noqa: E731
    draw = partial(series.estimate, read=read, scale=2.0, num_records=3)
    found = lanes(
        lambda key: draw(key, num_terms=16, indices="prefix", constant_time=False).value, 50_000
    )
    assert abs(found.mean() - math.exp(0.5)) <= 4 * found.std() / math.sqrt(len(found))


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
    seen, read = [], []

    def loss(x, s):
        jax.debug.callback(lambda point: read.append(float(point)), x[0])
        return s[0] * x[0]

    oracle = rejection_oracle.oracle(
        *(loss, jnp.ones((1, 1)), restricted_gaussian.whole_space(1.0, 0.0, jnp.zeros(1))),
        **{"num_records": 1, "scale": 1e-3, "num_terms": 3},
    )
    state = oracle.diffuse(jax.random.key(0), oracle.init(jnp.zeros(1)))
    once = jax.jit(oracle.trial)
    for seed in range(300):
        once(jax.random.key(seed + 1), state)
        jax.effects_barrier()
        seen.append(read[:2])
        read.clear()
    pairs = np.unique(np.array(seen), axis=0)
    assert len(pairs) == len(np.unique(pairs[:, 0])) == len(np.unique(pairs[:, 1])) == 300
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 4 / math.sqrt(300)


# -- chains


def chain_of_distances(c, chains, tau, seed, constant_time=False):
    """Records as in S2 of one dimension, but to one side; planned for a distance, so with its own T and N."""
    records = np.concatenate([np.linspace(0.2, 1.0, 15), np.linspace(-1.0, -0.8, 5)])
    scale, convexity = 4.0, 8.0
    step = c / scale**2
    steps = chain_lengths.mixing_steps(tau, step, convexity, 2.0)
    lost = error.inner_variation(c, 12)
    cap = chain_lengths.capped_trials(steps, (1 - lost) / 2, 1e-4 / chains)
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


def wells(x, s):
    return jnp.minimum(jnp.abs(x[0] - s), 0.8)


@pytest.mark.slow
def test_chains_in_two_wells_are_within_0_015_of_their_target():
    """Capped distances to points at -0.8 and 0.8 on [-1, 1], k·L·D = 1, by their log-Sobolev constant."""
    chains, scale, bend = 20_000, 0.5, 2.0
    records = np.array([-0.9, -0.8, -0.8, -0.8, -0.7, -0.7, 0.8, 0.9])
    alpha = log_sobolev.bounded_perturbation(bend, 1.0)
    sizes = error.Sizes(8, 1, scale, bend, 1.0, error.Rounding(1e-15, 0.0), reach=1.0)
    plan = error.planned(5e-3, sizes._replace(log_sobolev=alpha))
    assert plan.variation <= 5e-3
    inside = restricted_gaussian.box(plan.step_size, bend, jnp.zeros(1), -jnp.ones(1), jnp.ones(1))
    oracle = rejection_oracle.oracle(
        *(wells, jnp.asarray(records), inside),
        **{"num_records": 8, "scale": scale, "num_terms": plan.num_terms},
    )
    steps, trials = plan.num_steps, plan.num_trials
    end = lanes(
        lambda key: alternating_sampler.run(key, oracle, jnp.zeros(1), steps, trials), chains, 8
    )

    def log_density(x, heat=scale):
        losses = np.minimum(np.abs(x[:, None] - records), 0.8)
        return -heat * losses.mean(axis=1) - bend * x**2 / 2

    assert np.all(end.num_accepted == steps)
    assert stats.kstest(end.params[:, 0], quadrature(log_density, -1.0, 1.0)).statistic < 0.015
    # As far as that from the law without the losses, and with twice as much of them.
    for heat in (0.0, 2 * scale):
        other = quadrature(partial(log_density, heat=heat), -1.0, 1.0)
        assert stats.kstest(end.params[:, 0], other).statistic > 0.03


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


def test_float64_is_asked_for():
    normal = restricted_gaussian.whole_space(0.1, 1.0, jnp.zeros(2))
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        rejection_oracle.oracle(
            linear, np.ones((4, 2)), normal, num_records=4, scale=1.0, num_terms=5
        )
