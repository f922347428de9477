"""Noise by Rényi curves: secants find what the search of ``calibrate`` finds, and it meets the budget."""

import math

import pytest

from dpsco_jax.privacy import releases
from dpsco_jax.privacy.calibration import calibrate


@pytest.mark.parametrize("batch", [1, 30, 1000])
@pytest.mark.parametrize("num_steps", [1, 50])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-8), (1.0, 1e-6), (8.0, 1e-3)])
def test_secants_find_the_noise_of_the_bracket_and_meet_the_budget(
    batch, num_steps, epsilon, delta
):
    steps = releases.fixed_size(1000, batch, num_steps)
    found = steps.noise_multiplier(epsilon, delta, "rdp")
    target = (1 - releases._LEDGER_ROUNDING) * epsilon
    most = 2 * math.sqrt(num_steps) / delta
    expected = calibrate(steps.loss, target, delta, 0.01, most)
    assert steps.ledger_epsilon(found, delta) <= target
    assert found == pytest.approx(expected, rel=5e-6)
