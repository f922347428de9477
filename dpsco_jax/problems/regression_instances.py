"""Support vector machines and l1 regression with a certified optimum, to count queries on.

What it computes: means of |<a, x> - b| or of max(0, 1 - y<a, x>) over rows of norm one, as
``hard_instances.Instance``: a query draws one row; the smoothed gradient is in closed form. The rows span a
random subspace, in which they have decaying standard deviations 1, 1/2, 1/3, ... before they are
normalized; with the same key, rows and rank the function is the same in every dimension, up to a rotation.

Source: standard; the optimum by a linear program.

Formal guarantee: f ≥ optimum - gap on the ball B(R). Proof: with slopes u_i in the range of the link's
derivative over n, |m - b|/n ≥ u(m - b) for |u| ≤ 1/n and max(0, 1 - m)/n ≥ u(1 - m) for 0 ≤ u ≤ 1/n; the sum
is linear in x, and bounded below on B(R) by its constant minus R times the norm of its slope. The slopes are
the multipliers of the linear program, cut to their range, so the bound holds however well that was solved.

Cost: a linear program on the host: a second for 500 rows in 50 dimensions.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from dpsco_jax._checks import (
    require,
    require_count,
    require_each,
    require_key,
    require_nonnegative,
    require_real,
)
from dpsco_jax.problems import gaussian_smoothing, losses
from dpsco_jax.problems.hard_instances import Instance, solve_linear_program
from dpsco_jax.problems.objective import Objective


def support_vectors(
    key: Key[Array, ""], rows: int, dim: int, rank: int, flipped: float = 0.1
) -> Instance:
    """Mean hinge loss of a halfspace of which some labels are flipped.

    Args:
        key: of the data.
        rows: at least ``rank``.
        dim: d.
        rank: of the features, in [1, dim].
        flipped: share of labels that contradict the halfspace, in (0, ½).
    """
    require_key(key)
    require_each(require_count, rows=rows, dim=dim, rank=rank)
    flipped = require_real("flipped", flipped, 0.0, 0.5)
    features, basis, target, noise_key = _features(key, rows, dim, rank)
    contradicts = np.asarray(jax.random.uniform(noise_key, (rows,))) < flipped
    labels = (features @ target > 0) ^ contradicts
    signed = features * (2.0 * labels[:, None] - 1.0)
    # Variables (x, slack): least mean slack, slack ≥ 1 - <signed row, x>.
    solution = solve_linear_program(
        np.append(np.zeros(rank), np.full(rows, 1.0 / rows)),
        np.hstack([-signed, -np.eye(rows)]),
        -np.ones(rows),
        rank,
    )
    pressed = np.clip(-solution.ineqlin.marginals, 0.0, 1.0 / rows)
    return _mean_of_links(
        losses.hinge(1.0),
        gaussian_smoothing.hinge,
        features @ basis.T,
        labels.astype(np.float32),
        basis @ solution.x[:rank],
        slopes=-pressed * (2.0 * labels - 1.0),
        constant=pressed.sum(),
    )


def absolute_regression(
    key: Key[Array, ""], rows: int, dim: int, rank: int, noise: float = 0.1
) -> Instance:
    """Mean absolute deviation from noisy labels.

    Args:
        key: of the data.
        rows: at least ``rank``.
        dim: d.
        rank: of the features, in [1, dim].
        noise: nonnegative; of labels <row, unit vector> + noise·Laplace.
    """
    require_key(key)
    require_each(require_count, rows=rows, dim=dim, rank=rank)
    require_nonnegative("noise", noise)
    features, basis, target, noise_key = _features(key, rows, dim, rank)
    labels = features @ target + noise * np.asarray(jax.random.laplace(noise_key, (rows,)))
    labels = labels.astype(np.float32)
    # Variables (x, deviation): ±(<row, x> - label) ≤ deviation.
    identity = np.eye(rows)
    solution = solve_linear_program(
        np.append(np.zeros(rank), np.full(rows, 1.0 / rows)),
        np.block([[features, -identity], [-features, -identity]]),
        np.append(labels, -labels),
        rank,
    )
    above, below = np.split(-solution.ineqlin.marginals, 2)
    slopes = np.clip(above - below, -1.0 / rows, 1.0 / rows)
    return _mean_of_links(
        losses.absolute(1.0),
        gaussian_smoothing.absolute,
        features @ basis.T,
        labels,
        basis @ solution.x[:rank],
        slopes=slopes,
        constant=-slopes @ labels,
    )


def _mean_of_links(
    objective: Objective,
    smoothed_link: gaussian_smoothing.SmoothedLink,
    rows: np.ndarray,
    labels: np.ndarray,
    minimizer: np.ndarray,
    slopes: np.ndarray,
    constant: float,
) -> Instance:
    """The instance, given that f(x) ≥ <rowsᵀ slopes, x> + constant."""
    model = objective.vector_model
    assert model is not None
    features = rows.astype(np.float32)
    exact = features.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1)
    distance = float(np.linalg.norm(minimizer))
    with jax.enable_x64(True):
        at = np.asarray(model.link(exact @ minimizer, labels.astype(np.float64)))
    optimum = float(np.mean(at))
    lower = float(constant) - distance * float(np.linalg.norm(exact.T @ slopes))

    def value(point):
        return jnp.mean(model.link(features @ point, labels))

    def gradient(keys, points):
        drawn = jax.vmap(lambda key: jax.random.randint(key, (), 0, len(labels)))(keys)
        chosen = jnp.asarray(features)[drawn]
        margins = jnp.sum(chosen * points, axis=-1)
        return model.derivative(margins, jnp.asarray(labels)[drawn])[:, None] * chosen

    def smoothed_value(point, stddev):
        return jnp.mean(smoothed_link(features @ point, labels, stddev * jnp.float32(lengths)))

    return Instance(
        value=value,
        gradient=gradient,
        smoothed_gradient=jax.grad(smoothed_value),
        dim=features.shape[1],
        lipschitz=float(np.max(lengths)),
        distance=distance,
        minimizer=minimizer,
        optimum=optimum,
        gap=max(optimum - lower, 0.0),
    )


def _features(
    key: Key[Array, ""], rows: int, dim: int, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Unit rows ``[rows, rank]``, an orthonormal basis ``[dim, rank]``, a unit vector, and a key."""
    require(1 <= rank <= dim, "rank", rank, f"in [1, dim] = [1, {dim}]")
    require(rows >= rank, "rows", rows, f"at least rank = {rank}")
    row_key, basis_key, target_key, noise_key = jax.random.split(key, 4)
    features = np.asarray(jax.random.normal(row_key, (rows, rank)), np.float64)
    features /= np.arange(1, rank + 1)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    basis = np.linalg.qr(np.asarray(jax.random.normal(basis_key, (dim, rank)), np.float64))[0]
    target = np.asarray(jax.random.normal(target_key, (rank,)), np.float64)
    return features, basis, target / np.linalg.norm(target), noise_key
