"""Holes that were found one by one: numbers that were cut off, taken for others, or taken at all."""

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
from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.pld import pairs
from dpsco_jax.problems import losses
from dpsco_jax.solvers.user_level import multipass_sgd
from tests.support.planned import planned

NAN, INF = math.nan, math.inf
REPLACE = NeighboringRelation.REPLACE_ONE
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("count", [1.99, 0.9, -1, NAN, "1", True, None])
def test_a_release_is_repeated_a_whole_number_of_times(count):
    with pytest.raises(ValueError, match="count"):
        events.repeated(events.gaussian(1.0), count)
    event = SelfComposedDpEvent(GaussianDpEvent(1.0), 1)
    object.__setattr__(event, "count", count)  # whatever dp_accounting checks by itself
    with pytest.raises(ValueError, match="count"):
        privacy.certificate(event, 1e-6, REPLACE)


def test_a_whole_number_of_times_is_certified_as_that_many():
    one, three = events.gaussian(3.0), events.gaussian(3.0 / math.sqrt(3.0))
    found = privacy.certificate(events.repeated(one, np.int64(3)), 1e-6, REPLACE)
    assert found.epsilon == pytest.approx(privacy.certificate(three, 1e-6, REPLACE).epsilon)


@pytest.mark.parametrize("batch", [5.99, -1, 101, NAN, "5"])
def test_a_batch_is_a_whole_number_of_users(batch):
    for function in (
        events.subsampled_gaussian_without_replacement,
        privacy.subsampled_gaussian_without_replacement,
    ):
        with pytest.raises(ValueError, match="batch_size"):
            function(1.0, 100, batch)
    if batch == 101:
        return  # with replacement there may be more draws than users
    with pytest.raises(ValueError, match="batch_size"):
        privacy.subsampled_gaussian_with_replacement(1.0, 100, batch)
    event = SampledWithoutReplacementDpEvent(100, 5, GaussianDpEvent(1.0))
    object.__setattr__(event, "sample_size", batch)
    with pytest.raises(ValueError, match="sample_size"):
        privacy.certificate(event, 1e-6, REPLACE)


@pytest.mark.parametrize("steps", [2.5, 0, -1, NAN, "2"])
def test_noise_is_calibrated_for_a_whole_number_of_steps(steps):
    with pytest.raises(ValueError, match="num_steps"):
        privacy.certified_noise_multiplier(privacy.FullBatch(), steps, 1.0, 1e-6, REPLACE)
    with pytest.raises(ValueError, match="num_steps"):
        privacy.calibrate_noise_multiplier(1.0, 1e-6, steps)


@pytest.mark.parametrize("probability", [-0.1, 1.5, NAN, INF, "0.1", True, None])
def test_probabilities_of_events_and_pairs(probability):
    with pytest.raises(ValueError, match="sampling_probability"):
        events.poisson_subsampled_gaussian(1.0, probability)
    with pytest.raises(ValueError, match="sampling_probability"):
        pairs.poisson_gaussian(1.0, probability)
    with pytest.raises(ValueError, match="sampling_fraction"):
        pairs.gaussian_without_replacement(1.0, probability)
    with pytest.raises(ValueError, match="sampling_probability"):
        privacy.certificate(PoissonSampledDpEvent(probability, GaussianDpEvent(1.0)), 1e-6, ADD)
    with pytest.raises(ValueError, match="delta"):
        pairs.approximate_dp(1.0, probability)


@pytest.mark.parametrize("scale", [-1.0, NAN, "1", True, None, 1j])
def test_scales_of_events_and_pairs(scale):
    for module in (events, pairs):
        with pytest.raises(ValueError, match="noise_multiplier"):
            module.gaussian(scale)
        with pytest.raises(ValueError, match="scale"):
            module.laplace(scale)
    for event in (GaussianDpEvent, LaplaceDpEvent):
        with pytest.raises(ValueError, match="noise_multiplier"):
            privacy.certificate(event(scale), 1e-6, REPLACE)


@pytest.mark.parametrize("size", [-1.0, NAN, INF, "1", True, None])
def test_noise_of_no_size_is_not_drawn(size):
    with pytest.raises(ValueError, match="stddev"):
        additive.gaussian(jax.random.key(0), jnp.zeros(2), stddev=size)
    with pytest.raises(ValueError, match="scale"):
        additive.laplace(jax.random.key(0), jnp.zeros(2), scale=size)


def test_an_audit_of_counts_that_are_none():
    for counts in ((NAN, 1), (1, NAN), (-1, 1), (1, 2.5), (np.array([1.0, NAN]), 1)):
        with pytest.raises(ValueError, match="positives"):
            privacy.epsilon_lower_bound(*counts, 10, 0.0)
    with pytest.raises(ValueError, match="num_correct"):
        privacy.one_run_epsilon_lower_bound(10, 5, 4.5, 0.0)


def test_samples_of_users_there_are_none_of():
    key = jax.random.key(0)
    for users in (-3, 0, 2.5, "3"):
        with pytest.raises(ValueError, match="num_users"):
            sampling.with_replacement(key, num_users=users, num_draws=2)
        with pytest.raises(ValueError, match="num_users"):
            sampling.poisson(key, users, 0.5)
        with pytest.raises(ValueError, match="num_users"):
            sampling.without_replacement(key, users, 1)


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
