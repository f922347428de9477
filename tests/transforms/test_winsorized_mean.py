"""The winsorized mean in a chain: as the mechanism, charged per query, shut after the last one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms.winsorized import winsorized_mean as mechanism
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases
from tests.support.neighbours import worst_pair
from tests.support.replay import assert_no_leak

USERS, DIM, QUERIES = 400, 3, 2
FORMS = ("clipped", "winsorized", "refined", "recentred")


@functools.cache
def releases(form):
    return calibrate_winsorized(
        USERS, DIM, QUERIES, 5.0, 1e-4, radius=0.1, bound=1.0, failure=0.01, form=form
    )


def updates(seed=0):
    rng = np.random.default_rng(seed)
    rows = 0.03 * rng.normal(size=(USERS, DIM)) + 0.3
    return {"a": jnp.asarray(np.float32(rows[:, :1])), "b": jnp.asarray(np.float32(rows[:, 1:]))}


@functools.cache
def run_of(form):
    planned = releases(form)

    @jax.jit
    def run(key, rows):
        chain = transforms.winsorized_mean(planned, key)
        state = chain.init({"a": jnp.zeros(1), "b": jnp.zeros(2)})

        def step(state, _):
            out, state = chain.update(rows, state)
            return state, (out, privacy.privacy_spent(state))

        return jax.lax.scan(step, state, length=QUERIES + 2)

    return run


@pytest.mark.parametrize("form", FORMS)
def test_answers_the_planned_number_of_queries(form):
    state, (out, spent) = run_of(form)(jax.random.key(0), updates())
    found = np.concatenate([out["a"], out["b"]], axis=1)
    assert np.all(np.abs(found[:QUERIES] - 0.3) < 0.05 + 6 * float(releases(form).noise_stddev))
    assert np.all(found[:QUERIES] != 0)
    assert np.all(found[0] != found[1])
    np.testing.assert_array_equal(found[QUERIES:], 0.0)
    assert state.queries == QUERIES
    once = releases(form).query_loss().rdp
    for step, factor in enumerate([1, 2, 2, 2]):
        np.testing.assert_allclose(spent.rdp[step], factor * once, rtol=1e-5)
    total = privacy.PrivacyLoss(spent.rdp[-1], spent.delta[-1])
    if form in ("winsorized", "refined"):  # the others are calibrated by another accountant
        assert privacy.epsilon(total, 1e-4) <= 5.0


def test_is_the_mechanism_on_raveled_rows():
    _, (out, _) = run_of("refined")(jax.random.key(3), updates())
    rows = jnp.concatenate([updates()["a"], updates()["b"]], axis=1)
    _, query_key = jax.random.split(jax.random.key(3))
    expected = jax.jit(mechanism.winsorized_mean)(query_key, rows, releases("refined"))
    found = jnp.concatenate([out["a"][0], out["b"][0]])
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_data_reach_the_result_through_releases_only(form):
    def run(rows):
        chain = transforms.winsorized_mean(releases(form), jax.random.key(0))
        state = chain.init(None)
        return jax.jit(lambda r: chain.update(r, state))(rows)

    other = jax.tree.map(lambda x: 100 * x, updates(1))
    assert_no_leak(run, updates(), other)


def test_arguments():
    chain = transforms.winsorized_mean(releases("clipped"), jax.random.key(0))
    with pytest.raises(ValueError, match="shape"):
        chain.update(jnp.zeros((USERS, DIM + 1)), chain.init(None))


@pytest.mark.parametrize("form", FORMS)
def test_who_is_masked_out_counts_as_zero_and_in_the_divisor(form):
    """The number of users stays what was planned: it is public, the mask is not."""

    @jax.jit
    def update(rows, mask):
        chain = transforms.winsorized_mean(releases(form), jax.random.key(4))
        return chain.update(rows, chain.init(None), user_mask=mask)[0]

    mask = jnp.arange(USERS) % 3 != 0
    zeroed = jax.tree.map(lambda x: jnp.where(mask[:, None], x, 0.0), updates())
    spoiled = jax.tree.map(lambda x: jnp.where(mask[:, None], x, jnp.nan), updates())
    everybody = jnp.ones(USERS, bool)
    expected = update(zeroed, everybody)
    jax.tree.map(np.testing.assert_array_equal, update(spoiled, mask), expected)
    assert not np.array_equal(update(updates(), everybody)["b"], expected["b"])


@pytest.mark.parametrize("left", [False, True])
def test_masks_keep_the_sensitivity(left):
    """The worst pair of neighbours of a clipped mean, with the same noise on both."""
    planned = WinsorizedReleases(
        num_users=4,
        dim=3,
        num_queries=1,
        form="clipped",
        radius=0.1,
        bound=0.7,
        coordinate_radius=0.1,
        bin_width=0.05,
        range_epsilon=3.0,
        coarse_multiplier=1.0,
        ball_radius=1.0,
        noise_multiplier=1e-3,
        failure=0.1,
        epsilon=50.0,
        delta=1e-3,
    )

    def statistic(data, mask):
        chain = transforms.winsorized_mean(planned, jax.random.key(0))
        # The user who changes is masked out on one side (left) or stays (replaced by another).
        return chain.update(data, chain.init(None), user_mask=mask)[0]

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE if left else NeighboringRelation.REPLACE_ONE
    worst = worst_pair(statistic, 4, (3,), relation, rounds=6, population=64)
    declared = 2 * 0.7 / 4
    assert planned.sensitivity == pytest.approx(declared)
    assert (0.45 if left else 0.95) * declared < worst.distance <= declared * (1 + 1e-5)
