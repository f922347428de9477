"""The ramp of inlier weights in float32, for kept levels near one half: as steep as is proven, or nothing."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases


def _releases(keep, size=8, core=7.0, selection="weighted"):
    return ConcentratedReleases(
        size, size, 1, "fresh", selection, NeighboringRelation.REPLACE_ONE,
        keep, core + 10.0, core, 4.0, 1e-6, 1.0, 6.0, 1e-3,
    )  # fmt: skip


@pytest.mark.parametrize("selection", ["weighted", "bernoulli"])
@pytest.mark.parametrize("keep", [0.5 + 1e-8, 0.5 + 2.0**-24, 0.5 + 2.0**-23, 0.5 + 2.0**-20])
def test_nothing_is_claimed_where_the_ramp_turns_round(keep, selection):
    # A vector that is near to nobody had all of the weight, and those near to each other none, while the
    # mean was claimed to move by less than a radius.
    alone, together = (
        float(concentrated_mean.inlier_weights(jnp.asarray([degree]), 8, keep)[0])
        for degree in (1, 7)
    )
    if keep < 0.5 + 2.0**-23:
        assert (alone, together) == (1.0, 0.0)
    releases = _releases(keep, selection=selection)
    assert math.isinf(releases.sensitivity)
    assert math.isinf(releases.certificate().epsilon)
    assert np.all(np.isinf(releases.loss().rdp))
    traced = jax.jit(lambda k: _releases(k, selection=selection).loss())(keep)
    assert np.all(np.isinf(traced.rdp))


@pytest.mark.parametrize(("size", "over"), [(1000, 2e-3), (10_000, 2e-4), (100_000, 2e-5)])
def test_shares_of_one_vector_are_as_the_proof_counts_them(size, over):
    keep = 0.5 + over
    degrees = jnp.arange(size // 2, size // 2 + math.ceil(over * size) + 2)
    weights = np.asarray(concentrated_mean.inlier_weights(degrees, size, keep), float)
    core = size - 10.0
    releases = _releases(keep, size, core)
    # By the formula of Theorem 1 with the steps of the weights that run, where all of its terms are shared.
    reach = (6 * (size - 1) - 2 * core - 2 * (size - 1) / 2) / (size - 1)
    shared = (size - 1 - core) * np.max(np.diff(weights)) * reach / core
    exact = (size - 1 - core) / (over * size) * reach / core
    assert shared > exact  # what the test is about
    assert (
        float(releases.sensitivity)
        >= _sensitivity_without_rounding(size, core, keep) + shared - exact
    )


def _sensitivity_without_rounding(size, core, keep):
    shared, ramp = size - 1, (keep - 0.5) * size

    def reach(near):
        return (6 * shared - 2 * core - 2 * np.minimum(near, core)) / shared

    degrees = np.arange(size // 2 + 1, size + 1)
    weights = np.clip((degrees - size / 2) / ramp, 0, 1)
    moved = 2 * np.max(weights * reach(degrees - 1))
    return (moved + (shared - core) / ramp * reach((size - 1) / 2)) / core
