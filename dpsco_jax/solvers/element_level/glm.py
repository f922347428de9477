"""Generalized linear models over elements: one slope for every partition, and what a partition changes.

What it computes: the minimizer of the loss over elements, E (11); its Hessian; the covariance of a user's
gradient; standard errors; and the loss by elements, L = Σ_k p_k·E[loss | items in c_k].

Source: E Example 3. If labels follow the model given the features, each item's expected gradient is zero at
the slope they follow, whatever element the item is in and however elements are weighted: the population's
minimizer is that slope for every partition. A partition changes the Hessian and the covariance, hence
standard errors.

Formal guarantee: none; all of it are facts about the private data, for study and for the data holder.

Cost: Newton's method on the items (``reference.solve``); dim gradients for a Hessian.

Example:
    >>> import jax
    >>> from dpsco_jax.problems import synthetic_elements
    >>> from dpsco_jax.solvers.element_level import glm
    >>> made = synthetic_elements.logistic(jax.random.key(0), 100, elements_per_user=3, ridge=1e-6)
    >>> slope = glm.minimizer(made.objective, made.data, 10)
    >>> error = glm.standard_errors(made.objective, slope, made.data)
    >>> bool((abs(slope - made.params) < 4 * error).all())
    True
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpsco_jax import _checks
from dpsco_jax.problems import elements, reference, users
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.element_level.m_estimation import limit_covariance

__all__ = [
    "by_elements",
    "gradient_covariance",
    "hessian",
    "minimizer",
    "standard_errors",
    "user_gradients",
]


def minimizer(
    objective: Objective, data: ElementData, dim: int, tol: float = 1e-12
) -> Float[np.ndarray, "dim"]:
    """The minimizer of the mean loss over elements plus the regularizer; float64, on the host.

    A mean over n·K units is the loss divided by K, so the ridge is divided by K too.

    Args:
        objective: with a ``linear_model`` whose parameters are a vector, smooth, with ``ridge > 0``.
        data: users × slots × items.
        dim: number of parameters.
        tol: bound on the gap at which to stop, of the mean over units.

    Raises:
        ValueError: see ``reference.solve``.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_count("dim", dim)
    _checks.require_positive("tol", tol)
    units, slots = elements.as_units(data), elements.num_slots(data)
    scaled = objective._replace(ridge=objective.ridge / slots)
    return reference.solve(scaled, units, dim, tol).params


def user_gradients(
    objective: Objective, params: Float[Any, "dim"], data: ElementData
) -> Float[Array, "users dim"]:
    """The gradient of each user's loss E (10), with the regularizer's."""
    _checks.require_instance("objective", objective, Objective)
    _checks.require_tree("params", params)
    elements.num_users(data)
    one = jax.grad(elements.element_loss(objective))
    mask = None if data.mask is None else _checks.of_true_and_false(data.mask)
    axes = (None, 0, None if mask is None else 0)
    params = jnp.asarray(params, jnp.result_type(float))
    own = jax.jit(jax.vmap(one, in_axes=axes))(params, data.items, mask)
    return own + objective.regularizer_gradient(params)


def gradient_covariance(
    objective: Objective, params: Float[Any, "dim"], data: ElementData
) -> Float[np.ndarray, "dim dim"]:
    """Σ: the covariance over users of the gradient of E (10), with n in the denominator."""
    gradients = np.asarray(user_gradients(objective, params, data), np.float64)
    away = gradients - gradients.mean(axis=0)
    return away.T @ away / len(away)


def hessian(
    objective: Objective, params: Float[Any, "dim"], data: ElementData
) -> Float[np.ndarray, "dim dim"]:
    """Q: the Hessian of E (11) on the data, with the regularizer's."""
    _checks.require_instance("objective", objective, Objective)
    _checks.require_tree("params", params)
    elements.num_users(data)
    params = jnp.asarray(params, jnp.result_type(float))
    found = jax.jit(jax.hessian(elements.mean_element_loss(objective)))(params, data)
    return np.asarray(found, np.float64)


def standard_errors(
    objective: Objective, params: Float[Any, "dim"], data: ElementData
) -> Float[np.ndarray, "dim"]:
    """Of each coordinate of the minimizer: √(diag(Q⁻¹ΣQ⁻¹)/n), with users as the independent records."""
    curvature = hessian(objective, params, data)
    spread = gradient_covariance(objective, params, data)
    law = limit_covariance((curvature + curvature.T) / 2, spread, np.inf)
    return np.sqrt(np.diag(law) / elements.num_users(data))


def by_elements(
    objective: Objective, params: Float[Any, "dim"], data: ElementData
) -> tuple[Float[Array, "slots"], Float[Array, "slots"]]:
    """p_k and the loss given c_k: the share of users with items in the element, and their mean loss there.

    The sum over elements of the products is E (11) without the regularizer. In the dense layout a slot is an
    element; in the packed layout it is a place in the order of a user's own.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_tree("params", params)
    shape = (elements.num_users(data), elements.num_slots(data))
    units = elements.as_units(data)
    axes = (None, 0, None if units.mask is None else 0)
    params = jnp.asarray(params, jnp.result_type(float))
    loss = jax.jit(jax.vmap(users.user_loss(objective), axes))
    each = loss(params, units.items, units.mask)
    held = (users.items_per_user(units) > 0).reshape(shape)
    totals = jnp.sum(each.reshape(shape), axis=0)
    return jnp.mean(held, axis=0), totals / jnp.maximum(jnp.sum(held, axis=0), 1)
