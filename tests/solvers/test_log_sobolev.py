"""Chains under a log-Sobolev constant: against Gaussian chains in closed form, and wells on a grid."""

import math

import numpy as np
import pytest
from scipy import stats

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.solvers.sampling import chain_lengths, log_sobolev


def gaussian_chain(start, steps, eta, m):
    """Mean and variance of x_T for the target N(0, 1/m)."""
    mean, variance = start, 0.0
    for _ in range(steps):
        mean /= 1 + eta * m
        variance = (variance + eta) / (1 + eta * m) ** 2 + eta / (1 + eta * m)
    return mean, variance


def apart(mean, variance, m):
    """Total variation of N(mean, variance) and N(0, 1/m), by the places where the densities cross."""
    grid = np.linspace(-12, 12, 200_001) / math.sqrt(m)
    p = stats.norm.pdf(grid, mean, math.sqrt(variance))
    q = stats.norm.pdf(grid, 0, 1 / math.sqrt(m))
    return 0.5 * np.trapezoid(np.abs(p - q), grid)


@pytest.mark.parametrize("eta", [0.02, 0.5, 5.0])
@pytest.mark.parametrize("start", [0.0, 0.7, 3.0])
def test_the_bound_holds_for_gaussian_chains_and_has_their_rate(eta, start):
    m = 2.0
    distance = math.sqrt(start**2 + 1 / m)
    for steps in (1, 2, 5, 20, 100):
        true = apart(*gaussian_chain(start, steps, eta, m), m)
        bound = float(log_sobolev.log_sobolev_variation(steps, eta, m, distance))
        assert true <= bound + 1e-14  # of the quadrature
        if start == 3.0 and 1e-9 < true < 0.2:
            assert bound < 20 * true


def test_it_is_below_the_bound_of_strong_convexity_by_half_a_step():
    for steps, eta, m, start in ((1, 0.3, 2.0, 0.1), (40, 0.05, 3.0, 2.0)):
        convex = float(chain_lengths.mixing_variation(steps, eta, m, start))
        found = float(log_sobolev.log_sobolev_variation(steps, eta, m, start))
        assert found == pytest.approx(convex / math.sqrt(1 + eta * m), rel=1e-12)


def test_the_least_number_of_steps_is_found():
    for variation in (0.3, 1e-3, 1e-9, 1e-30):
        for eta in (1e-4, 0.3, 20.0):
            steps = log_sobolev.log_sobolev_steps(variation, eta, 2.0, 3.0)
            assert log_sobolev.log_sobolev_variation(steps, eta, 2.0, 3.0) <= variation
            fewer = log_sobolev.log_sobolev_variation(max(steps - 1, 1), eta, 2.0, 3.0)
            assert steps == 1 or fewer > variation * (1 - 1e-9)


class Well:
    """exp(-m·x²/2 - U) on a grid, and the kernel of a proximal step there."""

    def __init__(self, m, perturbation, eta, points=241):
        self.grid = np.linspace(-6, 6, points) / math.sqrt(m)
        self.width = self.grid[1] - self.grid[0]
        weights = np.exp(-0.5 * m * self.grid**2 - perturbation(self.grid))
        self.target = weights / weights.sum()
        # Heat on a wider grid, with the proposal's normalizer; reversible by construction.
        heat = np.exp(-((self.grid[:, None] - self.grid) ** 2) / (2 * eta))
        heat /= math.sqrt(2 * math.pi * eta) / self.width
        back = self.target[None, :] * heat
        back /= back.sum(axis=1, keepdims=True)
        self.step = heat @ back

    def variation(self, steps, start):
        """Of x_T from the grid point nearest to the start, and the distance W of the start."""
        place = int(np.argmin(np.abs(self.grid - start)))
        law = np.zeros_like(self.target)
        law[place] = 1.0
        for _ in range(steps):
            law = law @ self.step
        law /= law.sum()  # what heat leaves beyond the grid
        distance = math.sqrt(np.sum(self.target * (self.grid - self.grid[place]) ** 2))
        return 0.5 * np.sum(np.abs(law - self.target)), distance

    def gap(self, eta):
        """1/λ - 1 over η, λ the second eigenvalue of a step: at least the constant of every such target."""
        root = np.sqrt(self.target)
        even = root[:, None] * self.step / root
        values = np.linalg.eigvalsh((even + even.T) / 2)
        return (1 / values[-2] - 1) / eta


WELLS = {
    "bounded": (lambda x: 1.2 * np.cos(2.5 * x), log_sobolev.bounded_perturbation(1.0, 2.4)),
    "kinks": (lambda x: -1.5 * np.abs(x), log_sobolev.lipschitz_perturbation(1.0, 1.5)),
    "waves": (lambda x: 0.8 * np.sin(2.0 * x), log_sobolev.lipschitz_perturbation(1.0, 1.6)),
}


@pytest.mark.parametrize("name", WELLS)
@pytest.mark.parametrize("eta", [0.1, 1.0])
def test_the_bound_holds_where_nothing_is_convex(name, eta):
    perturbation, alpha = WELLS[name]
    well = Well(1.0, perturbation, eta)
    # A log-Sobolev constant is a lower bound on the spectral gap: of the law, and so of the chain.
    assert alpha <= well.gap(eta)
    for start in (0.0, 2.0):
        for steps in (1, 3, 10, 40):
            true, distance = well.variation(steps, start)
            assert true <= float(log_sobolev.log_sobolev_variation(steps, eta, alpha, distance))


def test_a_double_well_mixes_more_slowly_than_strong_convexity_would_say():
    """The constant of the unperturbed law would be wrong: the test can fail."""
    well = Well(1.0, lambda x: -3.0 * np.abs(x), 1.0)
    true, distance = well.variation(10, 3.0)
    assert true > float(log_sobolev.log_sobolev_variation(10, 1.0, 1.0, distance))
    assert well.gap(1.0) < 0.5


def test_the_constant_of_a_lipschitz_perturbation_is_the_best_of_its_family():
    for slope in (1e-3, 0.1, 0.5, 1.0, 3.0, 8.0):
        for m in (0.2, 1.0, 30.0):
            gamma = (1 + 2.0 ** np.linspace(-40, 40, 20_001)) / m
            best = np.max((m - 1 / gamma) * np.exp(-(slope**2) * gamma / 2))
            found = log_sobolev.lipschitz_perturbation(m, slope)
            assert 0.999 * best < found * (1 + 1e-5)
            assert found <= best * (1 + 1e-5)
    assert log_sobolev.lipschitz_perturbation(2.0, 0.0) == 2.0
    assert log_sobolev.lipschitz_perturbation(2.0, 1e-200) <= 2.0


def test_constants_stay_below_the_largest_float_and_steps_below_none():
    """m·t and η·α overflow; the constant and the bound do not."""
    for m, slope in ((1e300, 1e-3), (1e300, 1e100), (1.0, 1e-154), (1.0, 1e-160)):
        assert 0.999 * m < log_sobolev.lipschitz_perturbation(m, slope) <= m
    assert log_sobolev.log_sobolev_variation(1, 1e200, 1e200, 1.0) == pytest.approx(
        0.5e-300, rel=1e-6
    )
    assert log_sobolev.log_sobolev_variation(1, 1e10, 1e17, 1.0) == pytest.approx(
        0.5 * 10**-18.5, rel=1e-6
    )
    assert log_sobolev.log_sobolev_steps(1e-299, 1e200, 1e200, 1.0) == 1


def test_the_envelope_is_near_and_bends_no_more_than_the_proof_says():
    x, gamma = np.linspace(-3, 3, 1201), 0.7
    rough = 1.3 * np.abs(np.sin(3 * x)) / 3 - 0.5 * np.abs(x - 0.4)
    slope = np.max(np.abs(np.diff(rough) / np.diff(x)))
    above = np.max(rough[None, :] - (x[:, None] - x) ** 2 / (2 * gamma), axis=1)
    assert np.all(above >= rough)
    assert np.max(above - rough) <= slope**2 * gamma / 2
    bent = np.diff(above + x**2 / (2 * gamma), 2)
    assert np.min(bent) > -1e-12


def test_impossible_requests():
    for name, call in (
        ("log_sobolev", lambda: log_sobolev.log_sobolev_variation(3, 0.1, 0.0, 1.0)),
        ("num_steps", lambda: log_sobolev.log_sobolev_variation(0, 0.1, 1.0, 1.0)),
        ("variation", lambda: log_sobolev.log_sobolev_steps(1.0, 0.1, 1.0, 1.0)),
        ("oscillation", lambda: log_sobolev.bounded_perturbation(1.0, -0.1)),
        ("lipschitz", lambda: log_sobolev.lipschitz_perturbation(1.0, math.nan)),
    ):
        with pytest.raises(ValueError, match=name):
            call()
    with pytest.raises(Infeasible, match=r"2\^31"):
        log_sobolev.log_sobolev_steps(1e-3, 1e-9, 1e-3, 1.0)
    with pytest.raises(Infeasible, match="oscillation"):
        log_sobolev.bounded_perturbation(1.0, 1e4)
    with pytest.raises(Infeasible, match="lipschitz"):
        log_sobolev.lipschitz_perturbation(1.0, 1e3)
