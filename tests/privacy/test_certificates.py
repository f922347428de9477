"""Certificates: exact where a closed form exists, tight elsewhere, and on the private side always."""

import json
import math

import mpmath
import pytest
from dp_accounting import NeighboringRelation, ZCDpEvent

from dpsco_jax.privacy import (
    Certificate,
    FullBatch,
    Poisson,
    WithoutReplacement,
    accountants,
    certificate,
    certified_noise_multiplier,
)
from dpsco_jax.privacy.certified_noise import decreasing_root
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.dp_accounting.compositions import compositions
from dpsco_jax.privacy.dp_accounting.second_opinion import second_opinion

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def analytic_delta(epsilon, noise_multiplier):
    with mpmath.workdps(60):
        s, e = mpmath.mpf(noise_multiplier), mpmath.mpf(epsilon)
        return mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize(
    ("noise_multiplier", "delta"),
    [(1.0, 1e-6), (3.73063, 1e-5), (0.02, 1e-8), (200.0, 1e-4), (5.0, 1e-40), (0.7, 0.2)],
)
def test_gaussian_is_analytic_under_every_relation(relation, noise_multiplier, delta):
    found = certificate(events.gaussian(noise_multiplier), delta, relation)
    assert found.relation is relation
    assert analytic_delta(found.epsilon, noise_multiplier) <= delta
    assert analytic_delta(found.epsilon * (1 - 1e-9), noise_multiplier) > delta


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_dp_accounting_agrees_under_every_relation_once_converted(relation):
    event = events.repeated(events.gaussian(2.0), 4)  # together one Gaussian of multiplier 1
    exact = certificate(event, 1e-6, relation).epsilon
    opinions = second_opinion(event, 1e-6, relation)
    assert opinions["PLD"] == pytest.approx(exact, rel=1e-4)
    assert exact < opinions["RDP"] < 1.1 * exact
    assert opinions["RDP"] == pytest.approx(5.2, abs=0.05)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (events.poisson_subsampled_gaussian(1.5, 0.02), ADD),
        (events.poisson_subsampled_gaussian(1.5, 0.02), NeighboringRelation.REPLACE_SPECIAL),
        (events.subsampled_gaussian_without_replacement(1.5, 1000, 20), REPLACE),
        (events.laplace(9.0), REPLACE),
        (events.composed(events.gaussian(20.0), events.laplace(15.0)), REPLACE),
    ],
)
def test_never_above_the_second_opinion(event, relation):
    event = events.repeated(event, 100)
    found = certificate(event, 1e-6, relation)
    opinions = second_opinion(event, 1e-6, relation)
    assert opinions
    assert found.epsilon <= min(opinions.values()) * (1 + 1e-4)
    assert "privacy loss distribution" in found.accountant


def test_the_least_of_the_accountants_is_taken(monkeypatch):
    event = events.repeated(events.poisson_subsampled_gaussian(2.0, 0.01), 50)
    (releases,) = compositions(event, ADD)
    by_losses = accountants.privacy_loss_distribution(releases, 1e-6)
    by_curves = accountants.renyi(releases, 1e-6)
    assert certificate(event, 1e-6, ADD).epsilon == min(by_losses, by_curves)
    monkeypatch.setattr(accountants, "renyi", lambda *_: 0.5 * by_losses)
    least = certificate(event, 1e-6, ADD)
    assert least.epsilon == 0.5 * by_losses
    assert "Rényi" in least.accountant


def test_releases_with_a_curve_only():
    event = events.composed(ZCDpEvent(0.02), events.gaussian(5.0))  # both 0.02-zCDP
    found = certificate(event, 1e-6, REPLACE)
    assert "Rényi" in found.accountant
    gaussian = certificate(events.repeated(events.gaussian(5.0), 2), 1e-6, REPLACE).epsilon
    assert gaussian < found.epsilon < 1.15 * gaussian


def test_pure_dp_is_its_epsilon():
    assert certificate(events.ApproximateDpEvent(0.7), 1e-9, ADD).epsilon == pytest.approx(
        0.7, rel=1e-4
    )
    found = certificate(events.ApproximateDpEvent(0.7, 1e-5), 1.1e-5, REPLACE).epsilon
    assert 0.7 * (1 - 1e-4) < found <= 0.7 * (1 + 1e-4)
    assert certificate(events.ApproximateDpEvent(0.7, 1e-5), 1e-6, REPLACE).epsilon == math.inf


@pytest.mark.parametrize("epsilon", [0.1 + 0.2, math.inf, 0.0])
def test_json_round_trip(epsilon):
    made = Certificate(epsilon, 1e-6, REPLACE, "Rényi curves", ("the batches stay secret", "L ≤ 1"))
    text = made.to_json()
    assert Certificate.from_json(text) == made
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_text_rounds_up_and_states_everything():
    made = Certificate(1.000011, 1e-6, REPLACE, "closed form", ("the batches stay secret",))
    assert str(made) == (
        "(1.0001, 1e-06)-DP under REPLACE_ONE\n  by closed form\n  assuming the batches stay secret"
    )
    assert str(made._replace(epsilon=123.4561)).startswith("(123.46, ")
    assert str(made._replace(epsilon=0.01)).startswith("(0.01")
    assert str(made._replace(epsilon=math.inf)).startswith("(inf, ")
    carried = certificate(events.gaussian(1.0), 1e-6, ADD, assumptions=["convex losses"])
    assert carried.assumptions == ("convex losses",)
    assert "dpsco_jax" in carried.accountant


@pytest.mark.parametrize(
    ("sampling", "num_steps", "epsilon", "delta", "relation", "expected"),
    [
        # Published multipliers over G are twice these under REPLACE_ONE.
        (WithoutReplacement(10_000, 35), 42_491, 0.5, 1e-6, REPLACE, 12.5 / 2),
        (WithoutReplacement(10_000, 100), 1000, 0.5, 1e-6, REPLACE, 5.91 / 2),
        (WithoutReplacement(10_000, 500), 400, 0.5, 1e-6, REPLACE, 16.9 / 2),
        (WithoutReplacement(1000, 40), 1000, 1.0, 1e-5, REPLACE, 10.2 / 2),
        (Poisson(0.04), 1000, 1.0, 1e-5, ADD, 4.83),
        (Poisson(0.5), 10, 100.0, 1e-5, ADD, None),
        (Poisson(1e-4), 10, 0.01, 1e-5, ADD, None),
        (FullBatch(), 100, 1.0, 1e-5, REPLACE, 37.3063),
        (WithoutReplacement(50, 50), 100, 1.0, 1e-5, REPLACE, 37.3063),
    ],
)
def test_calibration_ends_on_the_private_side(
    sampling, num_steps, epsilon, delta, relation, expected
):
    found = certified_noise_multiplier(sampling, num_steps, epsilon, delta, relation)
    event = events.repeated(sampling.gaussian_event(found), num_steps)
    spent = certificate(event, delta, relation).epsilon
    assert spent <= epsilon
    assert spent >= epsilon * (1 - 1e-4)
    if expected is not None:
        assert found == pytest.approx(expected, rel=7e-3)


@pytest.mark.parametrize("root", [-3.0, 0.1, 7.0])
@pytest.mark.parametrize("slope", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("start", [-5.0, 0.0, 40.0, None])
def test_root_finding_ends_on_the_private_side(root, slope, start):
    evaluated = []
    start = root - 2e-5 / slope if start is None else start

    def excess(x):
        evaluated.append(x)
        # Flat far away, kinked, and with a jump over zero at the root itself for the steep one.
        return min(max(slope * (root - x) - 0.05 * math.copysign(slope > 1, x - root), -4.0), 4.0)

    found = decreasing_root(excess, start, 1e-4)
    assert excess(found) <= 0
    assert found >= root
    assert excess(found) >= -1e-4 or found - root < 1e-9
    assert len(evaluated) < 90


@pytest.mark.parametrize("epsilon", [50.0, 80.0, 200.0])
def test_a_large_budget_is_calibrated_with_a_multiplier_below_one(epsilon):
    found = certified_noise_multiplier(
        FullBatch(), 30, epsilon, 1e-5, NeighboringRelation.REPLACE_ONE
    )
    event = events.repeated(events.gaussian(found), 30)
    spent = certificate(event, 1e-5, NeighboringRelation.REPLACE_ONE).epsilon
    assert (1 - 1e-6) * epsilon < spent <= epsilon
