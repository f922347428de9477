"""What is left of a link after its tangent, against 150 digits.

Of a ramp the margin itself is rounded; what is computed is then the remainder at a margin nearby. Both
links are compared with the factor and the slope that the module promises.
"""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from dpsco_jax.problems import _remainders, losses

UNIT = 2.0**-53


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True), mpmath.workdps(150):
        yield


def pairs(seed=0, number=250):
    """Margins and changes of all sizes, of both signs, small against the margin and large."""
    rng = np.random.default_rng(seed)
    margins = np.concatenate([rng.normal(size=number) * scale for scale in (1e-3, 1.0, 5.0, 40.0)])
    changes = rng.normal(size=4 * number) * 10.0 ** rng.uniform(-12, 2.5, 4 * number)
    changes[::5] = rng.normal(size=len(changes[::5])) * 30.0
    changes[::17] = 0.0
    return margins, changes


def softplus_remainder(m, t):
    m, t = mpmath.mpf(m), mpmath.mpf(t)
    slope = 1 / (1 + mpmath.exp(-m))
    return mpmath.log1p(mpmath.exp(m + t)) - mpmath.log1p(mpmath.exp(m)) - slope * t


def ramp_remainder(m, t, low, high):
    def value(x):
        near = min(max(x, low), high)
        return near * x - near * near / 2

    m, t, low, high = (mpmath.mpf(number) for number in (m, t, low, high))
    return value(m + t) - value(m) - min(max(m, low), high) * t


def test_softplus_is_exact_relatively_wherever_nothing_cancels():
    margins, changes = pairs()
    found = np.asarray(jax.jit(_remainders.softplus)(margins, changes))
    for m, t, value in zip(margins, changes, found, strict=True):
        true = softplus_remainder(m, t)
        assert abs(mpmath.mpf(float(value)) - true) <= 24 * UNIT * true, (m, t)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.3, 2.0), (0.0, 0.5)])
def test_a_ramp_is_that_of_a_margin_nearby(low, high):
    margins, changes = pairs(1)
    # At kinks, where a rounded margin is on the other side.
    margins[:40] = low + np.linspace(-1e-9, 1e-9, 40)
    found = np.asarray(jax.jit(lambda m, t: _remainders.ramp(m, t, low, high))(margins, changes))
    largest = max(abs(low), abs(high))
    for m, t, value in zip(margins, changes, found, strict=True):
        true = ramp_remainder(m, t, low, high)
        # A link whose derivative is off by e has remainders off by 2·e·|t|.
        allowed = 64 * UNIT * true + 2 * 8 * UNIT * (largest + abs(t)) * abs(t)
        assert abs(mpmath.mpf(float(value)) - true) <= allowed, (m, t)


def test_a_quadratic_stretch_is_exact():
    found = _remainders.ramp(jnp.array([0.5, -0.25]), jnp.array([1e-9, -3e-7]), -1.0, 1.0)
    np.testing.assert_array_equal(found, 0.5 * np.array([1e-9, -3e-7]) ** 2)


@pytest.mark.parametrize(
    ("objective", "labels"),
    [(losses.logistic(2.0), [0.0, 1.0, 0.3]), (losses.huber(2.0, 0.7), [0.0, 5.0, -2.0])],
)
def test_the_models_say_the_remainder_of_their_own_link(objective, labels):
    model = objective.linear_model
    margins = np.linspace(-4.0, 4.0, 41)[:, None, None]
    changes = np.linspace(-3.0, 3.0, 31)[None, :, None]
    y = np.array(labels)

    @jax.jit
    def both(margins, y, changes):
        direct = model.link(margins + changes, y) - model.link(margins, y)
        slope = model.derivative(margins, y)
        return model.remainder(margins, y, changes), direct - slope * changes

    found, direct = both(margins, y, changes)
    np.testing.assert_allclose(found, direct, rtol=1e-12, atol=1e-13)


def test_an_item_without_a_label_has_no_remainder():
    model = losses.huber(1.0).linear_model
    found = model.remainder(jnp.array([3.0]), jnp.array([jnp.nan]), jnp.array([2.0]))
    assert float(found[0]) == 0.0


@pytest.mark.parametrize("margin", [0.0, 800.0, -800.0, 1e6])
def test_nothing_overflows(margin):
    changes = jnp.array([-1e6, -900.0, 900.0, 1e6])
    found = np.asarray(_remainders.softplus(jnp.full(4, margin), changes))
    assert np.all(np.isfinite(found))
    assert np.all(found >= 0)
