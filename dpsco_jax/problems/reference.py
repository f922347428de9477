"""The non-private optimum of a linear model, to measure excess risk against.

What it computes: the minimizer over all of space of the mean over users of the mean over the user's
items of a smooth linear-model loss, plus its ridge, by Newton's method with backtracking on the
host, in float64, on sparse rows.

Source: Boyd and Vandenberghe 2004, Algorithm 9.5.

Formal guarantee: not private: its output is a function of the data without noise. The reported ``gap`` is a
proven bound on the distance to the optimal value: ‖gradient‖²/(2μ) for a μ-strongly convex objective.

Cost: per iteration one pass over the rows and a dense dim × dim solve; about ten iterations.
"""

from typing import NamedTuple

import jax
import numpy as np
import scipy.linalg
import scipy.sparse

from dpsco_jax._checks import (
    of_true_and_false,
    require_count,
    require_each,
    require_instance,
    require_positive,
)
from dpsco_jax._given import require_held
from dpsco_jax.problems.objective import Objective, OneHot, bounded_row, row_values
from dpsco_jax.problems.users import UserData


class Reference(NamedTuple):
    """A minimizer.

    Attributes:
        params: float64, shape ``[dim]``.
        value: the objective there, regularizer included.
        gap: bound on ``value`` minus the optimal value.
    """

    params: np.ndarray
    value: float
    gap: float


def solve(
    objective: Objective, data: UserData, dim: int, tol: float = 1e-12, max_steps: int = 100
) -> Reference:
    """Minimize the mean user loss plus the regularizer.

    Args:
        objective: with a ``linear_model`` whose parameters are a vector, smooth, with ``ridge > 0``.
        data: items are ``Example`` with dense or one-hot features.
        dim: number of parameters.
        tol: bound on the gap at which to stop.
        max_steps: Newton steps at most.

    Raises:
        ValueError: if the objective is not of that kind, if ``tol`` was not reached, or if the
            minimizer over all of space lies outside the objective's domain.
    """
    require_instance("objective", objective, Objective)
    require_instance("data", data, UserData)
    require_held("data", data)
    require_each(require_count, dim=dim, max_steps=max_steps)
    require_positive("tol", tol)
    model, ridge = objective.vector_model, objective.ridge
    if model is None or objective.smoothness is None or ridge <= 0:
        raise ValueError(
            "objective must be a smooth linear model of a vector of parameters, with ridge > 0, got"
            f" {objective!r}"
        )
    rows, labels, weights = sparse_rows(objective, data, dim)

    with jax.enable_x64(True):
        link = jax.jit(model.link)
        slope = jax.jit(model.derivative)
        curvature = jax.jit(jax.vmap(jax.grad(model.derivative)))

        def value(params):
            losses = np.asarray(link(rows @ params, labels))
            return weights @ losses + 0.5 * ridge * params @ params

        params = np.zeros(dim)
        current = value(params)
        for _ in range(max_steps):
            margins = rows @ params
            gradient = rows.T @ (weights * np.asarray(slope(margins, labels))) + ridge * params
            gap = gradient @ gradient / (2 * ridge)
            if gap <= tol:
                break
            bends = weights * np.asarray(curvature(margins, labels))
            hessian = _weighted_gram(rows, bends)
            hessian[np.diag_indices(dim)] += ridge
            step = scipy.linalg.solve(hessian, gradient, assume_a="pos")
            length = 1.0
            while length > 1e-10:
                proposal = params - length * step
                new = value(proposal)
                if (
                    new <= current - 1e-4 * length * (gradient @ step)
                    or length * (gradient @ step) < 1e-14
                ):
                    break
                length /= 2
            params, current = proposal, new
        else:
            raise ValueError(
                f"tol must be reachable in max_steps={max_steps}, got {tol!r} (gap {gap})"
            )
        inside = bool(jax.jit(objective.domain.contains)(params, 1e-9))
    if not inside:
        norm = np.linalg.norm(params)
        raise ValueError(
            f"domain must contain the minimizer (norm {norm:.4g}), got {objective.domain}"
        )
    return Reference(params, float(current), float(gap))


def _weighted_gram(rows: scipy.sparse.csr_array, weights: np.ndarray) -> np.ndarray:
    """Σ_i weights_i·x_i·x_iᵀ; by blocks of dense products where rows are dense."""
    if rows.nnz < 0.25 * rows.shape[0] * rows.shape[1]:
        return (rows.T @ rows.multiply(weights[:, None])).toarray()
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, rows.shape[0], 8192):
        block = rows[start : start + 8192].toarray()
        total += block.T @ (block * weights[start : start + 8192, None])
    return total


def sparse_rows(
    objective: Objective, data: UserData, dim: int
) -> tuple[scipy.sparse.csr_array, np.ndarray, np.ndarray]:
    """The items as a flat sparse matrix, their labels, and their weights in the objective.

    Returns:
        Rows ``[items, dim]`` within the feature bound (float64), labels ``[items]``, and weights
        ``[items]``: one over the number of users and over the number of the user's items.

    Raises:
        ValueError: if the objective is not a linear model.
    """
    require_instance("objective", objective, Objective)
    require_instance("data", data, UserData)
    require_held("data", data)
    require_count("dim", dim)
    features, labels = data.items
    if objective.linear_model is None:
        raise ValueError(f"objective must have a linear_model, got {objective!r}")
    bound = objective.linear_model.feature_bound
    mask = np.ones(labels.shape, bool)
    if data.mask is not None:
        mask = np.asarray(of_true_and_false(data.mask))
    counts = mask.sum(axis=1)
    users, _ = np.nonzero(mask)
    weights = 1.0 / (len(mask) * counts[users])
    if isinstance(features, OneHot):
        columns = np.asarray(features.columns)[mask]
        counts_for = jax.jit(lambda row: row_values(OneHot(row), dim, bound) > 0)
        # Rounded to float32 for training; the public constant itself here.
        values = np.asarray(counts_for(columns)) * bound / np.sqrt(columns.shape[-1])
        item, place = np.nonzero(values)
        entries = (values[item, place], (item, columns[item, place]))
        rows = scipy.sparse.csr_array(entries, shape=(len(columns), dim))
    else:
        enforce = jax.jit(jax.vmap(lambda row: bounded_row(row, bound)))
        dense = np.asarray(enforce(np.asarray(features)[mask]))
        rows = scipy.sparse.csr_array(dense.astype(np.float64))
    return rows, np.asarray(labels, np.float64)[mask], weights
