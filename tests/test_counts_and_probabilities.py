"""Holes that were found one by one where ``test_bad_arguments`` does not look: in events and in arrays."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from dpsco_jax import privacy
from dpsco_jax.geometry import domains, rotations
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems import losses
from dpsco_jax.solvers.user_level import multipass_sgd
from tests.support.planned import planned

NAN, INF = math.nan, math.inf
REPLACE = NeighboringRelation.REPLACE_ONE
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("count", [1.99, 0.9, -1, NAN, "1", True, None])
def test_a_release_is_repeated_a_whole_number_of_times(count):
    event = SelfComposedDpEvent(GaussianDpEvent(1.0), 1)
    object.__setattr__(event, "count", count)  # whatever dp_accounting checks by itself
    with pytest.raises(ValueError, match="count"):
        privacy.certificate(event, 1e-6, REPLACE)


def test_a_whole_number_of_times_is_certified_as_that_many():
    one, three = events.gaussian(3.0), events.gaussian(3.0 / math.sqrt(3.0))
    found = privacy.certificate(events.repeated(one, np.int64(3)), 1e-6, REPLACE)
    assert found.epsilon == pytest.approx(privacy.certificate(three, 1e-6, REPLACE).epsilon)


def test_a_batch_without_replacement_has_no_more_users_than_there_are():
    for function in (
        events.subsampled_gaussian_without_replacement,
        privacy.subsampled_gaussian_without_replacement,
    ):
        with pytest.raises(ValueError, match="batch_size"):
            function(1.0, 100, 101)


@pytest.mark.parametrize("batch", [5.99, -1, NAN, "5"])
def test_a_batch_is_a_whole_number_of_users(batch):
    event = SampledWithoutReplacementDpEvent(100, 5, GaussianDpEvent(1.0))
    object.__setattr__(event, "sample_size", batch)
    with pytest.raises(ValueError, match="sample_size"):
        privacy.certificate(event, 1e-6, REPLACE)


@pytest.mark.parametrize("probability", [-0.1, 1.5, NAN, INF, "0.1", True, None])
def test_probabilities_of_events(probability):
    with pytest.raises(ValueError, match="sampling_probability"):
        privacy.certificate(PoissonSampledDpEvent(probability, GaussianDpEvent(1.0)), 1e-6, ADD)


@pytest.mark.parametrize("scale", [-1.0, NAN, "1", True, None, 1j])
def test_scales_of_events(scale):
    for event in (GaussianDpEvent, LaplaceDpEvent):
        with pytest.raises(ValueError, match="noise_multiplier"):
            privacy.certificate(event(scale), 1e-6, REPLACE)


def test_an_audit_of_counts_that_are_none():
    with pytest.raises(ValueError, match="positives"):
        privacy.epsilon_lower_bound(np.array([1.0, NAN]), 1, 10, 0.0)


def test_a_mask_of_numbers_is_no_mask():
    for mask in (np.array([1.0, 0.3, 0.0, 1.0]), np.array([1, 0, 0, 1]), np.ones(3, bool)):
        with pytest.raises(ValueError, match="user_mask"):
            concentrated_mean.concentration(jnp.zeros((4, 2)), 1.0, user_mask=mask)


@pytest.mark.parametrize("word", ["nonsense", None, 7])
def test_a_word_is_checked_also_where_it_is_not_used(word):
    # The radius is so large that gradients are clipped, and nothing is selected.
    settings = {"num_users": 50, "items_per_user": 1, "dim": 3, "epsilon": 1.0, "delta": 1e-5}
    objective = losses.logistic(1.0, domains.ball(1.0))
    with pytest.raises(ValueError, match="selection"):
        planned(multipass_sgd.plan, objective, **settings, num_steps=2, selection=word)


def test_numbers_of_numpy_are_sizes():
    assert rotations.padded_size(np.int64(5)) == 8
    bound = rotations.largest_coordinate(1.0, np.int32(10), np.int64(5), 0.1)
    assert bound == rotations.largest_coordinate(1.0, 10, 5, 0.1)
    assert rotations.random_signs(jax.random.key(0), np.int32(5)).shape == (8,)
