"""Clipping per layer: each subtree to a norm of its own, one statistic, one sensitivity, one charge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from tests.support.neighbours import worst_pair

REPLACE = NeighboringRelation.REPLACE_ONE
ADD_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
ZERO_OUT = NeighboringRelation.REPLACE_SPECIAL
BOUNDS = {"a": 0.3, "b": (1.2, 0.4)}


def layered(data):
    """Layers of 2, 1 and 2 entries: "a" has two leaves, and clips them together."""
    return {"a": [data[:, :1], data[:, 1]], "b": (data[:, 2:3], data[:, 3:])}


def total(aggregate, updates, **extra):
    return aggregate.update(updates, aggregate.init(None), **extra)[0]


def reference(rows, mask):
    """Layer by layer and user by user, in float64."""
    sums = np.zeros(5)
    for row, counted in zip(np.float64(rows), mask, strict=True):
        if not counted or not np.all(np.isfinite(row)):
            continue
        for layer, bound in ((slice(0, 2), 0.3), (slice(2, 3), 1.2), (slice(3, 5), 0.4)):
            norm = np.linalg.norm(row[layer])
            sums[layer] += row[layer] * (min(1.0, bound / norm) if norm else 1.0)
    return sums


@pytest.mark.parametrize("microbatch_size", [None, 4, 20])
def test_each_layer_is_clipped_by_itself(microbatch_size, rng):
    rows = rng.normal(size=(37, 5)) * rng.choice([0.1, 1.0, 30.0], size=(37, 1))
    # A bad entry takes the user out of every layer; so does the mask.
    rows[3, 1], rows[8, 4], rows[11] = np.nan, np.inf, 0.0
    mask = np.arange(37) != 20
    aggregate = transforms.clipped_mean(BOUNDS, 4.0, microbatch_size=microbatch_size)
    updates = layered(jnp.asarray(np.float32(rows)))
    ours = jax.jit(lambda u: total(aggregate, u, user_mask=jnp.asarray(mask)))(updates)
    assert jax.tree.structure(ours) == jax.tree.structure(updates)
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(ours)])
    np.testing.assert_allclose(found, reference(rows, mask) / 4.0, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE, ZERO_OUT])
@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_sensitivity_is_reached_but_not_exceeded(relation, microbatch_size, dtype):
    aggregate = transforms.clipped_mean(BOUNDS, 3.0, relation, microbatch_size)

    def statistic(data, mask):
        return total(aggregate, layered(data), user_mask=mask)

    worst = worst_pair(statistic, 3, (5,), relation, dtype=dtype, rounds=12, population=64)
    joint = np.sqrt(0.3**2 + 1.2**2 + 0.4**2) / 3 * (2 if relation is REPLACE else 1)
    assert aggregate.sensitivity == pytest.approx(joint, rel=1e-9)
    assert 0.9 * joint < worst.distance <= joint * (1 + 1e-6)


def test_declared_sensitivities():
    """√ΣC² on the host and traced, rounded up, whatever the sizes of the bounds."""
    for bounds, joint in [((3.0, 4.0), 5.0), ([1e-30, 1e-30], np.sqrt(2) * 1e-30), ({"x": 2}, 2.0)]:
        assert transforms.clipped_sum(bounds, ADD_REMOVE).sensitivity >= joint
        for make in (transforms.clipped_sum, lambda b, r: transforms.summed_contributions(b, 1, r)):
            host = make(bounds, REPLACE).sensitivity
            assert host == pytest.approx(2 * joint, rel=1e-12)
            traced = jax.jit(lambda b, make=make: make(b, REPLACE).sensitivity)(bounds)
            assert 2 * joint <= traced == pytest.approx(2 * joint, rel=1e-5)
    nonnegative = transforms.summed_contributions((3.0, 4.0), 1, REPLACE, nonnegative=True)
    assert nonnegative.sensitivity == pytest.approx(5 * np.sqrt(2))


def test_one_release_with_one_charge():
    """Noise of one size on all layers, and the loss of a single Gaussian release on the sample.

    Charged as two releases of σ = 0.8 on samples of their own (q = 0.01, 1,000 steps), two layers came to
    ε = 4.86 at δ = 1e-5; on their common sample ε is above 8.5.
    """
    bounds = {"a": 3.0, "b": 4.0}
    params = {"a": jnp.zeros(8000), "b": jnp.zeros(8000)}
    aggregate = transforms.clipped_sum(bounds, ADD_REMOVE)
    release = transforms.privatize(aggregate, jax.random.key(0), 0.8, privacy.Poisson(0.01))
    updates = jax.tree.map(lambda p: jnp.zeros((2, *p.shape)), params)
    moves, state = jax.jit(release.update)(updates, release.init(params))
    for leaf in jax.tree.leaves(moves):
        assert scipy.stats.kstest(np.float64(leaf) / (0.8 * 5.0), "norm").pvalue > 1e-3
    once = privacy.poisson_subsampled_gaussian(0.8, 0.01)
    np.testing.assert_allclose(privacy.privacy_spent(state).rdp, once.rdp, rtol=1e-5, atol=1e-9)


def test_a_bound_for_each_subtree_of_the_updates():
    updates = layered(jnp.ones((4, 5)))
    for wrong in ({"a": 1.0}, {"a": 1.0, "c": 1.0}, (1.0, 1.0), {"a": 1.0, "b": (1.0, {"x": 1.0})}):
        for make in (transforms.clipped_sum, lambda c: transforms.summed_contributions(c, 3)):
            with pytest.raises(ValueError, match="clip_norm must be one number, or a tree"):
                total(make(wrong), updates)


@pytest.mark.parametrize(
    "wrong", [{"a": 1.0, "b": 0.0}, {"a": -1.0}, (np.nan,), {}, (), "1.0", {"a": "1"}, np.ones(2)]
)
def test_bounds_that_are_none(wrong):
    for make in (transforms.clipped_sum, lambda c: transforms.summed_contributions(c, 3)):
        with pytest.raises(ValueError, match="clip_norm"):
            make(wrong)
