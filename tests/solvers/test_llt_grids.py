"""The chain of p = 1.5 in two dimensions, and its target on neighbours, by sums over grids alone."""

import functools
import math

import numpy as np
import pytest
from scipy import special

from dpsco_jax.solvers.sampling import _llt_numbers as bounds
from tests.support.edited_plans import gaussian_curve

Q = 3.0
STRETCH = 4.0  # 2/(p - 1)


def square(end, count):
    side = np.linspace(-end, end, count)
    return np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)


@functools.cache
def grids():
    """Points, dual points, and log D_x(y) up to ψ(x), which is the third."""
    x, y = square(16.0, 45), square(9.0, 49)
    tilted = x @ y.T - np.sum(np.abs(y) ** Q, axis=1) ** (2 / Q)
    return x, y, tilted, special.logsumexp(tilted, axis=1)


def row(*entries):
    return np.asarray(entries) / np.linalg.norm(entries, Q)


def normalized(potential):
    return np.exp(-potential - special.logsumexp(-potential))


@pytest.mark.parametrize(
    ("drift", "slope"), [(0.5, 0.5), pytest.param(0.3, 0.3, marks=pytest.mark.slow)]
)
def test_a_chain_of_another_norm_is_as_near_as_is_certified(drift, slope):
    """½·(1 + β)^{-T}·exp(½·(kG)²·h/β), and χ² of the start, with rows of length 1 in ℓ3 = ℓp*."""
    x, y, tilted, psi = grids()
    rows = np.stack([row(1.0, 1.0), row(1.0, -1.0), row(0.5, 1.0)])
    loss = slope * np.mean(np.abs(x @ rows.T - [4.0, -3.0, 6.0]), axis=1)
    target, start = normalized(loss + drift * psi), normalized(drift * psi)
    warm = slope**2 * STRETCH / drift
    assert np.sum(start**2 / target) <= math.exp(warm)
    dual = np.exp(tilted - psi[:, None])
    back = -(loss + (1 + drift) * psi)[:, None] + x @ y.T
    back = np.exp(back - special.logsumexp(back, axis=0))
    law, found = start, []
    for steps in range(1, 21):
        law = back @ (law @ dual)
        distance = 0.5 * np.sum(np.abs(law - target))
        assert distance <= float(bounds.mixing_of(np, float(steps), math.log1p(drift), warm))
        found.append(distance)
    # The rate is that of the proof, within a tenth of 1 + β where F bends little.
    assert found[-1] / found[-2] >= 0.8 / (1 + drift)


def test_neighbours_are_as_far_apart_as_is_charged_for():
    """Δ(ε) of two targets, one user of two replaced, at most that of s = 2kG/(n·√m), m = β(p - 1)/2."""
    x, *_, psi = grids()
    rng, worst = np.random.default_rng(0), 0.0
    for case in range(24):
        drift, slope = rng.choice([0.6, 1.5]), rng.choice([0.3, 0.6, 1.0])
        mine, other = (row(1.0, 0.0), row(*rng.standard_normal(2)))
        mine = mine if case % 3 else row(*rng.standard_normal(2))
        kept = np.abs(x @ other - rng.normal())
        far = 40.0 if case % 2 else 3.0 * rng.normal()
        laws = [
            normalized(0.5 * slope * (np.abs(x @ mine - sign * far) + kept) + drift * psi)
            for sign in (1.0, -1.0)
        ]
        s = slope / math.sqrt(drift / STRETCH)
        for epsilon in (0.0, 0.5, 1.0):
            curve = gaussian_curve(s, epsilon)
            for one, two in (laws, laws[::-1]):
                found = np.sum(np.maximum(one - math.exp(epsilon) * two, 0.0))
                assert found <= curve
                worst = max(worst, found / curve)
    assert worst >= 0.6
