"""Centred clipping: values, sensitivity against any neighbour, what adapts, and what it is good for."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.transforms import CentredClipState
from tests.support.neighbours import worst_pair
from tests.support.replay import assert_no_leak

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
ZERO_OUT = NeighboringRelation.REPLACE_SPECIAL
RELATIONS = [REPLACE, ADD_REMOVE, ZERO_OUT]


@functools.partial(jax.jit, static_argnames="aggregate")
def without_noise(aggregate, updates, state, **extra):
    """Updates and next state as ``privatize`` makes them, less the noise."""
    return aggregate.finish(*aggregate.update(updates, state, **extra))


def reference(updates, centre, radius, mask, divisor):
    """The release without noise and the share inside, in NumPy, float64, user by user."""
    rows, middle = np.asarray(updates, np.float64), np.asarray(centre, np.float64)
    total, inside = np.zeros_like(middle), 0
    for row, counted in zip(rows, mask, strict=True):
        if counted and np.all(np.isfinite(row)):
            norm = np.linalg.norm(row - middle)
            total += (row - middle) * min(1.0, radius / norm)
            inside += norm <= 0.9 * radius
    return middle + total / divisor, inside / divisor


@pytest.mark.parametrize("microbatch_size", [None, 1, 3, 40])
@pytest.mark.parametrize("quantile", [None, 0.3])
def test_release_centre_and_radius(microbatch_size, quantile, rng):
    users, divisor, rate = 11, 5.0, 0.25
    rows = np.float32(rng.normal(size=(users, 4)))
    rows[2, 1], rows[7, 0] = np.nan, -np.inf
    mask = np.arange(users) != 4
    centre = np.float32([0.3, -0.4, 0.1, 0.2])
    aggregate = transforms.centred_clip(
        1.7,
        divisor,
        centre_rate=rate,
        quantile=quantile,
        quantile_rate=0.7,
        microbatch_size=microbatch_size,
    )

    def tree(x):
        # Two leaves: the norm is of both together.
        return {"w": x[..., :3], "b": x[..., 3]}

    state = CentredClipState(tree(jnp.asarray(centre)), jnp.float32(1.7))
    mean, new = without_noise(
        aggregate, tree(jnp.asarray(rows)), state, user_mask=jnp.asarray(mask)
    )
    expected, share = reference(rows, centre, 1.7, mask, divisor)
    np.testing.assert_allclose(np.append(mean["w"], mean["b"]), expected, rtol=1e-4)
    moved = centre + rate * (expected - centre)
    np.testing.assert_allclose(np.append(new.centre["w"], new.centre["b"]), moved, rtol=1e-4)
    factor = 1.0 if quantile is None else math.exp(-0.7 * (share - quantile))
    np.testing.assert_allclose(new.radius, 1.7 * factor, rtol=1e-5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_sensitivity_is_reached_but_not_exceeded_in_half_precision(relation):
    """Around a centre and with a radius that earlier releases may have led to."""
    aggregate = transforms.centred_clip(1.0, 3.0, relation, quantile=0.5, microbatch_size=2)
    centre = {"w": jnp.array([0.2, -1.0, 0.4]), "b": jnp.float32(0.3)}
    state = CentredClipState(centre, jnp.float32(0.7))

    def statistic(data, mask):
        return aggregate.update({"w": data[:, :3], "b": data[:, 3]}, state, user_mask=mask)[0]

    worst = worst_pair(statistic, 3, (4,), relation, dtype=jnp.float16, rounds=6, population=64)
    assert 0.95 * aggregate.sensitivity < worst.distance <= aggregate.sensitivity * (1 + 1e-6)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_share_uses_all_the_room_that_there_is(relation):
    """The pair that a larger weight would break: a user just inside, one just opposite or absent."""
    aggregate = transforms.centred_clip(2.0, 1.0, relation, quantile=0.5)
    state = aggregate.init(jnp.zeros(2))

    @jax.jit
    def statistic(first):
        counted = jnp.stack([(first > 0) | (relation is REPLACE)])
        return aggregate.update(jnp.array([[first, 0.0]]), state, user_mask=counted)[0]

    inside, opposite = statistic(1.8 * (1 - 1e-5)), statistic(-50.0)
    distance = optax.tree.norm(jax.tree.map(jnp.subtract, inside, opposite))
    assert 0.9999 * aggregate.sensitivity < distance <= aggregate.sensitivity * (1 + 1e-6)
    # Just beyond 0.9 radii nobody counts, so that the pair above is the worst of its kind.
    assert statistic(1.8 * (1 + 1e-5)).inside == 0 < inside.inside


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_quantile_is_not_charged(relation):
    with_share = transforms.centred_clip(3.0, 12, relation, quantile=0.5).sensitivity
    unit = 2.0 if relation is REPLACE else 1.0
    assert with_share == transforms.centred_clip(3.0, 12, relation).sensitivity == unit / 12


def test_bad_users_move_the_mean_by_twice_the_radius_over_the_number(rng):
    users, bad = 40, 2
    good = jnp.float32(5.0 + 0.1 * rng.normal(size=(users, 3)))
    aggregate = transforms.centred_clip(0.5, users, start=jnp.full(3, 5.0))
    state = aggregate.init(jnp.zeros(3))
    honest, _ = without_noise(aggregate, good, state)
    for value in (1e30, -1e6, np.nan, np.inf):
        spoiled, _ = without_noise(aggregate, good.at[:bad].set(value), state)
        assert np.linalg.norm(spoiled - honest) <= 2 * 0.5 * bad / users * (1 + 1e-5)


def test_a_poisson_sample_is_a_mean_of_deviations():
    """Divided by the expected number: the centre itself is not multiplied by who turned up."""
    aggregate = transforms.centred_clip(
        1.0, 0.5 * 8, ADD_REMOVE, start=jnp.full(2, 100.0), quantile=0.5
    )
    rows = jnp.full((8, 2), 100.5)
    state = aggregate.init(jnp.zeros(2))
    for present in (0, 4, 8):
        mask = jnp.arange(8) < present
        mean, new = without_noise(aggregate, rows, state, user_mask=mask)
        np.testing.assert_allclose(mean, 100 + 0.5 * present / 4, rtol=1e-6)
        np.testing.assert_allclose(new.radius, math.exp(-0.5 * (present / 4 - 0.5)), rtol=1e-5)


@functools.partial(jax.jit, static_argnames=("aggregate", "steps"))
def released(rows, aggregate, steps, noise_multiplier):
    """Releases, radii and the last state of some steps on the same rows."""
    chain = transforms.privatize(aggregate, jax.random.key(3), noise_multiplier)

    def step(state, _):
        out, state = chain.update(rows, state)
        return state, (out, state.inner.radius)

    state, (out, radii) = jax.lax.scan(step, chain.init(rows[0]), None, length=steps)
    return out, radii, state


def test_noise_follows_the_radius_and_the_ledger_does_not():
    radii, dim, multiplier = (0.01, 3.0), 20_000, 2.0
    spent = []
    for radius in radii:
        aggregate = transforms.centred_clip(radius, 10, centre_rate=0.0, quantile=0.5)
        out, _, state = released(jnp.zeros((4, dim)), aggregate, 1, multiplier)
        assert np.std(out) == pytest.approx(multiplier * 2 / 10 * radius, rel=0.03)
        spent.append(privacy.privacy_spent(state).rdp)
        np.testing.assert_allclose(spent[-1], privacy.ORDERS / (2 * multiplier**2), rtol=1e-5)


def test_the_radius_settles_where_the_noise_of_the_centre_lets_it(rng):
    """r = s/√(0.81 - α/(2-α)k²): the formula that says how large a rate may be."""
    users = dim = 200
    rows = jnp.float32(0.3 * rng.normal(size=(users, dim)) / math.sqrt(dim))
    multiplier = 0.5 * users / (2 * math.sqrt(dim))  # k = 1/2
    aggregate = transforms.centred_clip(0.4, users, centre_rate=1.0, quantile=0.5)
    _, radii, _ = released(rows, aggregate, 60, multiplier)
    # Over keys the mean of 40 radii has a standard deviation of 4 %; without the noise it were 17 % less.
    assert np.mean(radii[20:]) == pytest.approx(0.3 / math.sqrt(0.81 - 0.25), rel=0.09)


@pytest.mark.slow
def test_a_stable_rate_where_noise_is_larger_than_the_radius(rng):
    """k = 2: a rate of 1/2 runs away, the stable rate does not."""
    users, dim = 100, 100
    rows = jnp.float32(rng.normal(size=(users, dim)) / math.sqrt(dim))
    multiplier = 2.0 * users / (2 * math.sqrt(dim))
    rate = transforms.stable_centre_rate(multiplier, users, dim)
    assert rate == pytest.approx(0.81 / (0.81 + 4))
    last = []
    for centre_rate in (rate, 0.7):
        aggregate = transforms.centred_clip(1.0, users, centre_rate=centre_rate, quantile=0.5)
        _, radii, _ = released(rows, aggregate, 60, multiplier)
        last.append(float(radii[-20:].mean()))
    assert last[0] < 2.5
    assert last[1] > 20


def test_centre_and_radius_are_functions_of_releases(rng):
    aggregate = transforms.centred_clip(1.0, 6, centre_rate=0.5, quantile=0.5)
    rows = jnp.float32(rng.normal(size=(6, 3)))

    @jax.jit
    def run(rows):
        chain = transforms.privatize(aggregate, jax.random.key(0), 1.0)
        return jax.lax.scan(
            lambda state, _: chain.update(rows, state)[::-1], chain.init(rows[0]), None, 3
        )

    assert_no_leak(run, rows, rows.at[0].set(jnp.nan).at[1:].multiply(1e6))


def test_radius_stays_where_a_float_can_divide_by_it():
    aggregate = transforms.centred_clip(1.0, 4, centre_rate=0.0, quantile=0.5, quantile_rate=80.0)
    for value, limit in ((0.0, 1e-6), (1e9, 1e6)):
        _, radii, _ = released(jnp.full((4, 2), value), aggregate, 3, jnp.float32(1e-3))
        np.testing.assert_allclose(radii[-1], limit, rtol=1e-5)
