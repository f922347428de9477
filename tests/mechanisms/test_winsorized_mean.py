"""Winsorized means: noise as stated, unbiased, private for any data; calibration within the budget."""

import contextlib
import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpsco_jax import privacy
from dpsco_jax.mechanisms.winsorized import winsorized_mean as winsorized
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from tests.support.drawn import ORDER, Noise, range_divergence, recorded

FORMS = ("clipped", "winsorized", "refined", "recentred")
USERS, DIM, TRIALS = 300, 3, 800
NUMBERS = {"radius": 0.1, "bound": 2.0, "failure": 1e-5}


@functools.cache
def releases(form, num_queries=1, dim=DIM):
    return calibrate_winsorized(USERS, dim, num_queries, 4.0, 1e-4, form=form, **NUMBERS)


answer = jax.jit(winsorized.winsorized_mean)


@jax.jit
def answers(keys, vectors, planned):
    return jax.lax.map(lambda k: winsorized.winsorized_mean(k, vectors, planned), keys)


def keys_of(seed, trials=TRIALS):
    return jax.random.split(jax.random.key(seed), trials)


def cloud(rng, center=(0.9, -0.5, 0.0)):
    """Within 0.1 of a point that no bin knows."""
    arrows = rng.normal(size=(USERS, DIM))
    arrows *= 0.1 * rng.uniform(size=(USERS, 1)) / np.linalg.norm(arrows, axis=1, keepdims=True)
    return jnp.asarray(np.float32(np.asarray(center) + arrows))


@pytest.mark.parametrize("form", FORMS)
def test_noise_is_unbiased_with_the_stated_variance(form, rng):
    planned, vectors = releases(form), cloud(rng)
    off = np.asarray(answers(keys_of(0), vectors, planned) - jnp.mean(vectors, 0))
    stddev = float(planned.noise_stddev)
    assert np.all(np.abs(off.mean(0)) <= 4 * stddev / math.sqrt(TRIALS))
    # The trace is a sum of 3·800 squares; the coarse noise does not show up in it.
    np.testing.assert_allclose(np.sum(off.var(0)), planned.noise_variance, rtol=0.12)
    np.testing.assert_allclose(planned.noise_variance, DIM * stddev**2)
    correlation = np.corrcoef(off.T) - np.eye(DIM)
    assert np.abs(correlation).max() < 5 / math.sqrt(TRIALS)


def test_concentrated_users_are_not_biased_wherever_they_lie(rng):
    """Users at the ends of the window, the center anywhere: no row is clipped."""
    planned = dataclasses.replace(releases("winsorized"), noise_multiplier=1e-6)
    side = 0.1 / math.sqrt(DIM) * jnp.where(jnp.arange(USERS) < 140, 1, -1)[:, None]
    for center in rng.uniform(-0.8, 0.8, (2, DIM)):
        vectors = jnp.asarray(np.float32(center + side))
        off = answers(keys_of(1), vectors, planned) - jnp.mean(vectors, 0)
        assert np.abs(off).max() < 1e-5


def test_the_forms_in_two_steps_stand_outliers():
    """A tenth of the users at the bound moves the mean by a tenth of the ball, not of the bound."""
    vectors = jnp.zeros((USERS, DIM)).at[: USERS // 10].set(jnp.asarray([2.0, 0.0, 0.0]))
    planned = releases("refined")
    off = answers(keys_of(2), vectors, planned)
    assert np.abs(off[:, 0]).mean() < 0.15 * planned.ball_radius
    plain = answers(keys_of(2), vectors, releases("clipped"))
    assert np.abs(plain[:, 0]).mean() > 0.19


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_bad_users_count_as_zero_or_as_far_as_the_bound(form, bad):
    vectors = jnp.zeros((USERS, DIM)).at[3, 1].set(bad)
    clean = vectors.at[3, 1].set(2.0 if np.isfinite(bad) else 0.0)
    found, expected = (answer(jax.random.key(3), x, releases(form)) for x in (vectors, clean))
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize("form", FORMS)
def test_a_neighbour_moves_the_mean_by_the_sensitivity_at_most(form):
    """With all randomness fixed but the answers so far: worst pairs come close, none exceeds it."""
    planned = dataclasses.replace(releases(form), noise_multiplier=0.0)
    # The intervals and the coarse mean are those of the many, whatever one user does.
    base = jnp.full((USERS, DIM), 0.3)
    moved = []
    for arrow in np.random.default_rng(0).normal(size=(6, DIM)):
        arrow = jnp.asarray(np.float32(arrow))
        pair = [
            answer(jax.random.key(0), base.at[0].set(s * 100 * arrow), planned) for s in (1, -1)
        ]
        moved.append(float(jnp.linalg.norm(pair[0] - pair[1])))
    limit = float(planned.sensitivity) * (1 + 1e-4)
    # A pair shares the coarse mean up to the one user's part in it.
    slack = float(planned.coarse_sensitivity) if form in ("refined", "recentred") else 0.0
    assert 0.7 * limit < max(moved) <= limit + slack


@pytest.mark.parametrize("form", ["refined", "recentred"])
def test_given_the_coarse_mean_a_neighbour_moves_the_final_one_by_its_sensitivity(form):
    planned, center = releases(form), jnp.asarray([0.3, -0.2, 0.1])
    base = jnp.tile(center, (USERS, 1))
    pair = [
        winsorized._mean_in_ball(base.at[0].add(side), center, planned.ball_radius)
        for side in (5.0, -5.0)
    ]
    distance = float(jnp.linalg.norm(pair[0] - pair[1]))
    assert 0.999 * planned.sensitivity < distance <= planned.sensitivity * (1 + 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("num_queries", [1, 20])
def test_the_budget_is_met_and_spent(form, num_queries):
    planned = calibrate_winsorized(
        50_000, 10, num_queries, 1.0, 1e-6, form=form, radius=0.1, bound=1.0
    )
    assert planned.form == form
    assert 0.999 < planned.certificate().epsilon <= 1.0
    assert planned.failure_probability() <= 0.0401
    np.testing.assert_allclose(
        planned.loss().rdp, num_queries * planned.query_loss().rdp, rtol=1e-12
    )


@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("form", ["winsorized", "refined"])
def test_every_coordinate_after_the_rotation_is_paid_for(form, dim):
    """Three vectors become four coordinates, five become eight: as many intervals, and as wide a box."""
    padded, planned = {2: 2, 3: 4, 5: 8}[dim], releases(form, dim=dim)
    noise, means = Noise([], [], []), []
    with recorded(noise):
        right = winsorized.additive.gaussian

        def keep(key, tree, stddev):
            jax.debug.callback(
                lambda mean: means.append(np.asarray(mean, np.float64)), tree, ordered=True
            )
            return right(key, tree, stddev)

        with mock.patch.object(winsorized.additive, "gaussian", keep):
            run = jax.jit(
                lambda vectors: winsorized.winsorized_mean(jax.random.key(0), vectors, planned)
            )
            jax.block_until_ready(run(np.zeros((USERS, dim), np.float32)))
            jax.effects_barrier()
    assert len(noise.ranges) == padded
    orders = np.argmin(np.abs(privacy.ORDERS - ORDER))
    sigmas = [planned.noise_multiplier] + [planned.coarse_multiplier] * (form == "refined")
    spent = range_divergence(noise.ranges) + sum(ORDER / (2 * s**2) for s in sigmas)
    assert planned.query_loss().rdp[orders] == pytest.approx(spent, rel=1e-4)

    # One row at either end of the box moves all coordinates after the rotation.
    means.clear()
    for side in (1e6, -1e6):
        ends = np.zeros((USERS, dim), np.float32)
        ends[0, 0] = side
        run(ends)
    jax.effects_barrier()
    first = means[0], means[len(means) // 2]
    half = min(2 * planned.coordinate_radius + planned.bin_width / 2, planned.bound)
    moved = np.linalg.norm(first[0] - first[1])
    assert moved == pytest.approx(2 * half * math.sqrt(padded) / USERS, rel=1e-4)
    assert moved <= planned.box_sensitivity * (1 + 1e-5)


def test_the_range_share_is_obeyed():
    planned = calibrate_winsorized(
        8000, 16, 3, 1.0, 1e-6, form="winsorized", range_share=0.25, radius=0.1, bound=2.0
    )
    ranges = 16 * planned.range_epsilon**2 / 8
    noise = 1 / (2 * planned.noise_multiplier**2)
    np.testing.assert_allclose(ranges / (ranges + noise), 0.25, rtol=1e-5)


@pytest.mark.parametrize(("m", "mse"), [(25, 2.1e-3), (100, 5.7e-4), (400, 1.5e-4)])
def test_never_noisier_than_the_reference(m, mse):
    """Half of the budget each in zCDP, 16 coordinates, ε = 1, δ = 1e-6: the known errors are beaten."""
    tau = (1 + math.sqrt(2 * math.log(8000 / 0.01) / 16)) / math.sqrt(m)
    settings = {"radius": tau, "bound": 2.0, "failure": 0.01}
    half = calibrate_winsorized(
        8000, 16, 1, 1.0, 1e-6, form="winsorized", range_share=0.5, **settings
    )
    assert 0.25 * mse < half.noise_variance < mse
    best = calibrate_winsorized(8000, 16, 1, 1.0, 1e-6, **settings)
    clipped = calibrate_winsorized(8000, 16, 1, 1.0, 1e-6, form="clipped", **settings)
    assert best.form in ("refined", "recentred")
    assert best.noise_variance < min(half.noise_variance, clipped.noise_variance) / 5


def test_auto_clips_where_users_are_far_apart_or_few():
    for radius, users in [(1.1, 8000), (0.05, 10)]:
        planned = calibrate_winsorized(users, 16, 1, 1.0, 1e-6, radius=radius, bound=1.0)
        assert planned.form == "clipped"
        assert planned.failure_probability() == 0.0


@pytest.mark.parametrize("radius", [0.01, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("share", ["auto", 0.3])
def test_auto_is_the_form_with_the_least_noise(radius, share):
    for users, queries in ((300, 1), (3000, 1), (8000, 20)):

        def noise(form, users=users, queries=queries):
            given = {"radius": radius, "bound": 1.0, "form": form, "range_share": share}
            return calibrate_winsorized(users, 16, queries, 1.0, 1e-6, **given).noise_stddev

        alone = []
        for form in ("clipped", "winsorized", "refined", "recentred"):
            with contextlib.suppress(ValueError):  # too few users for intervals
                alone.append(noise(form))
        assert len(alone) >= 2
        assert noise("auto") == min(alone)


def test_too_few_users_are_told_how_many():
    settings = {"radius": 0.05, "bound": 1.0, "form": "winsorized"}
    with pytest.raises(ValueError, match=r"num_users must be .*at least") as caught:
        calibrate_winsorized(30, 16, 20, 1.0, 1e-6, **settings)
    least = int(str(caught.value).split()[5])
    assert calibrate_winsorized(least, 16, 20, 1.0, 1e-6, **settings).form == "winsorized"
    with pytest.raises(ValueError, match=f"at least {least} "):
        calibrate_winsorized(least - 1, 16, 20, 1.0, 1e-6, **settings)


@pytest.mark.parametrize("num_queries", [1, 5])
def test_as_printed(num_queries):
    settings = {"radius": 0.05, "bound": 1.0, "constants": "paper"}
    planned = calibrate_winsorized(16_000, 16, num_queries, 1.0, 1e-6, **settings)
    # The Rényi curve confirms the closed form with a wide margin.
    assert planned.certificate().epsilon < 0.5
    if num_queries == 1:
        each = 1 / math.sqrt(8 * 16 * math.log(1e6))
        np.testing.assert_allclose(planned.noise_multiplier, 2 / each, rtol=1e-6)
        np.testing.assert_allclose(planned.range_epsilon, each / 2, rtol=1e-6)
    tight = calibrate_winsorized(16_000, 16, num_queries, 1.0, 1e-6, radius=0.05, bound=1.0)
    assert tight.noise_variance < planned.noise_variance / 100
    with pytest.raises(ValueError, match="epsilon"):
        calibrate_winsorized(16_000, 16, num_queries, 120.0, 1e-6, **settings)


def test_one_dimension_is_exact_for_constant_data():
    users, epsilon = 50, 1.0
    run = jax.jit(
        jax.vmap(
            lambda k, v: winsorized.winsorized_mean_1d(k, jnp.full(users, v), epsilon, 0.1, 1.0),
            in_axes=(0, None),
        )
    )
    for value in (0.0, -0.93):
        off = np.asarray(run(keys_of(4, 10_000), value)) - value
        # The interval misses the value now and then: that is counted out.
        scale = 4 * 0.225 / (users * epsilon)
        assert scipy.stats.kstest(off, scipy.stats.laplace(scale=scale).cdf).pvalue > 1e-3
    spent = winsorized.winsorized_mean_1d_loss(epsilon)
    assert np.all(spent.rdp <= privacy.pure_dp(epsilon).rdp * (1 + 1e-9))
    assert np.max(spent.rdp) > 0.9 * epsilon


def test_one_dimension_ignores_order_and_bad_values(rng):
    values = jnp.asarray(np.float32(rng.normal(0, 0.1, 40))).at[7].set(0.0)
    run = jax.jit(lambda v: winsorized.winsorized_mean_1d(jax.random.key(5), v, 50.0, 0.3, 1.0))
    plain = run(values)
    np.testing.assert_allclose(run(values[::-1]), plain, atol=1e-6)
    np.testing.assert_allclose(run(values.at[7].set(jnp.nan)), plain, atol=1e-6)
    assert abs(float(plain - jnp.mean(values))) < 0.01


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"range_share": 1.0}, "range_share"), ({"constants": "paper", "form": "clipped"}, "form")],
)
def test_choices_that_do_not_go_together_are_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        calibrate_winsorized(100, 2, 1, 1.0, 1e-5, radius=0.1, bound=1.0, **changes)


def test_shapes_are_those_of_the_plan():
    with pytest.raises(ValueError, match="shape"):
        winsorized.winsorized_mean(
            jax.random.key(0), jnp.zeros((USERS - 1, DIM)), releases("clipped")
        )


def test_memory_is_that_of_a_few_copies_of_the_rows():
    """Not of all coordinates at once, and intervals of many runs are found one run after another."""
    users, dim, runs = 40_000, 16, 4
    planned = calibrate_winsorized(users, dim, 1, 4.0, 1e-4, form="winsorized", **NUMBERS)
    copy = 4 * users * dim

    def temporaries(run, *batch):
        keys = jax.eval_shape(lambda key: jax.random.split(key, batch), jax.random.key(0))
        shaped = jax.ShapeDtypeStruct((*batch, users, dim), jnp.float32)
        compiled = jax.jit(run).lower(keys, shaped).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def run(key, vectors):
        return winsorized.winsorized_mean(key, vectors, planned)

    alone, together = temporaries(run), temporaries(jax.vmap(run), runs)
    # Clipped, rotated and transposed; then a coordinate at a time: at most 25 words for each of its values.
    assert alone < 3 * copy + 25 * 4 * users
    # Clipped rows of every run; what is made of them is there for one at a time.
    assert together < alone + runs * copy + 2**16
