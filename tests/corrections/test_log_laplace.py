"""Section X of docs/corrections.md, log-Laplace transforms: the printed claim fails, ours holds."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

from dpsco_jax.geometry import log_laplace
from tests.support.llt_gap import llt_gap_check


def cut_at_zero(phi, curvature, m):
    """Mass at the cut {0} of exp(-mφ) for each unit of φ's Hessian metric, over the mass of one side."""
    side = scipy.integrate.quad(lambda x: math.exp(-m * phi(x)), 0, 60 / m, limit=500)[0]
    return math.exp(-m * phi(0.0)) / math.sqrt(curvature) / side


def log_sinh(x):
    return x + math.log1p(-math.exp(-2 * x)) - math.log(2 * x) if x > 1e-4 else x * x / 6


def test_isoperimetry_of_weak_relative_convexity_is_not_of_order_root_m():
    """Both φ are convex and self-concordant, mφ is m-strongly convex relative to φ."""
    measured = [cut_at_zero(log_sinh, 1 / 3, m) / math.sqrt(m) for m in (1, 0.3, 0.1, 0.03, 0.01)]
    np.testing.assert_allclose(measured, [0.70, 0.58, 0.42, 0.27, 0.17], atol=6e-3)
    for m in (1e-3, 1e-4):
        assert cut_at_zero(log_sinh, 1 / 3, m) == pytest.approx(math.sqrt(3) * m, rel=0.03)
        assert cut_at_zero(lambda x: x - math.log1p(x), 1.0, m) == pytest.approx(m, rel=0.1)
    # The chain that the lemma was for contracts at the rate claimed for it all the same, φ = 0 on [-1, 1].
    for m in (0.1, 0.01):
        chain = llt_gap_check(
            np.zeros_like, m, domain=(-60 / m, 60 / m), support=(-1.0, 1.0), num_nodes=160
        )
        assert chain.contraction <= 1 / (1 + m) + 1e-9


def test_the_range_lemma_is_of_the_lp_ball():
    """Its proof bounds ψ(x) - ψ(0) "for ‖x‖_q ≤ 1", by a Hölder step that needs ‖x‖_p ≤ 1."""
    p, dim = 1.2, 10
    q = p / (p - 1)
    corner = np.ones(dim)
    with jax.enable_x64(True):
        psi = log_laplace.LpLogLaplace(p, 1.0, dim)
        inside_q, inside_p = corner / dim ** (1 / q), corner / dim ** (1 / p)
        value = jax.jit(psi.value)
        zero = log_laplace.at_zero(p, 1.0, dim)
        assert float(value(jnp.asarray(inside_q))) - zero > psi.range(1.0) * 1.5
        assert float(value(jnp.asarray(inside_p))) - zero <= psi.range(1.0)
        # Nor is it the range over another ball of radius 1, around x₀: there it grows with ‖x₀‖.
        center = np.zeros(dim)
        center[0] = 8.0
        ends = [float(value(jnp.asarray(center + s * np.eye(dim)[0]))) for s in (-1.0, 1.0)]
        assert ends[1] - ends[0] > 2 * psi.range(1.0)


def test_half_of_a_mean_is_not_twice_a_mean():
    """Lemma 5.8.1 bounds a mean over all r from below by twice the mean over r ≥ r₁/2; half of it is true."""
    for dim in (2, 10, 100, 400):
        half = math.sqrt((dim - 1) / 2) / 2
        top = math.sqrt(dim / 2)

        def weight(r, dim=dim, top=top):
            return math.exp((dim - 1) * math.log(r / top) - r * r + top * top)

        def average(low, high, dim=dim, top=top):
            def rising(r):
                return math.sinh(r) / r * weight(r, dim, top)

            return (scipy.integrate.quad(f, low, high, limit=200)[0] for f in (rising, weight))

        below, mass_below = average(1e-12, half)
        above, mass_above = average(half, top + 12)
        mean, conditional = (below + above) / (mass_below + mass_above), above / mass_above
        assert mean < 2 * conditional * 0.6
        assert mean >= conditional / 2
        # So the order √d of the range stands.
        last = math.log((1 - 1 / dim) * math.exp(half - math.log(8 * half)))
        assert log_laplace.rise_at_one(dim) >= last


def test_the_printed_range_is_ten_times_the_one_of_its_first_step():
    for dim, scale in ((5, 0.04), (20, 0.0025), (100, 1e-4)):
        printed = 8 + 8 / scale + math.sqrt(8 * dim / scale * math.log(scale + dim / scale))
        with jax.enable_x64(True):
            ours = log_laplace.LpLogLaplace(2.0, scale, dim).range(1.0)
        assert ours < printed / 10
        # What no range can be below: that of ‖x‖²/(4a).
        assert 1 / (4 * scale) < ours < 0.5 / scale
