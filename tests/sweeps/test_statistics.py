"""Intervals: exact on noiseless data, covering on random data."""

import numpy as np
import pytest

from dpsco_jax.sweeps.statistics import power, ratio


def test_the_exponent_of_an_exact_power_law():
    found = power({m: [3.0 * m**-0.5] * 4 for m in (1, 10, 100)})
    assert found.estimate == pytest.approx(-0.5)
    assert found.low == pytest.approx(-0.5)
    assert found.high == pytest.approx(-0.5)


def test_the_exponent_of_a_spread():
    rng = np.random.default_rng(1)
    samples = {n: rng.normal(size=4000) / n for n in (1, 4, 16)}
    found = power(samples, lambda v, axis: np.sqrt(np.mean(v**2, axis=axis)))
    assert found.low < -1.0 < found.high
    assert found.high - found.low < 0.05


def test_intervals_cover_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = {"ratio": 0, "power": 0}
    for i in range(200):
        draw = {x: x * rng.gamma(9.0, size=20) for x in (1.0, 2.0, 4.0)}
        found = power(draw, seed=i)
        hits["power"] += found.low < 1.0 < found.high
        found = ratio(draw[4.0], draw[2.0])
        hits["ratio"] += found.low < 2.0 < found.high
    assert 0.86 < hits["power"] / 200 < 0.99
    assert 0.90 < hits["ratio"] / 200 < 0.99


def test_one_run_of_each_has_no_interval():
    found = ratio([2.0], [1.0])
    assert found.estimate == 2.0
    assert np.isnan(found.low)
