"""Outlier-removed mean: the law of its tests, what it releases, when it stops, what it charges."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from tests.support.compiled import OPTIMIZED
from tests.support.replay import assert_no_leak
from tests.support.tested import phase


def cluster(users=100, dim=4, centre=0.0, seed=0):
    """Vectors all within distance 1 of each other."""
    rows = np.random.default_rng(seed).standard_normal((users, dim))
    rows /= 2.02 * np.max(np.linalg.norm(rows, axis=1))
    return (rows + centre).astype(np.float32)


class Run(NamedTuple):
    """Means, halting flags and losses of all steps, and the state after the last."""

    outs: jax.Array
    halted: jax.Array
    state: transforms.OutlierRemovedState
    spent: privacy.PrivacyLoss


def run(releases, batches, key=None, radius=1.0, masks=None, **options):
    """The means of a sequence of batches ``[steps, users, ...]``, whether each halted, and the state."""
    key = jax.random.key(0) if key is None else key
    batches = jax.tree.map(jnp.asarray, batches)
    masks = jnp.ones(batches.shape[:2], bool) if masks is None else masks
    # One compiled program for all plans and data of the same sizes.
    return _run(releases, batches, key, radius, masks, tuple(options.items()))


@functools.partial(jax.jit, static_argnums=5)
def _run(releases, batches, key, radius, masks, options):
    mean = transforms.outlier_removed_mean(releases, radius, key, **dict(options))
    state = mean.init(jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), batches))

    def step(state, batch):
        rows, mask = batch
        out, state = mean.update(rows, state, user_mask=mask)
        return state, (out, state.halted, privacy.privacy_spent(state))

    state, (outs, halted, spent) = jax.lax.scan(step, state, (batches, masks))
    return Run(outs, halted, state, spent)


def first_halts(releases, trials, steps, users=4):
    """In which step (from 0) each of many runs on equal vectors halts; ``steps`` if it does not."""
    batches = jnp.zeros((steps, users, 1))
    halted = _halted_in(jax.random.split(jax.random.key(0), trials), releases, batches)
    return np.sum(~np.asarray(halted), axis=1)


@functools.partial(jax.jit, compiler_options=OPTIMIZED)
@functools.partial(jax.vmap, in_axes=(0, None, None))
def _halted_in(key, releases, batches):
    return run(releases, batches, key).halted


def test_fresh_tests_are_independent():
    trials = 50_000
    halts = first_halts(phase(4, 3, 4.0, test_epsilon=1.0, test="fresh"), trials, 3)
    for passed in (1, 2, 3):
        share = 0.5**passed
        assert abs(np.mean(halts >= passed) - share) < 5 * np.sqrt(share / trials)
    # A margin of 3 for a Laplace variable of scale 2 / 1.
    halts = first_halts(phase(4, 3, 1.0, test_epsilon=1.0, test="fresh"), trials, 3)
    assert abs(np.mean(halts >= 1) - (1 - np.exp(-1.5) / 2)) < 0.008


@pytest.mark.parametrize("threshold", [1.0, 4.0])
def test_the_law_of_the_halting_step_is_that_of_the_sparse_vector(threshold):
    trials, steps, epsilon = 40_000, 40, 2.0
    releases = phase(4, steps, threshold, test_epsilon=epsilon)
    halts = first_halts(releases, trials, steps)
    margin = 4.0 - threshold
    noise = np.linspace(-80, 80, 40_001)
    density = stats.laplace.pdf(noise, scale=2 * 2.0 / epsilon)
    passes = stats.laplace.sf(noise - margin, scale=4 * 2.0 / epsilon)
    law = [np.trapezoid(density * passes**k * (1 - passes), noise) for k in range(steps)]
    law.append(np.trapezoid(density * passes**steps, noise))
    np.testing.assert_allclose(np.sum(law), 1.0, rtol=1e-6)
    counts = np.bincount(halts, minlength=steps + 1)
    # Classes of a few runs each are put together.
    expected = trials * np.array(law) / np.sum(law)
    late = np.arange(steps + 1) >= np.argmax(expected < 40) if np.any(expected < 40) else None
    if late is not None:
        late[-1] = False
        counts = np.append(counts[~late], np.sum(counts[late]))
        expected = np.append(expected[~late], np.sum(expected[late]))
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_a_release_is_the_mean_plus_the_planned_noise():
    """All but one user at 0, one at ±1.99 radii: Gaussian of known mean and standard deviation."""
    users, radius, trials = 40, 0.5, 20_000
    releases = phase(users, 1, 1.0, test_epsilon=400.0, noise_stddev=0.07)
    many = jax.vmap(lambda key, rows: run(releases, rows, key, radius)[:2], (0, None))
    many = jax.jit(many, compiler_options=OPTIMIZED)
    keys = jax.random.split(jax.random.key(1), trials)
    head = 1 + concentrated_mean.headroom(jax.ShapeDtypeStruct((2,), jnp.float32))
    for sign in (1.0, -1.0):
        rows = np.zeros((1, users, 2), np.float32)
        rows[0, 0, 1] = sign * 1.99 * radius
        outs, halted = many(jax.random.clone(keys), rows)
        assert not np.any(halted)
        for entry, mean in ((0, 0.0), (1, sign * 1.99 * radius / users)):
            law = stats.norm(mean, 0.07 * radius * head)
            assert stats.kstest(np.float64(outs[:, 0, entry]), law.cdf).pvalue > 1e-4


def test_the_noise_pays_for_the_margin_of_the_comparisons():
    """Everybody at 0 and the same key: what is released is the noise, in proportion to its size."""
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    outs, margins = [], []
    for reach in (16.0, 200.0):
        outs.append(run(phase(), np.zeros((3, 100, 4), np.float32), anchor=None, reach=reach).outs)
        margins.append(1 + concentrated_mean.headroom(shape, reach))
    assert margins[1] > 1.05
    np.testing.assert_allclose(outs[1] / outs[0], margins[1] / margins[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("test", "selection"), [("stream", "weighted"), ("stream", "bernoulli"), ("fresh", "weighted")]
)
def test_without_noise_concentrated_users_have_their_plain_mean(selection, test):
    releases = phase(selection=selection, test=test, noise_stddev=0.0)
    batches = np.stack([cluster(centre=2.0, seed=seed) for seed in range(3)])
    outs, halted, state, _ = run(releases, batches)
    np.testing.assert_allclose(outs, np.mean(np.float64(batches), axis=1), atol=1e-6)
    assert not np.any(halted)
    np.testing.assert_array_equal(state.last, outs[-1])


def test_the_random_subset_is_drawn_anew_in_each_step():
    """A third of the users are on the ramp: their neighbours within 2 radii are 60 of 100."""
    rows = np.zeros((200, 1), np.float32)
    rows[:80], rows[80:120] = 3.0, 1.5
    releases = phase(200, 8, 1.0, selection="bernoulli", noise_stddev=0.0, test_epsilon=400.0)
    outs = run(releases, np.stack([rows] * 8))[0]
    found = jax.jit(concentrated_mean.concentration)(rows, 1.0)
    weights = concentrated_mean.inlier_weights(found.degrees, 200, 2 / 3)
    assert 0.0 < weights[0] < 1.0
    assert len(np.unique(outs)) > 4
    np.testing.assert_allclose(
        np.mean(outs), concentrated_mean.weighted_mean(rows, weights)[0], atol=0.1
    )


OUTLIERS = {
    "far": lambda rng, n: 1e6 * rng.standard_normal((n, 4)),
    "overflowing": lambda rng, n: np.full((n, 4), 3e38),
    "not numbers": lambda rng, n: np.where(rng.random((n, 4)) < 0.2, np.nan, -np.inf),
    "colluding far away": lambda rng, n: np.full((n, 4), 4.0),
    "colluding as near as they can": lambda rng, n: 1.45 * np.eye(4)[np.zeros(n, int)],
    "colluding on the ramp": lambda rng, n: (1.6 + 0.5 * rng.random((n, 1))) * np.eye(4)[:1],
}


@pytest.mark.parametrize("kind", OUTLIERS)
@pytest.mark.parametrize("selection", ["weighted", "bernoulli"])
def test_five_percent_of_outliers_move_the_mean_by_their_weight_at_most(rng, kind, selection):
    """All kept vectors are within 4 radii of each other, and 1/20 of the users have changed."""
    rows = cluster(100)
    clean = np.mean(np.float64(rows[5:]), axis=0)
    rows[:5] = OUTLIERS[kind](rng, 5)
    releases = phase(selection=selection, noise_stddev=0.01)
    outs, halted, *_ = run(releases, np.stack([rows] * 3))
    assert not np.any(halted)
    deviation = np.linalg.norm(np.float64(outs) - clean, axis=1)
    assert np.all(deviation <= 4.0 * 5 / 95 + 5 * 0.0101 * 2)
    if not kind.startswith("colluding as near") and not kind.endswith("ramp"):
        # Left out altogether: only the noise is there.
        assert np.all(deviation <= 5 * 0.0101 * 2)


@pytest.mark.parametrize("kind", ["far", "not numbers", "colluding far away"])
def test_forty_percent_of_outliers_halt_the_run(rng, kind):
    good, bad = cluster(100, centre=1.0), cluster(100, centre=1.0)
    bad[:40] = OUTLIERS[kind](rng, 40)
    outs, halted, state, _ = run(phase(), np.stack([good, bad, good]))
    np.testing.assert_array_equal(halted, [False, True, True])
    np.testing.assert_array_equal(state.last, outs[0])
    np.testing.assert_array_equal(outs[1:], 0.0)
    assert np.all(np.abs(outs[0] - 1.0) < 0.2)


def test_leaves_of_any_precision_are_judged_as_a_whole_and_nothing_is_released_after_a_halt():
    rng, mask = np.random.default_rng(0), np.ones((3, 100), bool)
    rows = {
        "w": jnp.asarray(0.05 * rng.standard_normal((3, 100, 2, 3)), jnp.bfloat16),
        "b": jnp.float32(0.05 * rng.standard_normal((3, 100))),
    }
    near = run(phase(), rows, masks=mask)
    assert near.outs["w"].dtype == jnp.bfloat16
    assert not np.any(near.halted)
    np.testing.assert_allclose(near.outs["b"], np.mean(rows["b"], 1), atol=5e-3)
    apart = run(phase(), {**rows, "b": rows["b"].at[0, :50].add(3.0)}, masks=mask)
    assert np.all(apart.halted)
    for leaf in jax.tree.leaves((apart.outs, apart.state.last)):
        np.testing.assert_array_equal(leaf, 0.0)


def test_a_user_without_a_number_is_released_as_one_far_away_or_masked():
    rows = np.stack([cluster(100)] * 3)
    spoiled, far = rows.copy(), rows.copy()
    spoiled[:, 7, 2], far[:, 7] = np.nan, 500.0
    mask = np.broadcast_to(np.arange(100) != 7, (3, 100))
    go = lambda b, m: run(phase(), b, masks=m)[:2]  # noqa: E731
    first, second = go(spoiled, np.ones_like(mask)), go(far, np.ones_like(mask))
    for a, b, c in zip(first, second, go(rows, mask), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert not np.any(first[1])


@pytest.mark.parametrize("test", ["stream", "fresh"])
def test_nothing_is_released_beyond_the_last_step_and_the_phase_is_charged_once(test):
    """Beyond it not even the state depends on the data; the charge is that of the whole phase at once."""
    good, bad = cluster(100), cluster(100)
    bad[:50] = 9.0
    releases = phase(num_steps=2, test=test)
    first, second, third = (
        run(releases, np.stack(batches))
        for batches in ([good, good, good], [good, good, bad], [bad, good, good])
    )
    np.testing.assert_array_equal(first.halted, [False, False, True])
    assert np.all(first.outs[:2] != 0.0)
    np.testing.assert_array_equal(first.outs[2], 0.0)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(a, b)
    assert first.state.steps == 2
    assert np.all(third.halted)
    expected = releases.loss()
    for spent in (first.spent, third.spent):
        for step in range(3):
            # Traced numbers have float32's precision, and are rounded upwards.
            np.testing.assert_allclose(spent.rdp[step], expected.rdp, rtol=5e-5)
            np.testing.assert_allclose(spent.delta[step], expected.delta, rtol=2e-4, atol=1e-30)
            assert np.all(spent.rdp[step] >= np.float32(expected.rdp))
    fresh = transforms.outlier_removed_mean(releases, 1.0, jax.random.key(0)).init(jnp.zeros(4))
    np.testing.assert_array_equal(privacy.privacy_spent(fresh).rdp, 0.0)


def test_the_last_release_is_the_anchor_while_its_noise_is_small():
    moving = np.stack([cluster(100, centre=7.0 * step) for step in range(3)])
    assert not np.any(run(phase(), moving).halted)
    # From the origin, two steps of 14 radii are out of reach.
    stopped = run(phase(), moving, anchor=None, reach=16.0).halted
    np.testing.assert_array_equal(stopped, [False, False, True])
    # Noise of 40 radii would carry the anchor out of everybody's reach.
    assert not np.any(run(phase(noise_stddev=20.0), np.stack([cluster(100)] * 3)).halted)


def test_halted_is_found_in_any_nest_of_states():
    rows = np.stack([cluster(100)] * 3)
    going = run(phase(), rows).state
    rows[2, :50] += 9.0
    stopped = run(phase(), rows).state
    assert not transforms.halted(optax.chain(optax.identity()).init(jnp.zeros(4)))
    assert not transforms.halted({"here": [going, optax.EmptyState()]})
    assert transforms.halted((optax.EmptyState(), {"here": [going, (stopped,)]}))


def test_another_number_of_users_is_refused():
    mean = transforms.outlier_removed_mean(phase(), 1.0, jax.random.key(0))
    with pytest.raises(ValueError, match=r"number of users must be 100, got 99"):
        mean.update(cluster(99), mean.init(jnp.zeros(4)))


# Last in the file, because it empties the compilation cache.
def test_data_are_seen_through_releases_only():
    data, others = cluster(100, seed=1), cluster(100, centre=3.0, seed=2)
    others[5] = np.nan
    for changes, anchor in (
        ({}, "last release"),
        ({"test": "fresh", "selection": "bernoulli"}, None),
    ):
        releases = phase(**changes)
        assert_no_leak(
            lambda rows: run(releases, jnp.stack([rows] * 3), anchor=anchor),  # noqa: B023
            jnp.asarray(data),
            jnp.asarray(others),
        )


@pytest.mark.parametrize(
    ("radius", "good"), [(1.0, True), (0.0, False), (-1.0, False), (np.nan, False)]
)
def test_a_traced_radius_that_is_no_length_makes_the_loss_infinite(radius, good):
    @jax.jit
    def spent(radius):
        mean = transforms.outlier_removed_mean(phase(), radius, jax.random.key(0))
        state = mean.update(jnp.zeros((100, 4)), mean.init(jnp.zeros(4)))[1]
        return privacy.epsilon(privacy.privacy_spent(state), 1e-1)

    assert bool(np.isfinite(spent(radius))) == good
