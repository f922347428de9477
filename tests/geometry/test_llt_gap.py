"""The contraction of the chain: equality cases in closed form, and the bound over forms of φ and F."""

import numpy as np
import pytest

from tests.support.llt_gap import llt_gap_check


@pytest.mark.parametrize(
    ("kappa", "known"), [(1.0, 0.5), (0.3, 0.7692), (0.1, 0.9091), (0.03, 0.9709), (0.01, 0.9901)]
)
def test_without_a_potential_the_bound_is_attained(kappa, known):
    flat = llt_gap_check(
        np.zeros_like, kappa, domain=(-60 / kappa, 60 / kappa), support=(-1.0, 1.0), num_nodes=160
    )
    assert flat.contraction == pytest.approx(known, abs=5e-5)
    assert flat.contraction == pytest.approx(flat.bound, abs=1e-9)
    assert flat.bound == pytest.approx(1 / (1 + kappa))


@pytest.mark.parametrize(
    "phi", [lambda y: y**2 / 2, lambda y: y**4 / 4, lambda y: 6 * np.sqrt(1 + y**2)]
)
@pytest.mark.parametrize("kappa", [1.0, 0.3, 0.05])
def test_a_convex_potential_and_a_domain_only_help(phi, kappa):
    for potential in (
        None,
        np.abs,
        lambda x: 3 * np.abs(x - 1),
        lambda x: np.maximum(0, 1 - x) ** 2,
    ):
        found = llt_gap_check(
            phi,
            kappa,
            domain=(-5.0, 5.0),
            support=(-30.0, 30.0),
            potential=potential,
            num_nodes=100,
        )
        assert found.contraction <= found.bound + 1e-6
        assert found.change < 1e-2


def test_a_gaussian_chain_with_a_quadratic_potential_in_closed_form():
    """φ = y²/2 and F = b·x²/2: x given y has precision 1 + κ + b, y given x variance 1."""
    found = llt_gap_check(
        lambda y: y**2 / 2,
        0.5,
        domain=(-12.0, 12.0),
        support=(-20.0, 20.0),
        potential=lambda x: 0.8 * x**2 / 2,
        num_nodes=160,
    )
    assert found.contraction == pytest.approx(1 / 2.3, abs=1e-9)


def test_a_potential_that_is_not_convex_is_beyond_the_theorem():
    found = llt_gap_check(
        lambda y: y**2 / 2, 0.2, domain=(-8.0, 8.0), support=(-16.0, 16.0),
        potential=lambda x: -2.0 * np.abs(x), num_nodes=160,
    )  # fmt: skip
    assert found.contraction > found.bound + 0.01


def test_refusals():
    sides = {"domain": (-1.0, 1.0), "support": (-1.0, 1.0), "num_nodes": 32}
    with pytest.raises(ValueError, match=r"domain\[1\]"):
        llt_gap_check(np.zeros_like, 1.0, domain=(1.0, 1.0), support=(-1.0, 1.0))
    with pytest.raises(ValueError, match="values of phi"):
        llt_gap_check(lambda y: y * np.inf, 1.0, **sides)
    with pytest.raises(ValueError, match="num_nodes must be even"):
        llt_gap_check(np.zeros_like, 1.0, **{**sides, "num_nodes": 33})
