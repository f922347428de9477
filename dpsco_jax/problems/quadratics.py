"""Quadratics in the eigenbasis of their Hessian, for methods that are counted in calls of an oracle.

What it computes: F(x) = ½Σh_i·x_i² - <b, x> as (h, b), and the chain, the quadratic that is hardest for
first-order methods, normalized so that its minimizer and its gradient at zero have norm 1.

Source: Nesterov 2018, section 2.1.2 (the chain; its Hessian is the discrete Laplacian, with known
eigenvectors).

Cost: O(dim).
"""

from typing import NamedTuple

import numpy as np

from dpsco_jax._checks import require_count


class Quadratic(NamedTuple):
    """F(x) = ½Σh_i·x_i² - <b, x>.

    Attributes:
        eigenvalues: h > 0, float64 ``[dim]``.
        linear: b, float64 ``[dim]``.
    """

    eigenvalues: np.ndarray
    linear: np.ndarray

    @property
    def minimizer(self) -> np.ndarray:
        """x* = b/h."""
        return self.linear / self.eigenvalues

    @property
    def initial_gap(self) -> float:
        """F(0) - F* = ½Σb_i²/h_i."""
        return float(0.5 * np.sum(self.linear * self.minimizer))


def chain(dim: int) -> Quadratic:
    """The chain: Hessian proportional to tridiag(-1, 2, -1), b to e_1, ‖x*‖ = ‖∇F(0)‖ = 1."""
    require_count("dim", dim)
    angles = np.pi * np.arange(1, dim + 1) / (dim + 1)
    eigenvalues = 4 * np.sin(angles / 2) ** 2  # 2 - 2cos, without its cancellation
    first_row = np.sin(angles)  # of the eigenvectors, up to a factor
    linear = first_row / np.linalg.norm(first_row)
    return Quadratic(eigenvalues * np.linalg.norm(linear / eigenvalues), linear)
