"""Noise written down as it is drawn, and what it proves at least, in NumPy and SciPy alone.

Divergences are Rényi divergences of order ``ORDER``, of a worst pair that exists: lower bounds of what a run
costs, to hold against what it claims to cost.
"""

import contextlib
import math
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms.winsorized import private_range

ORDER = 32.0


class Noise(NamedTuple):
    """What was drawn: scales of Gaussian and of Laplace noise, parameters of exponential mechanisms."""

    gaussian: list
    laplace: list
    ranges: list


@contextlib.contextmanager
def recorded(noise):
    """Writes down every noise that is drawn while a program runs that was compiled in here."""
    gaussian, laplace, interval = additive.gaussian, additive.laplace, private_range.private_range

    def seen(kept, value):
        jax.debug.callback(lambda x: kept.append(float(x)), jnp.asarray(value, float))

    def draw_gaussian(key, tree, stddev):
        seen(noise.gaussian, stddev)
        return gaussian(key, tree, stddev)

    def draw_laplace(key, tree, scale):
        seen(noise.laplace, scale)
        return laplace(key, tree, scale)

    def draw_interval(key, values, epsilon, *rest):
        # The key makes it a number of each draw, also where draws are batched.
        each = 0.0 * jax.random.key_data(key).ravel()[0].astype(float)
        seen(noise.ranges, epsilon + each)
        return interval(key, values, epsilon, *rest)

    with (
        mock.patch.object(additive, "gaussian", draw_gaussian),
        mock.patch.object(additive, "laplace", draw_laplace),
        mock.patch.object(private_range, "private_range", draw_interval),
    ):
        yield


def gaussian_divergence(stddevs, sensitivity):
    """α·Δ²/(2σ²), of all releases."""
    if any(not (math.isfinite(s) and s > 0) for s in stddevs):
        return math.inf
    return sum(ORDER * (sensitivity / s) ** 2 / 2 for s in stddevs)


def range_divergence(etas):
    """The largest divergence of two points with log ratios t and t - η, over t; of all draws."""

    def one(eta):
        t = np.linspace(1e-6 * eta, eta * (1 - 1e-6), 2001)
        # q·e^t + (1 - q)·e^(t - η) = 1 under the second law.
        q = (1 - np.exp(t - eta)) / (np.exp(t) - np.exp(t - eta))
        moment = q * np.exp(ORDER * t) + (1 - q) * np.exp(ORDER * (t - eta))
        return float(np.max(np.log(moment))) / (ORDER - 1)

    if any(not (math.isfinite(eta) and eta > 0) for eta in etas):
        return math.inf
    return sum({eta: one(eta) for eta in set(etas)}[eta] for eta in etas)


def pure_divergence(epsilon):
    """Of randomized response."""
    up, down = np.exp(epsilon) / (1 + np.exp(epsilon)), 1 / (1 + np.exp(epsilon))
    logs = np.log([up, down]) * ORDER + np.log([down, up]) * (1 - ORDER)
    return float(np.logaddexp(*logs)) / (ORDER - 1)


def least_epsilon(divergence, delta):
    """ε of the Gaussian release with that divergence, for δ > 0; of randomized response for δ = 0."""
    if delta == 0.0:
        low, high = 0.0, 1e6
        for _ in range(200):
            middle = (low + high) / 2
            small = middle > 50 or pure_divergence(middle) >= divergence
            low, high = (low, middle) if small else (middle, high)
        return low
    mu = math.sqrt(2 * divergence / ORDER)

    def failure(epsilon):
        up = special.ndtr(mu / 2 - epsilon / mu)
        return up - np.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu))

    low, high = 0.0, 1e4 + mu**2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if failure(middle) <= delta else (middle, high)
    return low
