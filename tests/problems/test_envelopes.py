"""Moreau envelopes against their definition: a minimum over all places, by brute force."""

import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems import envelopes, losses
from dpsco_jax.problems.objective import Example

pytestmark = pytest.mark.usefixtures("float64")

MADE = {
    "hinge": (losses.hinge(1.0), [0.0, 1.0, 0.8, 0.25]),
    "absolute": (losses.absolute(1.0), [0.0, 3.0, -7.5]),
    "quantile": (losses.quantile(1.0, level=0.8), [0.0, 2.0]),
}
MARGINS = np.linspace(-6.0, 6.0, 97)


# The links themselves, in NumPy.
LINKS = {
    "hinge": lambda m, y: np.maximum(0.0, 1.0 - (2.0 * y - 1.0) * m),
    "absolute": lambda m, y: np.abs(m - y),
    "quantile": lambda m, y: np.maximum(0.8 * (y - m), -0.2 * (y - m)),
}


def by_definition(link, margin, label, smoothing):
    """The minimum by grids that are refined around the best place."""
    middle, width = margin, 1.01 * smoothing  # slopes are at most one
    for _ in range(6):
        places = np.linspace(middle - width, middle + width, 401)
        values = link(places, label) + (margin - places) ** 2 / (2 * smoothing)
        middle, width = places[np.argmin(values)], width / 100
    return values.min()


@pytest.mark.parametrize("smoothing", [0.05, 1.5])
@pytest.mark.parametrize("name", MADE)
def test_the_link_is_the_least_over_all_places(name, smoothing):
    objective, labels = MADE[name]
    model = envelopes.moreau_envelope(objective, smoothing).linear_model
    for label in labels:
        found = np.asarray(model.link(jnp.asarray(MARGINS), label))
        for margin, value in zip(MARGINS[::8], found[::8], strict=True):
            true = by_definition(LINKS[name], margin, label, smoothing)
            assert value == pytest.approx(true, abs=1e-8), (label, margin)


@pytest.mark.parametrize("smoothing", [0.05, 1.5])
@pytest.mark.parametrize("name", MADE)
def test_it_is_below_the_loss_by_no_more_than_its_gap(name, smoothing):
    objective, labels = MADE[name]
    model = envelopes.moreau_envelope(objective, smoothing).linear_model
    gap = envelopes.envelope_gap(objective, smoothing)
    below = [
        np.asarray(
            objective.linear_model.link(jnp.asarray(MARGINS), y)
            - model.link(jnp.asarray(MARGINS), y)
        )
        for y in labels
    ]
    assert np.min(below) >= -1e-12
    # Attained beyond the kink.
    assert np.max(below) == pytest.approx(gap, rel=1e-9)


@pytest.mark.parametrize("name", MADE)
def test_constants_are_those_of_the_envelope_and_attained(name):
    objective, labels = MADE[name]
    envelope = envelopes.moreau_envelope(objective._replace(ridge=0.3), 0.2)
    assert envelope.lipschitz == objective.lipschitz
    assert envelope.smoothness == pytest.approx(5.0)
    assert envelope.ridge == 0.3
    assert envelope.globally_convex_lipschitz
    model, fine = envelope.linear_model, jnp.linspace(-9.0, 9.0, 20_001)
    for label in labels[:2]:
        slopes = np.asarray(model.derivative(fine, label))
        bends = np.diff(slopes) / np.diff(np.asarray(fine))
        assert bends.min() >= -1e-9
        assert bends.max() == pytest.approx(5.0, rel=1e-6)
        direct = np.gradient(np.asarray(model.link(fine, label)), np.asarray(fine))
        np.testing.assert_allclose(slopes, direct, atol=5e-3)
        np.testing.assert_allclose(
            model.remainder(jnp.asarray(0.3), label, fine - 0.3),
            model.link(fine, label)
            - model.link(0.3, label)
            - model.derivative(0.3, label) * (fine - 0.3),
            atol=1e-12,
        )


def test_the_envelope_of_the_absolute_value_is_hubers():
    envelope, huber = envelopes.moreau_envelope(losses.absolute(1.0), 0.7), losses.huber(1.0, 0.7)
    item = Example(jnp.array([0.6, 0.2]), jnp.array(0.4))
    for w in (jnp.array([0.1, 0.0]), jnp.array([5.0, -3.0])):
        assert float(envelope.loss(w, item)) == pytest.approx(float(huber.loss(w, item)) / 0.7)


def test_an_item_without_a_label_has_no_loss():
    envelope = envelopes.moreau_envelope(losses.hinge(1.0), 0.1)
    assert float(envelope.loss(jnp.ones(2), Example(jnp.ones(2), jnp.array(jnp.nan)))) == 0.0


@pytest.mark.parametrize(
    "objective", [losses.logistic(1.0), losses.softmax(1.0, 3), losses.geometric_median()]
)
def test_losses_without_one_kink_are_refused(objective):
    with pytest.raises(ValueError, match="with one kink"):
        envelopes.moreau_envelope(objective, 0.1)


def test_claims_beyond_what_is_proven_are_refused():
    with pytest.raises(ValueError, match="claim no more"):
        envelopes.moreau_envelope(losses.hinge(1.0)._replace(lipschitz=0.5), 0.1)
