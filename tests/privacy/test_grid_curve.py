"""Pairs of laws on grids: the tight Gaussian pair, the theorem in several norms, and what is refused."""

import numpy as np
import pytest
from scipy import stats

from dpsco_jax.privacy.audits.grid_curve import gdp_general_norm_check

AXIS = np.linspace(-6.0, 6.0, 121)
EPSILONS = np.array([0.0, 0.5, 1.0, 2.0])


def test_two_gaussians_are_on_the_curve():
    axis = np.linspace(-9.0, 10.0, 4001)
    found = gdp_general_norm_check(
        lambda x: x[:, 0] ** 2,
        lambda x: (x[:, 0] - 0.7) ** 2,
        [axis],
        p=1.0,
        lipschitz_diff=1.4,
        strong_convexity=2.0,
        epsilons=EPSILONS,
    )
    shift = 1.4 / np.sqrt(2.0)
    ahead, behind = shift / 2 - EPSILONS / shift, -shift / 2 - EPSILONS / shift
    known = stats.norm.cdf(ahead) - np.exp(EPSILONS) * stats.norm.cdf(behind)
    np.testing.assert_allclose(found.deltas, known, rtol=2e-5)
    np.testing.assert_allclose(found.claimed, known, rtol=1e-9)
    assert found.ratio == pytest.approx(1.0, abs=2e-5)


@pytest.mark.parametrize("p", [2.0, 1.5, 1.2, 1.05])
def test_the_theorem_holds_in_general_norms(p):
    """Both potentials have ‖x‖_p²/(2(p-1)), 1-strongly convex in ℓp, and a convex part that is not smooth."""

    def base(x):
        curved = np.sum(np.abs(x) ** p, axis=1) ** (2 / p) / (2 * (p - 1))
        return curved + 0.5 * np.abs(x[:, 0] - x[:, 1]) + 0.3 * np.maximum(x @ [1.0, 2.0], 0.0)

    directions = np.random.default_rng(3).normal(size=(2, 2))
    dual = p / (p - 1)
    ratios = []
    for a in [np.array([0.0, 1.0]), *directions]:
        slope = a / np.linalg.norm(a, dual)
        for change in (lambda x, s=slope: x @ s, lambda x, s=slope: np.abs(x @ s)):
            found = gdp_general_norm_check(
                base,
                lambda x, change=change: base(x) + change(x),
                [AXIS, AXIS],
                p=p,
                lipschitz_diff=1.0,
                strong_convexity=1.0,
                epsilons=EPSILONS,
            )
            ratios.append(found.ratio)
    assert 0.1 < max(ratios) <= 1.001


def test_both_directions_are_looked_at():
    """Exchanging the two laws changes nothing, and both sums are formed."""

    def wide(x):
        return x[:, 0] ** 2 / 2

    def narrow(x):
        return wide(x) + np.abs(x[:, 0])

    arguments = {"p": 2.0, "lipschitz_diff": 1.0, "strong_convexity": 1.0, "epsilons": EPSILONS}
    one = gdp_general_norm_check(wide, narrow, [AXIS], **arguments)
    two = gdp_general_norm_check(narrow, wide, [AXIS], **arguments)
    np.testing.assert_allclose(one.deltas, two.deltas, rtol=1e-12)
    p, q = np.exp(-wide(AXIS[:, None])), np.exp(-narrow(AXIS[:, None]))
    p, q = p / p.sum(), q / q.sum()
    known = [
        max(np.maximum(p - e * q, 0).sum(), np.maximum(q - e * p, 0).sum())
        for e in np.exp(EPSILONS)
    ]
    np.testing.assert_allclose(one.deltas, known, rtol=1e-12)


def test_declarations_that_the_grid_refutes_are_refused():
    good = {"p": 2.0, "lipschitz_diff": 1.0, "strong_convexity": 1.0, "epsilons": EPSILONS}

    def curved(x):
        return np.sum(x**2, axis=1) / 2

    def moved(x):
        return curved(x) + x @ [0.6, 0.8]

    grid = [np.linspace(-3, 3, 41), np.linspace(-2, 2, 41)]
    assert gdp_general_norm_check(curved, moved, grid, **good).ratio < 1.001
    with pytest.raises(ValueError, match="lipschitz_diff must be at least"):
        gdp_general_norm_check(curved, moved, grid, **{**good, "lipschitz_diff": 0.75})
    with pytest.raises(ValueError, match=r"strong_convexity must be at most 1,"):
        gdp_general_norm_check(curved, moved, grid, **{**good, "strong_convexity": 1.1})
    # In ℓ1 a square of ℓ2 bends least along a diagonal.
    with pytest.raises(ValueError, match=r"strong_convexity must be at most 0\.5,"):
        gdp_general_norm_check(
            curved, moved, [grid[0], grid[0]], **{**good, "p": 1.0, "strong_convexity": 0.9}
        )
    with pytest.raises(ValueError, match="strong_convexity"):
        gdp_general_norm_check(
            curved, lambda x: np.abs(x[:, 0]), grid, **{**good, "lipschitz_diff": 9.0}
        )
    with pytest.raises(ValueError, match="axes must be increasing"):
        gdp_general_norm_check(curved, moved, [grid[0] ** 3, grid[1]], **good)


def test_epsilons_without_a_ratio_are_refused():
    """Where the Gaussian curve is below all floats the ratio was 0/0."""
    axis = np.linspace(-9.0, 10.0, 401)

    def found(epsilons):
        return gdp_general_norm_check(
            lambda x: x[:, 0] ** 2 / 2,
            lambda x: (x[:, 0] - 1) ** 2 / 2,
            [axis],
            p=2.0,
            lipschitz_diff=1.0,
            strong_convexity=1.0,
            epsilons=epsilons,
        )

    assert found(1.0).ratio < 1.001
    for epsilons in (np.array([1.0, 60.0]), np.array([]), np.ones((2, 2))):
        with pytest.raises(ValueError, match="epsilons must be"):
            found(epsilons)
