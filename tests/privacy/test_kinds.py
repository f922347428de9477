"""Kinds of releases: the same as event and as value, and what accountants are told."""

import math

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from dpsco_jax import privacy
from dpsco_jax.privacy import (
    FullBatch,
    Poisson,
    PoissonItems,
    PoissonUsers,
    WithoutReplacement,
    _kinds,
    accountants,
    certificate,
)
from dpsco_jax.privacy.certificates import certificate_of
from dpsco_jax.privacy.dp_accounting import _translation
from dpsco_jax.privacy.dp_accounting.compositions import compositions
from dpsco_jax.privacy.pld import pairs
from dpsco_jax.privacy.releases import GaussianSteps

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL

KINDS = {
    _kinds.Approximate(0.5, 1e-7): REPLACE,
    _kinds.Gaussian(2.0): SPECIAL,
    _kinds.ItemsSampled(2.0, 0.1, 3): ADD,
    _kinds.ItemsSampled(2.0, 1 / 3, 40): SPECIAL,
    _kinds.Laplace(2.0): ADD,
    _kinds.NonPrivate(): REPLACE,
    _kinds.PoissonSampled(0.1, 2.0): ADD,
    _kinds.SampledWithoutReplacement(100, 10, 2.0): REPLACE,
    _kinds.UsersSampled(2.0, 0.1, 1.0): REPLACE,
    _kinds.UsersSampled(2.0, 0.1, 3.5): REPLACE,
    _kinds.ZeroConcentrated(0.02, 0.1): REPLACE,
}
SCHEMES = (
    FullBatch(),
    *(Poisson(probability) for probability in (0.0, 0.1, np.float32(0.3), 1.0)),
    *(PoissonItems(*numbers) for numbers in ((0.0, 2), (0.1, 1), (np.float32(0.1), 3), (1.0, 3))),
    *(PoissonUsers(*numbers) for numbers in ((0.0, 2.0), (0.1, np.float32(1.5)), (0.1, math.inf))),
    *(WithoutReplacement(100, batch_size) for batch_size in (0, 10, 100)),
)


def _said(make):
    """What is made, or the words with which it is refused."""
    try:
        return make()
    except ValueError as refusal:
        return str(refusal)


def test_every_kind_is_the_same_as_an_event():
    assert {type(release) for release in KINDS} == set(_translation._EVENTS)
    for release, relation in KINDS.items():
        assert _translation.release_of(_translation.event_of(release), relation) == release


def test_kinds_with_the_same_numbers_are_not_the_same():
    alike = (_kinds.Gaussian(2.0), _kinds.Laplace(2.0), _kinds.Approximate(2.0))
    assert len({*alike, _kinds.ZeroConcentrated(2.0)}) == 4


def test_a_kind_of_event_that_refines_a_known_one_is_known():
    class Named(GaussianDpEvent):
        """A Gaussian with a name."""

    assert _translation.release_of(Named(2.0), REPLACE) == _kinds.Gaussian(2.0)


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("noise_multiplier", [0.0, 1.5, math.inf])
def test_a_scheme_gives_the_release_of_its_event(scheme, relation, noise_multiplier):
    for num_steps in (0, 1, 7):
        steps = GaussianSteps(scheme, relation, num_steps)
        event = steps.event(noise_multiplier)
        found = _said(lambda steps=steps: [steps.composition(noise_multiplier)])
        assert found == _said(lambda event=event: compositions(event, relation))


def test_equal_releases_are_counted_together_and_gaussians_are_one():
    parts = {_kinds.Gaussian(3.0): 9, _kinds.Laplace(5.0): 2, _kinds.Gaussian(1.0): 0}
    assert _kinds.composition(parts) == ((_kinds.Gaussian(1.0), 1), (_kinds.Laplace(5.0), 2))
    assert _kinds.composition({_kinds.NOTHING: 5}) == ()
    with pytest.raises(ValueError, match="count"):
        _kinds.repeated(_kinds.Laplace(5.0), -1)


def test_nothing_is_guaranteed_where_a_part_is_not_private():
    releases = ((_kinds.NonPrivate(), 1), (_kinds.Laplace(5.0), 2))
    assert accountants.closed_form(releases[:1], 1e-6) is None
    assert accountants.privacy_loss_distribution(releases, 1e-6) is None
    assert accountants.renyi(releases, 1e-6) == math.inf
    assert not _kinds.NonPrivate().private


def test_a_gaussian_made_twice_has_no_closed_form_of_one():
    assert accountants.closed_form(((_kinds.Gaussian(2.0), 2),), 1e-6) is None


@pytest.mark.parametrize("release", [r for r in KINDS if r.dominated], ids=str)
def test_only_pairs_that_are_their_own_reverse_are_called_symmetric(release):
    # Zero must be an edge; an atom there is below it for the one and above it for the other.
    positive = np.linspace(0.07, 3.03, 30)
    edges = np.concatenate([-positive[::-1], [0.0], positive])
    away = edges != 0.0
    pair = release.pair()
    masses, reversed_masses = pair.cells(edges), pairs.reverse(pair).cells(edges)
    same = all(
        np.allclose(np.cumsum(a)[:-1][away], np.cumsum(b)[:-1][away], atol=1e-12)
        for a, b in zip(masses, reversed_masses, strict=True)
    )
    assert same == release.symmetric


@pytest.mark.parametrize("release", [r for r in KINDS if not r.dominated], ids=str)
def test_what_has_no_pair_is_refused_where_one_is_asked_for(release):
    with pytest.raises(ValueError, match="No dominating pair for"):
        release.pair()
    assert accountants.privacy_loss_distribution(((release, 1),), 1e-6) is None


def test_a_refusal_of_a_fixed_size_names_the_multiplier_that_was_given():
    event = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(-1.0))
    for relation in (ADD, REPLACE):
        with pytest.raises(ValueError, match=r"got -1\.0 In: SampledWithoutReplacement"):
            compositions(event, relation)


def test_certificates_of_a_run_and_of_its_event_are_equal():
    made = (FullBatch(), SPECIAL), (Poisson(0.1), ADD), (Poisson(0.1), REPLACE)
    for scheme, relation in (*made, (PoissonUsers(0.1, 3.0), REPLACE)):
        steps = GaussianSteps(scheme, relation, 3)
        found = steps.certificate(2.0, 1e-6)
        assert found == certificate(steps.event(2.0), 1e-6, relation, found.assumptions)


@pytest.mark.parametrize(
    ("release", "relation"),
    [
        (_kinds.PoissonSampled(0.1, 2.0), NeighboringRelation.REPLACE_ONE),
        (_kinds.SampledWithoutReplacement(10, 2, 2.0), NeighboringRelation.ADD_OR_REMOVE_ONE),
        (_kinds.SampledWithoutReplacement(10, 2, 2.0), NeighboringRelation.REPLACE_SPECIAL),
    ],
)
def test_releases_made_for_another_relation_are_not_certified(release, relation):
    with pytest.raises(ValueError, match="relation must be"):
        certificate_of([((release, 3),)], 1e-5, relation)


def test_nothing_to_certify_is_refused_by_name():
    with pytest.raises(ValueError, match="alternatives must be"):
        certificate_of([], 1e-5, NeighboringRelation.REPLACE_ONE)


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        (SelfComposedDpEvent(GaussianDpEvent(1.0), 0.01), "count must be"),
        (SelfComposedDpEvent(GaussianDpEvent(1.0), 1.99), "count must be"),
        (SelfComposedDpEvent(GaussianDpEvent(1.0), True), "count must be"),
        (SelfComposedDpEvent(GaussianDpEvent(1.0), "2"), "count must be"),
        (GaussianDpEvent("1"), "noise_multiplier must be"),
        (GaussianDpEvent(True), "noise_multiplier must be"),
        (ComposedDpEvent([GaussianDpEvent(-1.0)] * 2), "noise_multiplier must be"),
        (GaussianDpEvent(1e-170), "noise_multiplier must be"),
    ],
)
def test_numbers_inside_of_sampled_events_are_checked(inner, named):
    fixed = SampledWithoutReplacementDpEvent(10, 2, inner)
    for event in (PoissonSampledDpEvent(0.1, inner), fixed):
        with pytest.raises(ValueError, match=named):
            certificate(event, 1e-5, ADD)


@pytest.mark.parametrize("multiplier", [1e-100, 1e-20, 1e-9, 1e20, 1e100])
def test_numbers_far_from_all_use_have_a_certificate(multiplier):
    """With losses that no grid holds: at least that of the curve, 1/(2σ²) by its first order."""
    gaussian = GaussianDpEvent(multiplier)
    fixed = SampledWithoutReplacementDpEvent(10, 2, gaussian)
    for event in (gaussian, PoissonSampledDpEvent(0.1, gaussian), fixed):
        found = certificate(event, 1e-5, ADD).epsilon
        assert (found > 0.4 / multiplier**2) if multiplier < 1 else found < 1e-9


def test_a_failure_without_a_loss_is_a_release():
    """(0, δ) is not nothing: its failures add up, and a δ below theirs has no ε."""
    failing = _kinds.Approximate(0.0, 4e-6)
    assert _kinds.composition({failing: 2, _kinds.NOTHING: 3}) == ((failing, 2),)
    once, twice = ([((failing, count),)] for count in (1, 3))
    replace = NeighboringRelation.REPLACE_ONE
    assert certificate_of(once, 1e-5, replace).epsilon == pytest.approx(0.0, abs=1e-9)
    assert certificate_of(twice, 1e-5, replace).epsilon == math.inf


@pytest.mark.parametrize(("rho", "xi"), [(0.02, 0.0), (0.02, 0.1), (0.0, 0.3)])
def test_the_curve_of_zero_concentrated_releases_is_its_definition(rho, xi):
    """Bun and Steinke 2016: Rényi divergence of order α at most ξ + ρα."""
    found = np.asarray(_kinds.ZeroConcentrated(rho, xi).loss().rdp)
    np.testing.assert_allclose(found, xi + rho * np.asarray(privacy.ORDERS), rtol=1e-12)
