"""Generalized geometric medians of points that are zero beyond their first coordinates.

What it computes: the mean of ‖x - x_i‖_A = √((x - x_i)ᵀA(x - x_i)) for diagonal A, and the sum of its
gradients, in closed form: beyond the coordinates that points have, all of them share one term, so nothing of
the size of points times dimensions is ever held. ``ClosedForm`` is the private mean of these gradients for
``first_order.run``, all users a step.

Source: thesis, section 11.4.1; Weiszfeld 1937 for the plain median.

Formal guarantee: a gradient A(x - x_i)/‖x - x_i‖_A is A^{1/2} times a unit vector, hence no longer than the
largest entry of A^{1/2}: nothing has to be clipped, and a replaced point moves the sum by twice that. At x =
x_i it is taken to be zero.

Cost: n·d_min + d for a step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import transforms
from dpsco_jax._pytrees import Number, pytree
from dpsco_jax.geometry import domains
from dpsco_jax.oracles import Estimate
from dpsco_jax.privacy.sampling import FullBatch
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.means import Opened

POWERS = {"const": 0.0, "sqrt": 0.5, "linear": 1.0}
TEXT, CORRECTED, PRINTED = "text", "companion_corrected", "companion_printed"
CONVENTIONS = (TEXT, CORRECTED, PRINTED)


def half_matrix(convention: str, spectrum: str, dim: int, scale: float) -> np.ndarray:
    """The diagonal of A^{1/2}, ``[d]``: of A = diag(j^-p) as in the text, or of A^{1/2} = diag(j^-p).

    As it is printed, the companion's "const" is A^{1/2} = diag(1, ..., d).
    """
    power = POWERS[spectrum] / (2.0 if convention == TEXT else 1.0)
    if convention == PRINTED and spectrum == "const":
        power = -1.0
    return scale * np.arange(1.0, dim + 1) ** -power


def distances(x: Any, half: Any, points: Any) -> Any:
    """‖x - x_i‖_A of all points, ``[n]``.

    Args:
        x: ``[d]``.
        half: the diagonal of A^{1/2}, ``[d]``.
        points: the coordinates that are not zero, ``[n, d_min]``.
    """
    known = points.shape[1]
    near = jnp.sum((half[:known] * (x[:known] - points)) ** 2, axis=1)
    square = near + jnp.sum((half[known:] * x[known:]) ** 2)
    there = square > 0
    return jnp.where(there, jnp.sqrt(jnp.where(there, square, 1.0)), 0.0)


def mean_distance(x: Any, half: Any, points: Any) -> Any:
    """F(x), whose gradient is that of all points but those at x."""
    return jnp.mean(distances(x, half, points))


def gradient_sum(x: Any, half: Any, points: Any) -> Any:
    """Σ_i A(x - x_i)/‖x - x_i‖_A, ``[d]``; a point at x counts as zero."""
    known = points.shape[1]
    length = distances(x, half, points)
    weights = jnp.where(length > 0, 1.0 / jnp.where(length > 0, length, 1.0), 0.0)
    near = weights @ (x[:known] - points)
    return half**2 * jnp.concatenate([near, jnp.sum(weights) * x[known:]])


def least_distance(points: np.ndarray, half: np.ndarray) -> float:
    """Min F for points of one coordinate: at their median."""
    values = np.asarray(points, float)[:, 0]
    return float(half[0] * np.mean(np.abs(values - np.median(values))))


OBJECTIVE = Objective(
    loss=lambda x, item: 0.0,  # ``ClosedForm`` has the gradients
    lipschitz=1.0,
    smoothness=None,
    domain=domains.whole_space(),
)


@pytree
class ClosedForm:
    """The private mean of all gradients.

    Attributes:
        half: the diagonal of A^{1/2}.
        clip_norm: what the noise takes for the longest gradient; true if it is the largest entry of ``half``.
        noise_multiplier: σ over 2·``clip_norm``.
    """

    half: Any
    clip_norm: Number
    noise_multiplier: Number

    def open(self, key: jax.Array, objective: Objective, data: UserData, start: Any) -> Opened:
        """Oracle, data and release; the objective is not looked at."""
        points = data.items[:, 0]
        users = len(points)

        def oracle(key: jax.Array, x: Any, points: Any) -> Estimate:
            longest = {"clipped_to": jnp.max(self.half)}
            return Estimate(gradient_sum(x, self.half, points), longest, jnp.int32(users))

        aggregate = transforms.summed_contributions(self.clip_norm, users)
        release = transforms.privatize(aggregate, key, self.noise_multiplier, FullBatch())
        return Opened(oracle, points, release)
