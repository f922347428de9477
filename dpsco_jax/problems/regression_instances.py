"""Support vector machines and l1 regression with a certified optimum, to count queries on.

What it computes: means of |<a, x> - b| or of max(0, 1 - y<a, x>) over rows of norm one, as
``hard_instances.Instance``: a query draws one row; the smoothed gradient is in closed form.

Source: standard; the optimum by a linear program.

Formal guarantee: f ≥ optimum - gap on the ball B(R). Proof: with slopes u_i in the range of the link's
derivative over n, |m - b|/n ≥ u(m - b) for |u| ≤ 1/n and max(0, 1 - m)/n ≥ u(1 - m) for 0 ≤ u ≤ 1/n; the sum
is linear in x, and bounded below on B(R) by its constant minus R times the norm of its slope. The slopes are
the multipliers of the linear program, cut to their range, so the bound holds however well that was solved.

Cost: a linear program on the host: a second for 500 rows in 50 dimensions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from dpsco_jax.geometry._checks import require, require_nonnegative
from dpsco_jax.problems import gaussian_smoothing, losses
from dpsco_jax.problems.hard_instances import Instance, solve_linear_program
from dpsco_jax.problems.objective import Objective


def support_vectors(
    key: Key[Array, ""], rows: int, dim: int, flipped: float = 0.1, scale: float = 2.0
) -> Instance:
    """Mean hinge loss of a halfspace of which some labels are flipped; rows are unit vectors.

    Args:
        key: of the data.
        rows: at least dim.
        dim: d.
        flipped: share of labels that contradict the halfspace, in (0, ½); without any the infimum
            may be zero.
        scale: unused directions shrink: coordinate j has standard deviation (j + 1)^(-scale/2)
            before rows are normalized.

    Raises:
        ValueError: an argument is out of its range.
    """
    require(0.0 < flipped < 0.5, "flipped", flipped, "in (0, 1/2)")
    features, target, noise_key = _features(key, rows, dim, scale)
    labels = (features @ target > 0) ^ (
        np.asarray(jax.random.uniform(noise_key, (rows,))) < flipped
    )
    signed = features * (2.0 * labels[:, None] - 1.0)
    # Variables (x, slack): least mean slack, slack ≥ 1 - <signed row, x>.
    solution = solve_linear_program(
        np.append(np.zeros(dim), np.full(rows, 1.0 / rows)),
        np.hstack([-signed, -np.eye(rows)]),
        -np.ones(rows),
        dim,
    )
    pressed = np.clip(-solution.ineqlin.marginals, 0.0, 1.0 / rows)
    return _mean_of_links(
        losses.hinge(1.0),
        gaussian_smoothing.hinge,
        features,
        labels.astype(np.float32),
        solution.x[:dim],
        lambda distance: pressed.sum() - distance * np.linalg.norm(signed.T @ pressed),
    )


def absolute_regression(
    key: Key[Array, ""], rows: int, dim: int, noise: float = 0.1, scale: float = 2.0
) -> Instance:
    """Mean absolute deviation from noisy labels; rows are unit vectors.

    Args:
        key: of the data.
        rows: at least dim.
        dim: d.
        noise: nonnegative; of labels <row, unit vector> + noise·Laplace.
        scale: as for ``support_vectors``.

    Raises:
        ValueError: an argument is out of its range.
    """
    require_nonnegative("noise", noise)
    features, target, noise_key = _features(key, rows, dim, scale)
    labels = features @ target + noise * np.asarray(jax.random.laplace(noise_key, (rows,)))
    labels = labels.astype(np.float32)
    # Variables (x, deviation): ±(<row, x> - label) ≤ deviation.
    identity = np.eye(rows)
    solution = solve_linear_program(
        np.append(np.zeros(dim), np.full(rows, 1.0 / rows)),
        np.block([[features, -identity], [-features, -identity]]),
        np.append(labels, -labels),
        dim,
    )
    above, below = np.split(-solution.ineqlin.marginals, 2)
    slopes = np.clip(above - below, -1.0 / rows, 1.0 / rows)
    return _mean_of_links(
        losses.absolute(1.0),
        gaussian_smoothing.absolute,
        features,
        labels,
        solution.x[:dim],
        lambda distance: -slopes @ labels - distance * np.linalg.norm(features.T @ slopes),
    )


def _mean_of_links(
    objective: Objective,
    smoothed_link: gaussian_smoothing.SmoothedLink,
    features: np.ndarray,
    labels: np.ndarray,
    minimizer: np.ndarray,
    lower: Callable[[float], float],
) -> Instance:
    model = objective.linear_model
    assert model is not None
    distance = float(np.linalg.norm(minimizer))
    lengths = np.linalg.norm(features.astype(np.float64), axis=1)
    margins = features.astype(np.float64) @ minimizer
    with jax.enable_x64(True):
        optimum = float(np.mean(np.asarray(model.link(margins, labels.astype(np.float64)))))

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
        gap=max(optimum - float(lower(distance)), 0.0),
    )


def _features(
    key: Key[Array, ""], rows: int, dim: int, scale: float
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Unit rows (float32), a unit vector in the span of their larger directions, and a key."""
    require(dim >= 1, "dim", dim, "at least 1")
    require(rows >= dim, "rows", rows, f"at least dim = {dim}")
    require_nonnegative("scale", scale)
    row_key, target_key, noise_key = jax.random.split(key, 3)
    spread = np.arange(1, dim + 1) ** (-scale / 2)
    features = np.asarray(jax.random.normal(row_key, (rows, dim)), np.float64) * spread
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    target = np.asarray(jax.random.normal(target_key, (dim,)), np.float64)
    return features.astype(np.float32), target / np.linalg.norm(target), noise_key
