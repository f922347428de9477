"""Slow, plain computations to compare curves with, in arbitrary precision."""

import mpmath as mp
import numpy as np

mp.mp.dps = 30


def sampled_gaussian_rdp(order: float, sigma: float, q: float) -> mp.mpf:
    """Divergence of (1-q) N(0, σ²) + q N(1, σ²) from N(0, σ²): binomial sum, or integral."""
    sigma, q, order = mp.mpf(float(sigma)), mp.mpf(float(q)), mp.mpf(float(order))
    if order == int(order):
        terms = (
            mp.binomial(order, k)
            * q**k
            * (1 - q) ** (order - k)
            * mp.expm1(mp.mpf(k * (k - 1)) / (2 * sigma**2))
            for k in range(2, int(order) + 1)
        )
        return mp.log1p(mp.fsum(terms)) / (order - 1)

    def integrand(t):
        u = q * mp.expm1(t / sigma - 1 / (2 * sigma**2))
        return mp.npdf(t) * ((1 + u) ** order - 1 - order * u)

    top = order / sigma + 14
    return mp.log1p(mp.quad(integrand, mp.linspace(-14, top, int(top + 14) + 2))) / (order - 1)


def symmetric_sampled_gaussian_rdp(order: float, sigma: float, q: float) -> mp.mpf:
    """The integral of hockey-stick divergences, from their definition."""
    sigma, q, order = mp.mpf(float(sigma)), mp.mpf(float(q)), mp.mpf(float(order))

    def profile(eps):
        inner = mp.log1p(mp.expm1(eps) / q)
        mu = 1 / sigma
        gaussian = mp.ncdf(mu / 2 - inner / mu) - mp.exp(inner) * mp.ncdf(-mu / 2 - inner / mu)
        return q * gaussian

    def integrand(eps):
        return (mp.exp((order - 1) * eps) + mp.exp(-order * eps)) * profile(eps)

    top = (order / sigma + 14) / sigma
    points = [0, *(top * mp.mpf(2) ** -k for k in range(12, -1, -1))]
    total = mp.quad(integrand, points)
    return mp.log1p(order * (order - 1) * total) / (order - 1)


def mixture_rdp(order, weights_p, means_p, weights_q, means_q, sigma) -> float:
    """Divergence between two mixtures of normals of one variance, by a fine sum."""
    means = np.concatenate([means_p, means_q])
    reach = (12.0 + order) * sigma + order * np.abs(means).max()
    z = np.linspace(-reach, reach, 400_001)

    def log_density(weights, means):
        parts = np.log(weights)[:, None] - 0.5 * ((z - means[:, None]) / sigma) ** 2
        return np.logaddexp.reduce(parts, axis=0)

    log_p = log_density(np.asarray(weights_p), np.asarray(means_p))
    log_q = log_density(np.asarray(weights_q), np.asarray(means_q))
    exponent = order * log_p + (1 - order) * log_q
    total = np.logaddexp.reduce(exponent) + np.log(z[1] - z[0]) - 0.5 * np.log(2 * np.pi * sigma**2)
    return total / (order - 1)
