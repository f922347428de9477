"""Truncated concentrated differential privacy, against values computed from the theorems by hand."""

import math

import pytest

from dpsco_jax.privacy.curves import tcdp


def test_closed_forms():
    assert tcdp.gaussian(2.0) == (0.125, math.inf)
    assert tcdp.epsilon(tcdp.gaussian(2.0), 1e-6) == pytest.approx(
        0.125 + 2 * math.sqrt(0.125 * math.log(1e6))
    )
    # Beyond the truncation the conversion is linear in log(1/δ); both forms meet where it begins.
    loss = tcdp.TruncatedCdp(0.02, 10.0)
    edge = math.exp(-81 * 0.02)
    assert tcdp.epsilon(loss, edge) == pytest.approx(0.02 + 2 * 0.02 * 9)
    assert tcdp.epsilon(loss, edge / 2) == pytest.approx(0.2 + (81 * 0.02 + math.log(2)) / 9)


def test_conditions_of_the_theorem_are_checked():
    with pytest.raises(ValueError, match="rho of the release on a sample must be"):
        tcdp.subsampled(tcdp.gaussian(1.0), 0.01)
    with pytest.raises(ValueError, match=r"sampling_fraction must be in \(0, 0.1\]"):
        tcdp.subsampled(tcdp.gaussian(8.0), 0.2)
    with pytest.raises(ValueError, match=r"omega must be .*at least"):
        tcdp.subsampled(tcdp.TruncatedCdp(0.05, 2.0), 0.1)
