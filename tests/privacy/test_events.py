"""Events: one meaning, flat compositions, and refusals before anything is computed."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from dpsco_jax.privacy import _kinds, certificate
from dpsco_jax.privacy.dp_accounting import _translation, events
from dpsco_jax.privacy.dp_accounting.compositions import compositions

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL


def only(event, relation=REPLACE):
    (releases,) = compositions(event, relation)
    return releases


def test_constructors_make_the_events_of_dp_accounting():
    assert events.gaussian(2) == GaussianDpEvent(2.0)
    assert events.laplace(3) == LaplaceDpEvent(3.0)
    assert events.poisson_subsampled_gaussian(2, 0.1) == PoissonSampledDpEvent(
        0.1, GaussianDpEvent(2.0)
    )
    assert events.subsampled_gaussian_without_replacement(
        2, 100, 10
    ) == SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(2.0))
    assert events.repeated(events.gaussian(2), 3) == SelfComposedDpEvent(GaussianDpEvent(2.0), 3)
    assert events.composed(events.gaussian(1), events.laplace(1)) == ComposedDpEvent(
        [GaussianDpEvent(1.0), LaplaceDpEvent(1.0)]
    )


def test_gaussians_compose_to_one():
    event = events.composed(
        events.repeated(events.composed(events.gaussian(3.0), events.gaussian(4.0)), 5),
        NoOpDpEvent(),
        events.gaussian(2.0),
    )
    ((release, count),) = only(event)
    assert count == 1
    assert release.noise_multiplier == pytest.approx((5 / 9 + 5 / 16 + 1 / 4) ** -0.5, rel=1e-14)


def test_repetitions_multiply_through_every_nesting():
    sampled = events.subsampled_gaussian_without_replacement(2.0, 100, 10)
    inner = events.repeated(events.composed(sampled, events.laplace(5.0)), 3)
    assert dict(only(events.repeated(inner, 4))) == {
        _kinds.SampledWithoutReplacement(100, 10, 2.0): 12,
        _kinds.Laplace(5.0): 12,
    }
    assert only(events.composed(sampled, inner, sampled)) == only(
        events.composed(events.repeated(sampled, 5), events.repeated(events.laplace(5.0), 3))
    )


@pytest.mark.parametrize("sigma", [2, 2.0])
def test_gaussians_on_one_sample_are_one_gaussian(sigma):
    inner = SelfComposedDpEvent(ComposedDpEvent([GaussianDpEvent(sigma)] * 2), 8)
    for event, relation in (
        (PoissonSampledDpEvent(0.1, inner), ADD),
        (SampledWithoutReplacementDpEvent(100, 10, inner), REPLACE),
    ):
        ((release, count),) = only(event, relation)
        assert count == 1
        assert release.noise_multiplier == pytest.approx(0.5, rel=1e-14)


def test_sampling_everybody_or_nobody_is_no_sampling():
    gaussian = ((_kinds.Gaussian(2.0), 1),)
    assert only(events.poisson_subsampled_gaussian(2, 1.0), ADD) == gaussian
    assert only(events.subsampled_gaussian_without_replacement(2, 9, 9)) == gaussian
    assert only(events.poisson_subsampled_gaussian(2, 0.0), ADD) == ()
    assert only(events.subsampled_gaussian_without_replacement(2, 9, 0)) == ()
    assert only(events.gaussian(math.inf)) == ()
    assert only(events.repeated(events.gaussian(1), 0)) == ()


def test_no_noise_is_no_privacy():
    for event in (
        events.gaussian(0),
        events.laplace(0),
        events.poisson_subsampled_gaussian(0, 0.1),
        NonPrivateDpEvent(),
    ):
        assert certificate(event, 1e-6, ADD).epsilon == math.inf


def test_fixed_size_under_add_or_remove_is_poisson_at_half_the_multiplier():
    assert only(events.subsampled_gaussian_without_replacement(3, 100, 10), ADD) == (
        (_kinds.PoissonSampled(0.1, 1.5), 1),
    )


@pytest.mark.parametrize(
    ("event", "relation", "named"),
    [
        (dp_accounting.UnsupportedDpEvent(), ADD, "UnsupportedDpEvent"),
        (dp_accounting.SingleEpochTreeAggregationDpEvent(1.0, 8), SPECIAL, "SingleEpochTree"),
        (events.user_sampled_gaussian(1, 0.1, 2), ADD, "all their units has no proof under"),
        (
            events.subsampled_gaussian_without_replacement(1, 9, 3),
            SPECIAL,
            "no proof under REPLACE_SP",
        ),
        (PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)), ADD, "Only Gaussian releases"),
        (PoissonSampledDpEvent(1.5, GaussianDpEvent(1.0)), ADD, "sampling_probability"),
        (SampledWithoutReplacementDpEvent(5, 6, GaussianDpEvent(1.0)), REPLACE, "sample_size"),
        (GaussianDpEvent(-1.0), ADD, "noise_multiplier must be in"),
        (GaussianDpEvent(math.nan), ADD, "noise_multiplier must be in"),
        (SelfComposedDpEvent(GaussianDpEvent(1.0), -1), ADD, "count"),
    ],
)
def test_refusals_name_the_part(event, relation, named):
    # Also from deep inside an event that is fine otherwise.
    for whole in (event, events.composed(events.gaussian(1), events.repeated(event, 3))):
        with pytest.raises(ValueError, match=named):
            compositions(whole, relation)


def test_parallel_parts_given_as_a_list_are_kept_as_they_were():
    parts = [events.gaussian(5.0)]
    event = events.ParallelDpEvent(parts)
    parts[0] = events.gaussian(50.0)
    assert event == events.ParallelDpEvent((events.gaussian(5.0),))
    assert hash(event) == hash(events.ParallelDpEvent([events.gaussian(5.0)]))


def test_parallel_costs_as_much_as_its_worst_part():
    cheap, dear = events.repeated(events.gaussian(5), 3), events.laplace(2)
    parts = events.ParallelDpEvent((cheap, dear))
    worst = max(certificate(part, 1e-5, REPLACE).epsilon for part in (cheap, dear))
    assert certificate(parts, 1e-5, REPLACE).epsilon == worst
    # What both parts share comes on top of either.
    shared = events.composed(events.gaussian(2), parts, parts)
    every = [
        events.composed(events.gaussian(2), a, b) for a in (cheap, dear) for b in (cheap, dear)
    ]
    worst = max(certificate(event, 1e-5, REPLACE).epsilon for event in every)
    assert certificate(shared, 1e-5, REPLACE).epsilon == pytest.approx(worst, rel=1e-9)
    assert only(events.ParallelDpEvent(())) == ()
    with pytest.raises(ValueError, match="cannot be repeated"):
        compositions(events.repeated(parts, 2), REPLACE)
    with pytest.raises(ValueError, match="more than"):
        compositions(events.composed(*[events.ParallelDpEvent((cheap, dear))] * 12), REPLACE)


def test_events_of_arrays_without_axes_can_be_hashed():
    event = events.ApproximateDpEvent(np.array(1.0), np.float32(0.25))
    assert hash(event) == hash(events.ApproximateDpEvent(1.0, 0.25))
    assert event == events.ApproximateDpEvent(1.0, 0.25)


def _own_events():
    """One of every class of events that is ours; a class without an example is missing here."""
    gaussian = GaussianDpEvent(2.0)
    examples = [
        events.ApproximateDpEvent(0.5, 1e-3),
        events.ParallelDpEvent((gaussian, events.user_sampled_gaussian(1.5, 0.2, math.inf))),
        events.UserSampledDpEvent(0.1, 3.0, gaussian),
    ]
    classes, known = [DpEvent], set()
    while classes:
        found = classes.pop().__subclasses__()
        classes += found
        known |= {each for each in found if each.__module__.startswith("dpsco_jax")}
    assert {type(event) for event in examples} == known
    return examples


def test_events_are_the_same_after_a_way_through_tuples():
    """Alone, inside of compositions, and those that state each kind of release."""
    kinds = [
        _kinds.Approximate(0.5, 1e-3),
        _kinds.Gaussian(2.0),
        _kinds.ItemsSampled(2.0, 0.1, 3),
        _kinds.Laplace(2.0),
        _kinds.NonPrivate(),
        _kinds.PoissonSampled(0.1, 2.0),
        _kinds.SampledWithoutReplacement(100, 10, 2.0),
        _kinds.UsersSampled(2.0, 0.1, 1.0),
        _kinds.UsersSampled(2.0, 0.1, 3.0),
        _kinds.ZeroConcentrated(0.5, 0.0),
    ]
    assert {type(kind) for kind in kinds} == set(_translation._EVENTS)
    for event in (*_own_events(), *map(_translation.event_of, kinds)):
        for whole in (event, events.composed(events.gaussian(1), events.repeated(event, 3))):
            back = DpEvent.from_named_tuple(whole.to_named_tuple())
            assert back == whole
            assert hash(event) == hash(DpEvent.from_named_tuple(event.to_named_tuple()))
    own = events.user_sampled_gaussian(2.0, 0.1, 3.0)
    back = DpEvent.from_named_tuple(own.to_named_tuple())
    assert certificate(back, 1e-5, REPLACE) == certificate(own, 1e-5, REPLACE)
