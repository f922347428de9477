"""Noisy projected SGD on a finite sample, and the normal law of its average.

What it computes: w ← Π(w - α_k·(g_k + σZ_k)), α_k = α_0·k^(-β), with g_k the gradient mapping (``aprox``) of
the loss of one record, drawn uniformly with replacement; the average of the iterates. A record is whatever
stands on the leading axis: a user, with the loss E (10) for ``ElementData``, or a unit (by ``as_units``).

Source: E (14), (20), Theorem 1, with correction N12: the print has no projection after the noise, without
which iterates leave the set on which the loss is defined.

Formal guarantee: none by itself. ``noisy_sgd`` is a statistical procedure for study: g_k has no bound that is
enforced, and nobody has accounted for it. The private form is ``methods.PowerSteps`` driven by a private
mean: with ``mean = user_level.sgd.plan(problem, budget, batch_size=1, sampling="fixed", ...).mean``, the call
``first_order.run(key, mean, PowerSteps(...), ...)`` clips the gradient of the one record of a step and covers
it. By the plan's certificate it is private under replacement of a user (a user's loss is then the mean over
the items), or, run on ``elements.as_units`` with n·K records, of a unit. The method is post-processing. Take
the number of steps from the plan: its certificate is of so many, and of the run the loss in the ``Solution``.

Theorem 1, of Θ compact and convex, w* in its interior, the loss smooth near it: with k/n → γ steps,
√n(average - w*) → N(0, Q⁻¹(Σ + (Σ + σ²Σ_z)/γ)Q⁻¹), Q the Hessian of the population loss at w* and Σ the
covariance of a record's gradient there. The first Σ is that of the sample, which no algorithm can undo; the
rest is that of the steps and of their noise.

Cost: one record's gradient a step; memory of the parameters.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.problems import synthetic_elements
    >>> from dpsco_jax.solvers.element_level import m_estimation
    >>> made = synthetic_elements.logistic(jax.random.key(0), num_users=50, elements_per_user=3)
    >>> arguments = (made.objective, made.data, jnp.zeros(10))
    >>> run = m_estimation.noisy_sgd(jax.random.key(1), *arguments, num_steps=100, initial_step=0.5)
    >>> run.average.shape, bool(jnp.linalg.norm(run.average - made.params) < 1.0)
    ((10,), True)

    The private form, a unit the record, from ``plan`` to certificate:

    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import elements
    >>> from dpsco_jax.solvers import first_order, methods
    >>> from dpsco_jax.solvers.user_level import sgd
    >>> units = elements.as_units(made.data)
    >>> records, items = units.mask.shape
    >>> problem = Problem(made.objective, num_users=records, dim=10)
    >>> sizes = {"batch_size": 1, "sampling": "fixed", "step_size": 1.0}  # not the method's step size
    >>> plan = sgd.plan(problem, Budget(4.0, 1e-5), num_steps=100, **sizes)
    >>> steps = methods.PowerSteps(0.5, decay=0.6)
    >>> rest = made.objective, units, jnp.zeros(10), plan.num_steps, plan.user_gradients * items
    >>> private = first_order.run(jax.random.key(2), plan.mean, steps, *rest)
    >>> private.params.shape, plan.certificate().epsilon <= 4.0, plan.certificate().relation.name
    ((10,), True, 'REPLACE_ONE')
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from dpsco_jax import _checks
from dpsco_jax.mechanisms import additive
from dpsco_jax.oracles import sampling
from dpsco_jax.problems import elements, users
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import methods
from dpsco_jax.solvers.element_level import aprox

__all__ = ["Averaged", "limit_covariance", "noisy_sgd"]


class Averaged(NamedTuple):
    """The end of a run.

    Attributes:
        average: of the iterates, all with the same weight.
        last: the last of them.
    """

    average: Any
    last: Any


def noisy_sgd(
    key: jax.Array,
    objective: Objective,
    data: ElementData | UserData,
    params: Any,
    *,
    num_steps: int,
    initial_step: Any,
    decay: Any = 0.6,
    noise_stddev: Any = 0.0,
    model: str = "linear",
    infimum: Any = 0.0,
    inner_steps: int = 50,
) -> Averaged:
    """Runs (14) on a sample. Not private; pure JAX: jit and map over key, data, params and numbers.

    Args:
        key: a typed key; records have one half of it, noise the other.
        objective: static; the loss of a record includes the regularizer.
        data: n records: users with elements, or users.
        params: the starting point; projected onto the domain.
        num_steps: k, static.
        initial_step: α_0 > 0.
        decay: β in (1/2, 1).
        noise_stddev: σ ≥ 0, of the noise on each coordinate of a step's direction.
        model: of ``aprox.mapping``; ``"proximal"`` needs a smooth loss.
        infimum: see ``aprox.mapping``.
        inner_steps: see ``aprox.mapping``.

    Raises:
        ValueError: an argument is out of its range.
    """
    _checks.require_key(key)
    _checks.require_instance("objective", objective, Objective)
    _checks.require_instance("data", data, ElementData | UserData)
    _checks.require_tree("params", params)
    num_steps = _checks.require_count("num_steps", num_steps)
    _checks.require_nonnegative("noise_stddev", noise_stddev)
    _checks.require_choice("model", model, aprox.MODELS)
    steps = methods.PowerSteps(initial_step, decay)
    made = steps.on(objective.domain, num_steps)
    loss_of, records, slots = _record_loss(objective, data)
    smoothness = objective.smoothness
    if smoothness is not None:
        smoothness = slots * smoothness + objective.ridge
    if model == "proximal":
        _checks.require_positive("objective.smoothness", objective.smoothness)
    draw_key, noise_key = jax.random.split(key)

    def step(state: tuple[Any, Any], count: Any) -> tuple[tuple[Any, Any], None]:
        point, opt_state = state
        drawn = sampling.with_replacement(jax.random.fold_in(draw_key, count), records, 1)
        items, mask = jax.tree.map(lambda leaf: leaf[drawn.indices[0]], tuple(data))

        def loss(point: Any) -> Any:
            return loss_of(point, items, mask) + objective.regularizer(point)

        direction = aprox.mapping(
            loss,
            point,
            steps.length(count),
            objective.domain,
            model,
            infimum=infimum,
            smoothness=smoothness,
            inner_steps=inner_steps,
        )
        noisy = additive.gaussian(jax.random.fold_in(noise_key, count), direction, noise_stddev)
        updates, opt_state = made.steps.update(noisy, opt_state, point)
        return (optax.apply_updates(point, updates), opt_state), None

    start = objective.domain.project(params)
    state = start, made.steps.init(start)
    (last, opt_state), _ = jax.lax.scan(step, state, jnp.arange(num_steps))
    return Averaged(made.report(opt_state, last), last)


def limit_covariance(
    hessian: Any,
    gradient_covariance: Any,
    steps_per_record: float,
    noise_stddev: float = 0.0,
    noise_covariance: Any = None,
) -> Float[np.ndarray, "dim dim"]:
    """The covariance of √n(average - w*) in Theorem 1; float64, on the host.

    Args:
        hessian: Q, ``[dim, dim]``, positive definite.
        gradient_covariance: Σ, ``[dim, dim]``.
        steps_per_record: γ > 0; ``inf`` for the law of the sample's minimizer.
        noise_stddev: σ ≥ 0.
        noise_covariance: Σ_z; the identity if left out.

    Raises:
        ValueError: an argument is out of its range, or Q is not symmetric and positive definite.
    """
    for name, matrix in (("hessian", hessian), ("gradient_covariance", gradient_covariance)):
        _checks.require_finite(name, matrix)
    hessian = np.asarray(hessian, np.float64)
    dim = hessian.shape[0] if hessian.ndim else 0
    square = hessian.shape == (dim, dim) and dim > 0
    definite = square and np.allclose(hessian, hessian.T)
    definite = definite and np.linalg.eigvalsh(hessian)[0] > 0
    _checks.require(bool(definite), "hessian", hessian, "symmetric and positive definite")
    own = np.asarray(gradient_covariance, np.float64)
    _checks.require(own.shape == (dim, dim), "gradient_covariance", own, f"of shape {(dim, dim)}")
    _checks.require_within("steps_per_record", steps_per_record, 0.0, np.inf, open_low=True)
    _checks.require_nonnegative("noise_stddev", noise_stddev)
    noise = np.eye(dim)
    if noise_covariance is not None:
        _checks.require_finite("noise_covariance", noise_covariance)
        noise = np.asarray(noise_covariance, np.float64)
        _checks.require(
            noise.shape == (dim, dim), "noise_covariance", noise, f"of shape {(dim, dim)}"
        )
    inside = own + (own + noise_stddev**2 * noise) / steps_per_record
    return np.linalg.solve(hessian, np.linalg.solve(hessian, inside).T)


def _record_loss(objective: Objective, data: Any) -> tuple[Any, int, int]:
    """The loss of a record, the number of records, and of how many means a loss is a sum at most."""
    if isinstance(data, ElementData):
        return elements.element_loss(objective), elements.num_users(data), elements.num_slots(data)
    return users.user_loss(objective), users.num_users(data), 1
