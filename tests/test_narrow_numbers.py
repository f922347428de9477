"""Numbers of half precision are taken for what they are, and nothing is formed of them in their dtype."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax.mechanisms import additive, private_selection, sparse_vector
from dpsco_jax.mechanisms.winsorized import (
    private_range,
    winsorized_calibration,
    winsorized_mean,
)
from dpsco_jax.privacy import accountants
from dpsco_jax.transforms.aggregate import Aggregate

# Of JAX and of NumPy, to eight bits and to eleven.
NARROW = {
    "bfloat16": lambda x: jnp.asarray(x, jnp.bfloat16),
    "float16": lambda x: jnp.asarray(x, jnp.float16),
    "NumPy's float16": np.float16,
    "NumPy's bfloat16": ml_dtypes.bfloat16,
}
NUMBERS = [115.0, 263.0, 77.0, 50.0, 91.0]


def _of(*numbers):
    """The values themselves, in float64."""
    return [float(np.float64(number)) for number in numbers]


@pytest.mark.parametrize("kind", NARROW)
def test_sensitivities_are_not_rounded_in_the_dtype_of_the_users(kind):
    """2/115 in bfloat16 is 0.33 % too small."""
    for number in NUMBERS:
        users = NARROW[kind](number)
        (exact,) = _of(users)
        for aggregate in (
            transforms.clipped_mean(1.0, users),
            transforms.summed_contributions(1.0, users),
            transforms.centred_clip(1.0, users),
        ):
            assert float(aggregate.sensitivity) == pytest.approx(2.0 / exact, rel=3e-7)
        # The share inside is divided by another number, which the weight of the bit is for.
        centred = transforms.centred_clip(1.0, users, quantile=0.5)
        state = centred.init(jnp.zeros(1))
        found = jax.tree.leaves(centred.update(jnp.zeros((1, 1)), state)[0])[-1]
        weight = np.sqrt(4.0 - 1.9**2)
        assert float(np.sum(found)) == pytest.approx(weight / exact, rel=1e-6)


@pytest.mark.parametrize("kind", NARROW)
def test_a_sensitivity_of_ones_own_is_not_rounded_where_it_is_multiplied(kind):
    own = Aggregate(
        lambda params: (),
        lambda u, s, p=None: (u, s),
        NARROW[kind](0.7),
        NeighboringRelation.REPLACE_ONE,
    )
    (exact,) = _of(NARROW[kind](0.7))
    assert float(own.sensitivity * 1.001) == pytest.approx(exact * 1.001, rel=3e-7)


@pytest.mark.parametrize("kind", NARROW)
def test_what_a_release_costs_is_that_of_the_numbers_given(kind):
    for first, second in ((3.9, 1.3), (0.7, 0.9), (1.7, 0.3)):
        a, b = NARROW[kind](first), NARROW[kind](second)
        x, y = _of(a, b)
        for found, exact in (
            (additive.gaussian_loss(a, b), privacy.gaussian(x / y)),
            (additive.laplace_loss(a, b), privacy.laplace(x / y)),
            (private_selection.geometric_selection_loss(a), privacy.pure_dp(3.0 * x)),
            (sparse_vector.above_threshold(0.0, a, b, 3).loss, _three_of(x)),
            (
                winsorized_mean.winsorized_mean_1d_loss(a),
                privacy.compose(privacy.bounded_range(x / 2), privacy.laplace(2 / x)),
            ),
        ):
            ratio = np.float64(found.rdp) / exact.rdp
            assert ratio.min() >= 1 - 1e-7
            assert ratio.max() <= 1 + 1e-3
        assert float(private_range.half_width(a, b)) == pytest.approx(2 * x + y / 2, rel=3e-7)


def _three_of(epsilon):
    return privacy.scale(privacy.pure_dp(epsilon / 3), 3)


@pytest.mark.parametrize("kind", NARROW)
def test_certificates_are_those_of_the_numbers_given(kind):
    """One Gaussian of multiplier 1.06 was certified for 2.5 % less than it costs, of δ in bfloat16."""
    for number, delta in ((1.063, 1.063e-3), (0.94, 0.94e-3), (2.3, 0.011)):
        a, b = NARROW[kind](number), NARROW[kind](delta)
        x, y = _of(a, b)
        assert accountants.gaussian_epsilon(a, b) == accountants.gaussian_epsilon(x, y)
        found = accountants.gaussian_noise_multiplier(a, b)
        assert found == accountants.gaussian_noise_multiplier(x, y)


def test_narrow_releases_are_refused():
    releases = winsorized_calibration.calibrate_winsorized(
        12, 4, 2, 4.0, 1e-5, radius=0.1, bound=1.0, form="clipped"
    )
    concentrated = privacy.calibrate_concentrated(4000, 2, 4.0, 1e-6)
    key = jax.random.key(0)
    for make, good in (
        (transforms.winsorized_mean, (releases, key)),
        (transforms.outlier_removed_mean, (concentrated, 1.0, key)),
    ):
        make(*good)
        narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), good[0])
        with pytest.raises(ValueError, match="releases must be of numbers of float32"):
            make(narrow, *good[1:])
