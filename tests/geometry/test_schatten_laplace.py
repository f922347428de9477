"""The 2×2 reference against its stated values, against a Gaussian and against sums over matrices."""

import math

import numpy as np
import pytest
from scipy import special

from tests.support import schatten_laplace as schatten

X = np.array([[1.0, 0.3], [-0.2, 0.4]])


def test_values_of_the_reference():
    rise = schatten.schatten_laplace(X, 4 / 3, 0.5) - schatten.schatten_laplace(0 * X, 4 / 3, 0.5)
    assert rise == pytest.approx(0.7413, abs=5e-5)
    gaussian = 2 * math.log(math.pi / 0.5) + np.sum(X**2) / 2
    assert schatten.schatten_laplace(X, 2.0, 0.5) == pytest.approx(gaussian, rel=1e-14)
    # The quadrature itself at q = 2, by an exponent next to it.
    assert schatten.schatten_laplace(X, 2.0 - 1e-9, 0.5) == pytest.approx(gaussian, abs=1e-7)
    for p, scale in ((1.2, 0.1), (1.5, 2.0)):
        found = [schatten.schatten_laplace(X, p, scale, nodes) for nodes in (150, 300)]
        assert found[0] == pytest.approx(found[1], abs=1e-10)


def test_rise_is_that_of_a_weighted_sample_of_matrices():
    """exp(ψ(X) - ψ(0)) = E exp<X, Y>·w / E w for Gaussian Y."""
    y = np.random.default_rng(0).normal(size=(60_000, 2, 2))
    values = np.linalg.svd(y, compute_uv=False)
    for p in (4 / 3, 1.7):
        q = p / (p - 1)
        weights = np.exp(np.sum(values**2, 1) / 2 - 0.5 * np.sum(values**q, 1) ** (2 / q))
        lean = np.exp(np.einsum("ij,nij->n", X, y)) * weights
        ratio = lean.mean() / weights.mean()
        spread = (lean - ratio * weights).std() / weights.mean() / math.sqrt(len(y))
        rise = schatten.schatten_laplace(X, p, 0.5) - schatten.schatten_laplace(0 * X, p, 0.5)
        assert abs(math.exp(rise) - ratio) < 5 * spread


@pytest.mark.parametrize("p", [1.1, 4 / 3, 1.9])
def test_values_of_large_matrices_are_those_of_sums_over_all_lengths(p):
    """Where singular values are alike the integrand is far from where unlike ones have it."""
    for second in (1.0, 0.3, -1.0):
        matrix = 30.0 * np.diag([1.0, second])
        z, w, q = 15.0 * (1.0 + second), 15.0 * (1.0 - second), p / (p - 1.0)
        points, weights = np.polynomial.legendre.leggauss(200)
        top = max(abs(z), abs(w)) + 12.0
        lengths, log_weights = 0.5 * top * (points + 1.0), np.log(0.5 * top * weights)
        rho, tau = lengths[:, None], lengths
        terms = np.log(rho * tau * special.ive(0, 2 * rho * z) * special.ive(0, 2 * tau * w))
        terms = terms + 2 * rho * abs(z) + 2 * tau * abs(w)
        terms = terms - ((rho + tau) ** q + np.abs(rho - tau) ** q) ** (2.0 / q)
        total = special.logsumexp(terms + log_weights[:, None] + log_weights)
        found = schatten.schatten_laplace(matrix, p, 1.0)
        assert found == pytest.approx(total + math.log(16.0 * math.pi**2), abs=1e-9)


def test_matrices_too_large_for_the_rule_are_refused():
    at = 59.9 * np.diag([0.5, 0.1])
    assert schatten.schatten_laplace(at, 1.1, 0.25) == pytest.approx(
        schatten.schatten_laplace(at, 1.1, 0.25, nodes=500), abs=1e-7
    )
    for nodes, size in ((200, 60.2), (50, 15.1)):
        with pytest.raises(ValueError, match=r"at most .* for .* nodes"):
            schatten.schatten_laplace(size * np.diag([0.5, 0.1]), 1.1, 0.25, nodes)


def test_range_bounds_rises_of_the_reference():
    unit = X / np.sum(np.linalg.svd(X, compute_uv=False) ** (4 / 3)) ** (3 / 4)
    rise = schatten.schatten_laplace(2 * unit, 4 / 3, 0.5) - schatten.schatten_laplace(
        0 * X, 4 / 3, 0.5
    )
    assert rise <= schatten.schatten_range(2.0, 4 / 3, 0.5, 2, 2) < 3 * rise
    # That of rows·columns dimensions.
    assert schatten.schatten_range(1.0, 1.5, 0.04, 1, 5) == pytest.approx(11.30, abs=5e-3)
    assert schatten.schatten_range(1.0, 1.5, 0.0025, 5, 4) == pytest.approx(133.0, abs=0.05)


def test_larger_matrices_are_an_open_question():
    with pytest.raises(NotImplementedError, match="open question"):
        schatten.schatten_laplace(np.ones((2, 3)), 1.5, 1.0)
    assert schatten.schatten_laplace(np.zeros((2, 3)), 2.0, 1.0) == pytest.approx(
        3 * math.log(math.pi)
    )
    with pytest.raises(ValueError, match="p must be in"):
        schatten.schatten_laplace(X, 1.0, 1.0)
