"""O2NC of both kinds: what is released, the running estimate, what plans prove, and where runs end."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.nonconvex import (
    _goldstein_bounds,
    _smoothed_means,
    _stream_mean,
    goldstein,
    o2nc_multi_pass,
    o2nc_single_pass,
)
from dpsco_jax.solvers.solution import Status

CAPPED = Objective(
    lambda w, z: jnp.minimum(jnp.linalg.norm(w - z), 1.5),
    lipschitz=1.0,
    smoothness=None,
    domain=domains.whole_space(),
)
LINEAR = CAPPED._replace(loss=lambda w, z: jnp.vdot(w, z))
BUDGET = Budget(1.0, 1e-6, allow_large_delta=True)


def _problem(users, dim, objective=CAPPED):
    return Problem(objective, num_users=users, items_per_user=1, dim=dim)


def _planned(module, users, dim=2, objective=CAPPED, **given):
    settings = {"initial_gap": 1.0, "smoothing_radius": 0.1, "draws": 4} | given
    return module.plan(_problem(users, dim, objective), BUDGET, **settings)


@functools.cache
def _multiplier():
    return privacy.releases.fixed_size(10, 10, 1).noise_multiplier(1.0, 1e-6, "pld")


def _paper_rho():
    log = math.log(1e6)
    return (math.sqrt(log + 1) - math.sqrt(log)) ** 2


@pytest.mark.parametrize(("users", "printed"), [(1e4, 7.8), (1e5, 2.7), (1e6, 0.94), (1e7, 0.32)])
def test_our_bound_is_below_that_of_the_paper_s_schedule(users, printed):
    """The corrected bound of Algorithm 24 at its best, without clips and with m = ∞, by hand; and ours."""
    dim, radius, rho = 10, 0.1, _paper_rho()
    smoothness = 2 / math.sqrt(math.pi) * math.exp(math.lgamma(6) - math.lgamma(5.5)) / radius
    moves = np.geomspace(1e-6, radius, 500)[:, None]
    periods = 2.0 ** np.arange(int(math.log2(users / 2)))[None]
    sensitivity = 2 * np.maximum(1 / periods, math.sqrt(dim) / radius * 2 * moves)
    noise = dim * sensitivity**2 * (np.log2(periods) + 1) ** 2 / (2 * rho)
    error = np.sqrt(1 / periods + (periods - 1) * (2 * smoothness * moves) ** 2 + noise)
    slope = 2.5 * np.sqrt((1 + error**2) * moves / radius)
    by_hand = (2 / (moves * users / 2) + slope + 2 * error).min()
    assert by_hand == pytest.approx(printed, rel=0.02)  # two digits are given
    plan = _planned(o2nc_single_pass, int(users), dim, draws=100)
    tree = _planned(o2nc_single_pass, int(users), dim, draws=100, constants="paper")
    assert plan.goldstein_bound <= tree.goldstein_bound * (1 + 1e-9) < by_hand
    assert plan.goldstein_bound > 0.3 * by_hand


@pytest.mark.parametrize(("users", "printed"), [(1e3, 2.6), (1e4, 0.62), (1e5, 0.26), (1e6, 0.21)])
def test_many_passes_prove_no_less_than_is_printed(users, printed):
    plan = _planned(o2nc_multi_pass, int(users), 10, draws=100, most_steps=10**5)
    assert 0.5 * printed < plan.goldstein_bound < printed


def test_a_bound_is_that_of_its_parts():
    """β of a plan of a single pass by hand, from its sizes and the errors of each step in float64."""
    users, dim, draws, radius = 10**6, 10, 100, 0.1
    plan = _planned(o2nc_single_pass, users, dim, draws=draws)
    of, blocks = plan.mean.releases, plan.method.block_length
    period, (first, later) = of.period, of.batch_sizes
    assert period > 8
    move, steps = radius / blocks, of.num_steps // blocks * blocks
    assert plan.method.radius == pytest.approx(move)
    correlation = _stream_mean.correlation_of("buffers", period)
    noise = 2 * float(plan.share_norm) * float(plan.noise_multiplier) * correlation.prefix_stddev()
    smooth = math.exp(math.lgamma(dim / 2 + 1) - math.lgamma(dim / 2 + 0.5))
    smooth *= 2 / math.sqrt(math.pi) / radius
    place = np.arange(period)
    estimate = 1 + dim**2 / (dim - 1) / draws
    difference = 7 / 6 * move**2 * (smooth**2 + (dim / radius) ** 2 / draws)
    variance = estimate / first + place * difference / later + dim * noise**2
    least = math.sqrt(np.mean(variance))
    bound = (1 + 0.1 * dim / (dim + 1)) / (move * steps) + 2 * (1 + least) / math.sqrt(blocks)
    bound += 2 * least
    # What is left are the biases of the clips, which are small at a hundred directions.
    assert bound <= plan.goldstein_bound * (1 + 1e-9) <= 1.1 * bound


@pytest.mark.parametrize(("room", "draws"), [(0.25, 8), (1.0, 4), (2.0, 30)])
def test_clips_take_no_more_of_a_mean_than_is_counted(room, draws):
    """Of the mean of m two-point estimates of a linear loss in five dimensions; of coupled differences."""
    dim, radius, count = 5, 0.5, 20_000
    setting = _goldstein_bounds.Setting(dim, 1.0, radius, 1.0, "zeroth", draws, True)
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((count, draws, dim))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    estimates = np.mean(dim * directions[..., :1] * directions, axis=1)
    lengths = np.linalg.norm(estimates, axis=1, keepdims=True)
    clipped = estimates * np.minimum(1, (1 + room) / lengths)
    bias = np.linalg.norm((clipped - estimates).mean(axis=0))
    assert bias <= setting.gradient_bias(room) + 4 / math.sqrt(count)
    excess = np.maximum(np.linalg.norm(estimates - np.eye(dim)[0], axis=1) - room, 0).mean()
    assert excess <= setting.gradient_bias(room)
    # Gradients of first order: 2 with the probability of the total variation distance.
    first = setting._replace(order="first")
    distance = 0.1
    chance = min(1.0, first.smoothness * distance / 2)
    sums = rng.binomial(draws, chance, count) * 2.0 / draws
    far = np.maximum(sums - (1 + room) * first.smoothness * distance, 0).mean()
    assert far <= first.difference_bias(room, distance) + 1e-3
    assert far <= first.relative_bias(room, distance) + 1e-3


@functools.partial(jax.jit, static_argnames=("period", "steps", "kind"))
def _estimates(key, share, multiplier, period, steps, kind, users=8, dim=400):
    """The running estimates of a pass on a linear loss of slope 0, and what the ledger says."""
    releases = _smoothed_means.StreamReleases(
        users * steps, steps, kind, multiplier, 1e-6, period=period, batch_sizes=(users, users)
    )
    mean = _smoothed_means.OnePass(64, "first", 1, releases, share, 0.1)
    data = UserData(jnp.zeros((users * steps, 1, dim)))
    opened = mean.open(key, LINEAR, data, jnp.zeros(dim))
    params = jnp.zeros(dim)

    def step(state, t):
        ask = opened.oracle.at(state, params)
        asked = ask(jax.random.fold_in(key, t), params, opened.data)
        update, state = opened.release.update(asked.gradient, state, params, **asked.extra_args)
        return state, update

    state, found = jax.lax.scan(step, opened.release.init(params), jnp.arange(steps))
    return found, privacy.privacy_spent(state).rdp


@pytest.mark.parametrize("kind", ["tree", "buffers"])
def test_every_estimate_is_noised_anew_in_every_period_and_paid_once(kind):
    """Standard deviations of all places, and no correlation over periods: the last place of a period too."""
    share, multiplier, period, steps = 0.5, 2.0, 4, 8
    found = [
        _estimates(jax.random.key(seed), share, multiplier, period, steps, kind)
        for seed in range(10)
    ]
    noise = np.concatenate([np.float64(one) for one, _ in found], axis=1)
    prefix = _stream_mean.correlation_of(kind, period).prefix_stddev()
    expected = 2 * share * multiplier * np.tile(prefix, 2)
    np.testing.assert_allclose(noise.std(axis=1), expected, rtol=5 / math.sqrt(2 * noise.shape[1]))
    if kind == "tree":
        counts = [t.bit_count() for t in (1, 2, 3, 4)]
        np.testing.assert_allclose(prefix, np.sqrt(3 * np.array(counts)))
    across = np.corrcoef(noise)[:period, period:]
    assert np.abs(across).max() < 5 / math.sqrt(noise.shape[1])
    np.testing.assert_allclose(found[0][1], privacy.ORDERS / (2 * multiplier**2), rtol=1e-5)


def test_users_are_read_once_in_their_order():
    """Which users each step asks for, of a plan with two batch sizes; the last ones take no part."""
    releases = _smoothed_means.StreamReleases(
        30, 7, "buffers", 1.0, 1e-6, period=3, batch_sizes=(6, 2)
    )
    read = []
    for t in range(7):
        size = 6 if t % 3 == 0 else 2
        read += range(releases.first_of(t), releases.first_of(t) + size)
    assert read == list(range(26))
    with pytest.raises(ValueError, match="batch_sizes"):
        _smoothed_means.StreamReleases(25, 7, "buffers", 1.0, 1e-6, period=3, batch_sizes=(6, 2))
    # What a user holds is seen in the step of that user alone.
    dim, users, steps = 3, 4, 6

    @jax.jit
    def sums(data):
        of = _smoothed_means.StreamReleases(
            users * steps, steps, "buffers", 1e-12, 1e-6, period=3, batch_sizes=(6, 3)
        )
        mean = _smoothed_means.OnePass(2, "zeroth", 2, of, 1.0, 0.1)
        opened = mean.open(jax.random.key(0), CAPPED, data, jnp.zeros(dim))

        def step(state, t):
            params = jnp.full(dim, 0.1) * t
            key = jax.random.fold_in(jax.random.key(1), t)
            asked = opened.oracle.at(state, params)(key, params, opened.data)
            _, state = opened.release.update(asked.gradient, state, params, **asked.extra_args)
            return state, asked.gradient

        return jax.lax.scan(step, opened.release.init(jnp.zeros(dim)), jnp.arange(steps))[1]

    rng = np.random.default_rng(0)
    items = np.float32(0.3 * rng.normal(size=(users * steps, 1, dim)))
    base = np.asarray(sums(UserData(jnp.asarray(items))))
    steps_of = [0] * 6 + [1] * 3 + [2] * 3 + [3] * 6 + [4] * 3 + [5] * 3
    for user in (0, 5, 6, 11, 12, 17, 18, 23):
        other = items.copy()
        other[user] = -items[user]
        changed = np.any(np.asarray(sums(UserData(jnp.asarray(other)))) != base, axis=1)
        assert np.flatnonzero(changed).tolist() == [steps_of[user]]


def test_one_user_moves_a_step_by_no_more_than_is_paid_for():
    """200 pairs of opposite users with the same directions: at most 2, and nearly that for linear losses."""
    dim, users = 3, 2
    largest = 0.0

    @functools.partial(jax.jit, static_argnums=(0, 4))
    def moved(order, key, items, points, fresh):
        objective = CAPPED._replace(loss=lambda w, z: 5.0 * jnp.abs(jnp.vdot(w, z) - 0.01))
        form = _smoothed_means.differences.sum_form(
            objective, points[0], 4, _smoothed_means.differences.Smoothing(order, 0.1, 2)
        )
        query = _smoothed_means.differences.Query(*points, jnp.asarray(fresh), jnp.asarray(0.5))
        ask = form[0](None)
        return ask(key, query, UserData(items)).gradient

    rng = np.random.default_rng(1)
    for trial in range(50):
        for order in ("zeroth", "first"):
            fresh = trial % 2 == 0
            points = tuple(np.float32(rng.normal(size=(2, dim)) * 0.1))
            items = np.float32(rng.normal(size=(users, 1, dim)))
            other = items.copy()
            other[0] = -items[0] * rng.uniform(0, 2)
            sums = [
                moved(order, jax.random.key(trial), jnp.asarray(x), points, fresh)
                for x in (items, other)
            ]
            distance = float(np.linalg.norm(np.float64(sums[0]) - np.float64(sums[1])))
            assert distance <= 2 * (1 + 1e-5)
            largest = max(largest, distance)
    assert largest > 1.9


def test_many_passes_without_noise_are_o2nc_on_the_smoothed_risk():
    """Period 1, little noise: the steps are those of the transformation on the same estimates."""
    plan = _planned(o2nc_multi_pass, 6, num_steps=6, period=1, order="first")
    quiet = plan.replace(refresh_multiplier=1e-9, block_length=2)
    data = UserData(jnp.asarray(np.random.default_rng(2).normal(size=(6, 1, 2)), jnp.float32))
    solve = jax.jit(lambda key: o2nc_multi_pass.solve(key, quiet, CAPPED, data, jnp.zeros(2)))
    found = solve(jax.random.key(3))
    assert int(found.status) == Status.OK
    assert np.linalg.norm(found.params) <= 6 * float(quiet.radius) * (1 + 1e-5)
    assert np.linalg.norm(found.params) > 0


def _clusters(users):
    rng = np.random.default_rng(4)
    centres = np.where(rng.random(users)[:, None] < 0.7, [1.0, 0.0], [-1.0, 0.5])
    return np.float32(centres + 0.1 * rng.standard_normal((users, 2)))


@pytest.mark.slow
def test_it_finds_the_large_cluster():
    """Capped distances to two clusters of 2,000 points in the plane, from between them."""
    data = UserData(jnp.asarray(_clusters(2000))[:, None])
    settings = {"draws": 4, "num_steps": 600, "period": 5, "initial_gap": 1.5, "chunk_size": 2000}
    plan = _planned(o2nc_multi_pass, 2000, 2, **settings)
    solve = jax.jit(lambda key: o2nc_multi_pass.solve(key, plan, CAPPED, data, jnp.zeros(2)).params)
    ends = np.stack([solve(jax.random.key(seed)) for seed in range(4)])
    assert plan.certificate().epsilon <= 1.0
    near = jax.jit(lambda key, x: goldstein.goldstein_norm(key, CAPPED, data, x, 0.2, 50).norm)
    assert float(near(jax.random.key(0), jnp.zeros(2))) > 0.3
    after = [float(near(jax.random.key(1), jnp.asarray(end))) for end in ends]
    # The block is drawn: it may be one of the way there.
    assert np.median(after) < 0.1
    assert np.median(np.linalg.norm(ends - [1.0, 0.0], axis=1)) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree", "buffers"])
def test_what_is_learned_of_a_user_is_what_is_paid_for(kind):
    """Linear losses in one dimension, periods of two steps, 2·10⁵ runs on each side: the likelihood ratio.

    Of a user in the first step, who is worst: the measured μ is in [0.95, 1.02] of 1/σ.
    """
    sigma, runs = 1.25, 200_000
    of = _smoothed_means.StreamReleases(2, 2, kind, sigma, 1e-6, period=2, batch_sizes=(1, 1))
    mean = _smoothed_means.OnePass(1, "first", 1, of, 1.0, 0.1)

    @jax.jit
    def estimates(keys, item):
        data = UserData(jnp.stack([item, jnp.zeros(())])[:, None, None])

        def one(key):
            opened = mean.open(key, LINEAR, data, jnp.zeros(1))
            state, found = opened.release.init(jnp.zeros(1)), []
            for _ in range(2):
                asked = opened.oracle.at(state, jnp.zeros(1))(
                    jax.random.key(0), jnp.zeros(1), opened.data
                )
                update, state = opened.release.update(
                    asked.gradient, state, jnp.zeros(1), **asked.extra_args
                )
                found.append(update[0])
            return jnp.stack(found)

        return jax.vmap(one)(keys)

    sides = [
        np.float64(estimates(jax.random.split(jax.random.key(seed), runs), jnp.asarray(item)))
        for seed, item in ((1, -1.0), (2, 1.0))
    ]
    steps = [np.diff(side, axis=1, prepend=0.0) for side in sides]
    covariance = np.cov(np.concatenate([s - s.mean(axis=0) for s in steps]).T)
    ratio = np.linalg.solve(covariance, np.array([1.0, 0.0]))
    below, above = (np.mean(step @ ratio > 0) for step in steps)
    measured = scipy.stats.norm.ppf(above) - scipy.stats.norm.ppf(below)
    assert 0.95 / sigma < measured < 1.02 / sigma


def test_relations():
    replaced = _planned(o2nc_single_pass, 10**4)
    special = _planned(o2nc_single_pass, 10**4, relation=NeighboringRelation.REPLACE_SPECIAL)
    assert special.goldstein_bound < replaced.goldstein_bound
    assert special.certificate().relation is NeighboringRelation.REPLACE_SPECIAL
    assert special.noise_multiplier == replaced.noise_multiplier


def test_refuses():
    for module in (o2nc_single_pass, o2nc_multi_pass):
        bounded = CAPPED._replace(domain=domains.ball(1.0))
        with pytest.raises(ValueError, match="domain"):
            _planned(module, 100, objective=bounded)
        for name, bad in [
            ("initial_gap", 0.0), ("smoothing_radius", -1.0), ("draws", 0), ("order", "second"),
            ("relation", NeighboringRelation.ADD_OR_REMOVE_ONE), ("period", 0),
        ]:  # fmt: skip
            with pytest.raises(ValueError, match=name):
                _planned(module, 100, **{name: bad})
    with pytest.raises(ValueError, match=r"num_users must be at least .* would do"):
        _planned(o2nc_single_pass, 100, period=101)
    ridged = _planned(o2nc_single_pass, 100, objective=CAPPED._replace(ridge=0.1))
    assert math.isinf(ridged.goldstein_bound)
    assert ridged.certificate().epsilon <= 1.0
