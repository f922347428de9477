"""Releases as values: one loss and one certificate of what runs, and the guarantee of several parts."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import stats

from dpsco_jax import privacy
from dpsco_jax.privacy import releases
from dpsco_jax.privacy.certificates import Certificate
from dpsco_jax.solvers.phased import Phased
from dpsco_jax.solvers.user_level import phased_sgd

REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE

# ε large and δ small, ε small and δ large: no member's pair is a guarantee of all.
PAIRS = ((3.0, 1e-9), (1.0, 1e-4), (2.0, 1e-6))
ORDERS = ((0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0))


def _certificate(epsilon, delta, relation=REPLACE):
    return Certificate(epsilon, delta, relation, f"by hand {epsilon}", ("the key stays secret",))


class _Certified:
    """A part of a plan of which nothing but its certificate is asked."""

    population_size, noise_stddev = 2, 1.0

    def __init__(self, epsilon, delta):
        self.releases = self
        self._certificate = _certificate(epsilon, delta)

    def certificate(self):
        return self._certificate


@pytest.mark.parametrize("order", ORDERS)
def test_the_certificate_of_parallel_parts_has_the_largest_epsilon_and_the_largest_delta(order):
    joint = privacy.parallel_certificate([_certificate(*PAIRS[i]) for i in order])
    assert (joint.epsilon, joint.delta) == (3.0, 1e-4)
    assert joint.relation is REPLACE
    assert joint.assumptions == ("the key stays secret",)


def test_no_member_of_two_responses_covers_the_other():
    # Part A is (3, 1e-9)-DP and no better, part B (1, 1e-4)-DP and no better: two Gaussians, by their curve.
    def curve(mu, epsilon):
        below = stats.norm.cdf(mu / 2 - epsilon / mu)
        return below - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)

    def distance(epsilon, delta):
        low, high = 1e-3, 10.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if curve(middle, epsilon) < delta else (low, middle)
        return low

    parts = [distance(*pair) for pair in PAIRS]
    joint = privacy.parallel_certificate([_certificate(*pair) for pair in PAIRS])
    assert all(curve(mu, joint.epsilon) <= joint.delta for mu in parts)
    for epsilon, delta in PAIRS:
        assert (epsilon, delta) == (3.0, 1e-9) or any(curve(mu, epsilon) > delta for mu in parts)
    assert joint.delta >= max(curve(mu, joint.epsilon) for mu in parts)


def test_the_certificate_of_parts_in_sequence_is_the_sum():
    joint = privacy.sequential_certificate([_certificate(*pair) for pair in PAIRS])
    assert joint.epsilon == pytest.approx(6.0)
    assert joint.delta == pytest.approx(1e-9 + 1e-4 + 1e-6)


def test_what_is_no_number_proves_nothing():
    for made in (privacy.parallel_certificate, privacy.sequential_certificate):
        assert made([_certificate(1.0, 1e-5), _certificate(math.nan, 1e-5)]).epsilon == math.inf
        assert made([_certificate(math.nan, 1e-5), _certificate(1.0, 1e-5)]).epsilon == math.inf


def test_joint_certificates_refuse_mixed_relations_and_those_without_positions():
    mixed = [_certificate(1.0, 1e-5), _certificate(1.0, 1e-5, SPECIAL)]
    for made in (privacy.parallel_certificate, privacy.sequential_certificate):
        with pytest.raises(ValueError, match="relations of certificates must be the same for all"):
            made(mixed)
        with pytest.raises(ValueError, match=r"certificates must be .*at least one"):
            made([])
    with pytest.raises(ValueError, match="REPLACE_ONE, REPLACE_SPECIAL, got"):
        privacy.parallel_certificate([_certificate(1.0, 1e-5, ADD)] * 2)
    assert privacy.sequential_certificate([_certificate(1.0, 1e-5, ADD)] * 2).relation is ADD
    assert privacy.parallel_certificate([_certificate(1.0, 1e-5, SPECIAL)]).relation is SPECIAL


def _blank(plan_type, **fields):
    """A plan that holds nothing but its parts."""
    # Sizes that are none would be refused.
    plan = object.__new__(plan_type)
    names = [field.name for field in dataclasses.fields(plan_type)]
    for name, value in (dict.fromkeys(names) | fields).items():
        object.__setattr__(plan, name, value)
    return plan


@pytest.mark.parametrize("order", ORDERS)
def test_solvers_in_parts_certify_the_largest_epsilon_and_delta(order):
    plan = _blank(Phased, parts=tuple(_Certified(*PAIRS[i]) for i in order))
    found = plan.certificate()
    assert (found.epsilon, found.delta) == (3.0, 1e-4)


@pytest.mark.parametrize("clipped", [(True, False), (False, True)])
@pytest.mark.parametrize("tested", [(0.1, 1e-3), (9.0, 1e-12)])
def test_phased_sgd_certifies_the_largest_epsilon_and_delta(clipped, tested):
    plan = _blank(
        phased_sgd.Plan,
        clipped=clipped,
        group_users=(2, 2),
        clip_norms=np.ones(2),
        radii=np.ones(2),
        releases=_Certified(*tested),
        noise_multiplier=3.0,
        delta=1e-6,
    )
    mean = privacy.certificate(privacy.events.gaussian(3.0), 1e-6, REPLACE)
    found = plan.certificate()
    assert found.epsilon == max(mean.epsilon, tested[0])
    assert found.delta == max(1e-6, tested[1])


# One Gaussian release a step, by the closed form: μ = √T/σ for all users.


def _exact_epsilon(mu, delta):
    def curve(epsilon):
        below = stats.norm.logcdf(mu / 2 - epsilon / mu)
        return math.exp(below) - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))

    low, high = 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > delta else (low, middle)
    return high


def test_gaussian_releases_of_everybody_cost_what_the_closed_form_says():
    made = privacy.GaussianReleases(40, 40, 9, "fixed", 6.0, 1e-5)
    exact = _exact_epsilon(math.sqrt(9) / 6.0, 1e-5)
    assert made.certificate().epsilon == pytest.approx(exact, rel=1e-6)
    assert made.certificate().relation is made.relation is REPLACE
    assert exact <= float(privacy.epsilon(made.loss(), 1e-5)) <= 1.1 * exact


def test_gaussian_releases_are_a_pytree_of_their_numbers():
    made = privacy.GaussianReleases(40, 10, 9, "poisson", 6.0, 1e-5)
    assert jax.tree.leaves(made) == [6.0, 1e-5]
    assert made.relation is ADD
    doubled = jax.jit(lambda r: r.loss())(dataclasses.replace(made, noise_multiplier=12.0))
    np.testing.assert_allclose(
        doubled.rdp, dataclasses.replace(made, noise_multiplier=12.0).loss().rdp, rtol=1e-3
    )


def test_gaussian_releases_refuse_an_unknown_sampling():
    with pytest.raises(
        ValueError, match="sampling must be one of fixed, poisson, replacement, got 'full'"
    ):
        privacy.GaussianReleases(40, 10, 9, "full", 6.0, 1e-5).loss()


def test_schemes_of_equal_numbers_have_noise_of_their_own():
    """Both are tuples (1000, 10), and searches keep what they have found."""
    kinds = (privacy.WithoutReplacement(1000, 10), privacy.WithReplacement(1000, 10))
    assert kinds[0] == kinds[1]
    for steps in (releases.GaussianSteps(scheme, REPLACE, 5) for scheme in kinds):
        noise = steps.noise_multiplier(1.0, 1e-5, "rdp")
        assert 0.98 < steps.ledger_epsilon(noise, 1e-5) <= 1.0
    with pytest.raises(ValueError, match="accountant must be"):
        releases.GaussianSteps(kinds[0], REPLACE, 5).noise_multiplier(1.0, 1e-5, "PLD")


def test_epsilons_next_to_zero_are_found():
    """Where total variation is nearly δ the root is zero up to rounding; the search stayed there for ever."""
    for multiplier in (39894.22804348809, 39894.2280434880, 39894.3):
        found = privacy.certificate(privacy.events.gaussian(multiplier), 1e-5, REPLACE).epsilon
        assert 0 <= found < 1e-9
