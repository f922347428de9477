"""ψ against two other writings, a power series and quadrature over y; its law of λ, its draws, its bounds."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
from scipy import stats

from dpsco_jax.geometry import (
    _mixture_grid,
    _power_laplace,
    _radial_range,
    _stable_density,
    log_laplace,
)

pytestmark = pytest.mark.usefixtures("float64")


@functools.cache
def compiled(p, scale, dim):
    """One ψ, and its functions compiled once for all tests of one p and d."""
    with jax.enable_x64(True):
        psi = log_laplace.LpLogLaplace(p, scale, dim)
        return psi, jax.jit(jax.vmap(psi.value)), jax.jit(jax.vmap(psi.hessian))


def by_series(x, p, scale):
    """ψ(x) by homogeneous terms: those of Π Z(u_i) times what another radial law makes of each degree."""
    q, terms = p / (p - 1.0), 400
    orders = np.arange(terms)
    coefficients = np.ones(1)
    for u in np.abs(np.asarray(x, float)) / math.sqrt(scale):
        even = 2 * orders[: terms // 2]
        side = np.zeros(terms)
        log_u = math.log(u) if u > 0 else -1e6
        logs = even * log_u - scipy.special.gammaln(even + 1.0)
        side[::2] = np.exp(logs + scipy.special.gammaln((even + 1.0) / q)) * 2.0 / q
        coefficients = np.convolve(coefficients, side)[:terms]
    degree = orders[: len(coefficients)] + len(x)
    change = scipy.special.gammaln(degree / 2) - scipy.special.gammaln(degree / q)
    there = coefficients > 0.0
    total = scipy.special.logsumexp(np.log(coefficients[there]) + change[there])
    return total + math.log(q / 2.0) - 0.5 * len(x) * math.log(scale)


def moments(x, p, scale, ends):
    """log of the integral over y in two dimensions, mean and covariance, by quadrature on each quadrant."""
    q = p / (p - 1.0)
    nodes, weights = np.polynomial.legendre.leggauss(120)
    nodes, weights = (
        ends * (0.5 * (nodes + 1.0)) ** 3,
        1.5 * ends * (0.5 * (nodes + 1.0)) ** 2 * weights,
    )
    y, w = np.concatenate([-nodes[::-1], nodes]), np.concatenate([weights[::-1], weights])
    first, second = np.meshgrid(y, y, indexing="ij")
    power = (np.abs(first) ** q + np.abs(second) ** q) ** (2.0 / q)
    mass = np.exp(x[0] * first + x[1] * second - scale * power) * w[:, None] * w
    points = np.stack([first.ravel(), second.ravel()])
    share = mass.ravel() / mass.sum()
    return math.log(mass.sum()), points @ share, np.cov(points, aweights=share, ddof=0)


@pytest.mark.parametrize(
    ("p", "known"),
    [
        (1.2, 2.8468866),
        (2.0, None),
        pytest.param(4 / 3, 2.76254, marks=pytest.mark.slow),
        pytest.param(1.5, 2.6680407, marks=pytest.mark.slow),
    ],
)
def test_value_gradient_and_hessian_are_those_of_the_integral(p, known):
    psi, value, hessian = compiled(p, 0.5, 2)
    x = jnp.array([[1.0, 0.5], [0.0, -3.0]])
    found, bends, slopes = value(x), hessian(x), jax.jit(jax.vmap(psi.gradient))(x)
    for i in range(2):
        log_mass, mean, covariance = moments(np.asarray(x[i]), p, 0.5, 16.0)
        assert abs(found[i] - log_mass) < 1e-9
        np.testing.assert_allclose(slopes[i], mean, atol=1e-8)
        np.testing.assert_allclose(bends[i], covariance, atol=1e-7)
    if known is not None:
        assert abs(found[0] - known) < 1e-6


def test_value_by_a_quadrature_of_scipy():
    q = 4.0
    mass, _ = scipy.integrate.dblquad(
        lambda v, u: math.exp(u + 0.5 * v - 0.5 * (u**q + v**q) ** (2 / q)),
        -9,
        11,
        -9,
        10,
        epsabs=1e-9,
    )
    assert abs(compiled(4 / 3, 0.5, 2)[1](jnp.array([[1.0, 0.5]]))[0] - math.log(mass)) < 1e-8


@pytest.mark.parametrize(
    ("p", "scale", "dim"),
    [(1.1, 1.0, 2), (1.2, 0.5, 2), (1.5, 0.7, 3), (1.9, 1.0, 1), (1.43, 0.3, 10)],
)
def test_value_is_the_power_series_up_to_its_stated_error_all_over_its_reach(p, scale, dim):
    psi, value, _ = compiled(p, scale, dim)
    directions = np.random.default_rng(dim).laplace(size=(40, dim)) ** 3
    directions[0], directions[1, 1:] = 1.0, 0.0
    norms = np.sum(np.abs(directions) ** p, axis=1, keepdims=True) ** (1 / p)
    # Both ends of shells, and the whole reach.
    sizes = np.concatenate([[0.0, 1e-9, 0.999999, 1.000001, 15.999999], np.linspace(0.1, 16.0, 35)])
    x = directions / norms * sizes[:, None] * math.sqrt(scale)
    known = np.array([by_series(point, p, scale) for point in x])
    gap = np.abs(np.asarray(value(jnp.asarray(x))) - known)
    # The other writing has roundings of its own, in the largest of its terms.
    assert np.all(gap < psi.error + 4e-13)
    assert 1e-15 < psi.error < 1e-11
    assert abs(known[0] - log_laplace.at_zero(p, scale, dim)) < 1e-12
    outside = value(jnp.asarray(directions[:1] / norms[:1] * 17.5 * math.sqrt(scale)))
    assert bool(jnp.isnan(outside[0]))


def test_value_at_zero_and_at_two():
    assert log_laplace.at_zero(4 / 3, 0.5, 2) == pytest.approx(2.00368, abs=1e-5)
    _, value, hessian = compiled(2.0, 0.5, 2)
    x = jnp.array([[1.0, 0.5]])
    assert float(value(x)[0]) == pytest.approx(1.25 / 2.0 + math.log(math.pi / 0.5), rel=1e-14)
    np.testing.assert_allclose(hessian(x)[0], np.eye(2), rtol=1e-13)
    assert log_laplace.at_zero(2.0, 0.3, 7) == pytest.approx(
        3.5 * math.log(math.pi / 0.3), rel=1e-13
    )
    # p = 1: the unit ball of q = ∞ is a cube.
    assert log_laplace.at_zero(1.0, 1.0, 3) == pytest.approx(
        math.log(8.0 * math.gamma(2.5)), rel=1e-13
    )


def test_range_of_p_one_grows_with_the_dimension():
    known = {
        1: 0.25,
        2: 0.328184,
        4: 0.478073,
        10: 0.886167,
        50: 2.843887,
        100: 4.563266,
        400: 10.933704,
    }
    for dim, rise in known.items():
        assert log_laplace.rise_at_one(dim) == pytest.approx(rise, abs=6e-7)
    # Another radius and scale, by quadrature over r.
    radius, scale, dim = 1.7, 0.4, 5
    law = stats.gamma(dim / 2, scale=1 / scale)
    found = law.expect(
        lambda s: (
            math.cosh(radius * s**0.5) / dim
            + (1 - 1 / dim) * math.sinh(radius * s**0.5) / (radius * s**0.5)
        )
    )
    assert log_laplace.rise_at_one(dim, radius, scale) == pytest.approx(math.log(found), rel=1e-7)


@pytest.mark.slow
def test_convexity_is_that_of_the_dual_of_smoothness_and_concordance_that_of_a_transform():
    psi, _, hessian = compiled(1.5, 0.7, 3)
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(1000, 3)) * generator.uniform(0, 4, (1000, 1)))
    v = generator.laplace(size=(1000, 3)) ** 3
    bends = np.einsum("ni,nij,nj->n", v, np.asarray(hessian(x)), v)
    norms = np.sum(np.abs(v) ** 1.5, axis=1) ** (2 / 1.5)
    assert psi.strong_convexity == pytest.approx(0.5 / 1.4)
    assert np.all(bends >= psi.strong_convexity * norms * (1 - 1e-9))
    # The constant cannot be twice as large.
    assert np.min(bends / norms) < 2.0 * psi.strong_convexity

    def third(x, v):
        return jax.grad(jax.grad(jax.grad(lambda s: psi.value(x + s * v))))(0.0)

    thirds = np.asarray(jax.jit(jax.vmap(third))(x[:200], jnp.asarray(v[:200])))
    assert np.all(np.abs(thirds) <= 2.0 * bends[:200] ** 1.5 * (1 + 1e-8))
    assert np.max(np.abs(thirds) / bends[:200] ** 1.5) > 0.05


def test_the_third_derivative_is_that_of_the_series():
    psi = compiled(1.5, 0.7, 3)[0]
    x, v, e = np.array([0.4, -1.0, 0.0]), np.array([1.0, 0.5, -0.3]), 0.05
    third = jax.jit(
        jax.grad(jax.grad(jax.grad(lambda s: psi.value(jnp.asarray(x) + s * jnp.asarray(v)))))
    )(0.0)
    points = [by_series(x + k * e * v, 1.5, 0.7) for k in (-3, -2, -1, 1, 2, 3)]
    weights = np.array([1 / 8, -1, 13 / 8, -13 / 8, 1, -1 / 8])
    assert float(third) == pytest.approx(float(weights @ points) / e**3, abs=3e-4)


def test_divergence_of_two_laws_is_that_of_the_integrals():
    psi = compiled(4 / 3, 0.5, 2)[0]
    x, z = np.array([1.0, 0.5]), np.array([0.2, -0.4])
    (log_x, mean, _), (log_z, _, _) = moments(x, 4 / 3, 0.5, 16.0), moments(z, 4 / 3, 0.5, 16.0)
    # E log(D_x/D_z) under D_x.
    known = mean @ (x - z) - log_x + log_z
    found = jax.jit(psi.divergence)(jnp.asarray(x), jnp.asarray(z))
    assert float(found) == pytest.approx(known, abs=1e-8)


def test_range_is_above_every_rise_and_below_the_printed_bound():
    for dim, scale, known in ((5, 0.04, 11.30), (20, 0.0025, 133.0), (100, 1e-4, 2745.0)):
        psi = log_laplace.LpLogLaplace(2.0, scale, dim)
        found = psi.range(1.0)
        assert found == pytest.approx(known, rel=5e-4)
        printed = 8 + 8 / scale + math.sqrt(8 * dim / scale * math.log(scale + dim / scale))
        assert 10 < printed / found < 40
        # exact: E exp(r) by two series of hypergeometric functions
        if scale >= 0.0025:
            t2 = 0.25 / scale
            odd = math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2)) / math.sqrt(scale)
            exact = scipy.special.hyp1f1(dim / 2, 0.5, t2)
            exact = math.log(exact + odd * scipy.special.hyp1f1((dim + 1) / 2, 1.5, t2))
            assert exact <= found < exact + 1e-9
    psi, value, _ = compiled(1.5, 0.7, 3)
    x = np.random.default_rng(1).laplace(size=(500, 3)) ** 3
    x /= np.sum(np.abs(x) ** 1.5, axis=1, keepdims=True) ** (1 / 1.5)
    rises = np.asarray(value(jnp.asarray(3.0 * x))) - log_laplace.at_zero(1.5, 0.7, 3)
    assert rises.max() <= psi.range(3.0) < 1.7 * rises.max()


def test_draws_have_the_mean_and_covariance_of_their_law():
    psi = compiled(4 / 3, 0.5, 2)[0]

    def draw(key, x):
        first, second = jax.random.split(key)
        mixture = psi.mixture(x)
        chosen = mixture.log_lambda[jax.random.categorical(first, mixture.log_weights)]
        shrink = jnp.exp(-chosen / 4.0) * 0.5**-0.5
        return shrink * psi.coordinate_draw(second, x * shrink)

    many = jax.jit(jax.vmap(draw, in_axes=(0, None)))
    slope, bend = jax.jit(psi.gradient), jax.jit(psi.hessian)
    for x, known in ((jnp.zeros(2), (0.0, 0.0)), (jnp.array([1.0, -0.5]), (1.197, -0.679))):
        y = np.asarray(many(jax.random.split(jax.random.key(3), 6_000), x))
        mean, covariance = slope(x), np.asarray(bend(x))
        np.testing.assert_allclose(mean, known, atol=1e-3)
        assert np.all(np.abs(y.mean(0) - mean) < 4 * np.sqrt(np.diag(covariance) / len(y)))
        products = (y - np.asarray(mean))[:, :, None] * (y - np.asarray(mean))[:, None, :]
        errors = products.std(0) / math.sqrt(len(y))
        assert np.all(np.abs(products.mean(0) - covariance) < 4 * errors)
    norms = np.sum(
        np.asarray(many(jax.random.split(jax.random.key(4), 6_000), jnp.zeros(2))) ** 4, 1
    )
    # ‖y‖_q² has, at x = 0, the law of χ²_d/(2a).
    assert stats.kstest(np.sqrt(norms), stats.gamma(1.0, scale=2.0).cdf).pvalue > 1e-3


def test_coordinate_draws_have_their_density():
    psi = compiled(1.2, 0.5, 2)[0]
    slopes = jnp.repeat(jnp.array([0.0, -2.0, 40.0]), 20_000)
    drawn = np.asarray(jax.jit(psi.coordinate_draw)(jax.random.key(5), slopes)).reshape(3, -1)
    for slope, found in zip((0.0, -2.0, 40.0), drawn, strict=True):
        grid = np.linspace(-3.5, 3.5, 40_001)
        log_density = slope * grid - np.abs(grid) ** 6.0
        mass = np.cumsum(np.exp(log_density - log_density.max()))
        law = functools.partial(np.interp, xp=grid, fp=mass / mass[-1])
        assert stats.kstest(found, law).pvalue > 1e-3


@pytest.mark.parametrize(
    ("p", "dim", "shell"),
    [
        (1.2, 10, 30),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in ((1.2, 2, 0), (1.5, 1, 8), (1.8, 3, 90))
        ),
    ],
)
def test_steps_and_ends_of_the_grid_obey_the_proof_written_again(p, dim, shell):
    grid = _mixture_grid.mixture_grid(p, dim, shell + 1)
    c = 2 * (p - 1) / p
    least, outer = (1 - c) * c ** (c / (1 - c)), shell + 1.0
    height = max(0.0, outer**2 / 4 + dim / 2 * math.log(p - 1))

    def growth(gamma):
        # A chord of the convex function lies above it by 1/64 at most.
        return float(_radial_range.log_moment(outer / math.sqrt(gamma), dim)) - height + 1 / 64

    h, best = grid.step[shell], 0.0
    for b in np.linspace(0.01, 1.55, 400):
        angle = b * c / (1 - c)
        if angle >= 1.56:
            break
        gamma = math.cos(b) ** c * math.cos(angle) ** (1 - c)
        log_error = math.log(2 / math.cos(angle)) - dim / 2 * math.log(gamma) + growth(gamma)
        best = min(best, log_error - 2 * math.pi * b / h)
    assert best < -39.4
    start = math.exp(-grid.low[shell] * c / (1 - c))
    left = min(
        math.log(2 / g)
        - (1 - g) * least * start
        - dim / 2 * (1 - c) * math.log(g)
        + growth(g ** (1 - c))
        for g in np.linspace(0.02, 0.999, 400)
    )
    assert left < -39.4
    # To the right: for the inner end of the shell, and the weight itself, by a finer sum.
    ends = grid.low + grid.step * (grid.size - 1)
    assert np.all(ends >= _mixture_grid._right_end(p, dim, np.arange(shell + 1.0)) - 1e-12)
    q = p / (p - 1)
    v = np.arange(grid.low[shell] - 1.0, grid.low[shell] + h * (grid.size - 1) + 20.0, h / 3)
    u = np.zeros((dim, 1))
    u[0] = shell
    weight = np.asarray(_stable_density.log_density(jnp.asarray(v), c, v[0], v[-1])) - dim / q * v
    weight += np.asarray(_power_laplace.log_power_laplace(jnp.asarray(u * np.exp(-v / q)), q)).sum(
        0
    )
    beyond = v > grid.low[shell] + h * (grid.size - 1)
    tail = scipy.special.logsumexp(weight[beyond]) - scipy.special.logsumexp(weight)
    assert -80 < tail < -39.5


@pytest.mark.parametrize("q", [2.1, 4.0, 11.0])
def test_the_function_of_one_variable_is_smooth_where_table_and_expansion_meet(q):
    edge = math.sqrt(math.expm1(_power_laplace._table(q).high))
    t = np.array([0.0, 0.7, 30.0, edge * 0.999, edge * 1.001, 50 * edge])
    p = q / (q - 1)
    leading = (q - 1) * (t / q) ** p
    known = _power_laplace.log_ratio_by_quadrature(t[:5], q)
    found = np.asarray(jax.jit(lambda s: _power_laplace.log_power_laplace(s, q))(t))
    np.testing.assert_allclose(found[:5] - leading[:5], known, atol=2e-11)
    # At most the leading part above its value at 0; the bound of the proof.
    assert np.all(found - _power_laplace.log_at_zero(q) <= leading * (1 + 1e-13) + 1e-13)
    slope = jax.grad(lambda s: _power_laplace.log_power_laplace(s, q))
    slopes = jax.jit(jax.vmap(slope))(t[3:])
    np.testing.assert_allclose(slopes, (t[3:] / q) ** (1 / (q - 1)), rtol=1e-3)


def test_the_stable_density_is_that_of_levy_and_has_its_transform():
    v = np.linspace(-4, 30, 200)
    levy = -math.log(2 * math.sqrt(math.pi)) - v / 2 - np.exp(-v) / 4
    np.testing.assert_allclose(
        _stable_density.log_density(jnp.asarray(v), 0.5, -5.0, 31.0), levy, atol=1e-13
    )
    fine = np.arange(-12.0, 60.0, 0.02)
    mass = np.exp(np.asarray(_stable_density.log_density(jnp.asarray(fine), 0.4, -12.0, 60.0)))
    for s in (0.1, 1.0, 7.0):
        assert np.log(0.02 * np.sum(mass * np.exp(-np.exp(fine) * s))) == pytest.approx(
            -(s**0.4), abs=1e-12
        )


def test_refusals():
    with pytest.raises(
        ValueError, match=r"p must be above 1, got 1.0; take p' = 1 \+ 1/log\(dim\) = 1.434"
    ):
        log_laplace.LpLogLaplace(1.0, 1.0, 10)
    with pytest.raises(ValueError, match=r"p must be above 1, got 1$"):
        log_laplace.LpLogLaplace(1, 1.0, 2)
    for p in (1.97, 2.5, 1.01):
        with pytest.raises(ValueError, match="p must be in"):
            log_laplace.LpLogLaplace(p, 1.0, 2)
    with pytest.raises(ValueError, match="reach / √scale"):
        log_laplace.LpLogLaplace(1.5, 1e-4, 2, reach=100.0)
    psi = compiled(2.0, 0.5, 2)[0]
    with pytest.raises(ValueError, match="x must be of shape"):
        psi.value(jnp.zeros(3))
    with pytest.raises(ValueError, match="x must be of float64"):
        psi.value(jnp.zeros(2, jnp.float32))
    with jax.enable_x64(False), pytest.raises(ValueError, match="jax_enable_x64"):
        log_laplace.LpLogLaplace(1.5, 1.0, 2)
