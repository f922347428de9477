"""First-order methods on a private mean: META, whole.

What it computes: the mean's release, plus the exact gradients of all regularizers, drives a method. Once a
test has failed nothing moves any more. The method says which point is reported.

Source: thesis, Algorithm 1 (META).

Formal guarantee: that of the mean, at every point of the run: regularizers, steps, projections and reports
are post-processing of what it has released.

Cost: that of the mean, for the number of steps.

Example:
    >>> import jax, optax
    >>> from dpsco_jax import Budget, transforms
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers import first_order
    >>> from dpsco_jax.solvers.user_level import sgd
    >>> made = synthetic.logistic_regression(jax.random.key(0), num_users=100, items_per_user=2, dim=3)
    >>> plan = sgd.plan(made.problem(distance=5.0), Budget(1.0, 1e-5), num_steps=20, batch_size=20)
    >>> steps = optax.chain(optax.adam(0.1), transforms.project(made.objective.domain))
    >>> adam, key = first_order.Method(steps, lambda opt_state, params: params), jax.random.key(1)
    >>> arguments = (made.objective, made.data, jax.numpy.zeros(3), 20, 2 * plan.user_gradients)
    >>> first_order.run(key, plan.mean, adam, *arguments).params.shape
    (3,)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks, transforms
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.solvers import loop
from dpsco_jax.solvers.means import Clipped, Mean
from dpsco_jax.solvers.solution import Solution, Status, finished

__all__ = [
    "Method",
    "Pull",
    "ac_sa",
    "linear_decay",
    "momentum",
    "projected_sgd",
    "run",
    "scheduled_sgd",
    "staged_ac_sa",
]

_ON_HALT = ("report", "start")


class Method(NamedTuple):
    """What is done with a gradient, and which point is reported.

    Attributes:
        steps: takes the gradient of the whole objective, gives the update.
        report: ``report(opt_state, params)``, of the state of the whole chain: whatever nests the states of
            ``steps``, so find them as ``optax.tree.get(opt_state, "name of a field")`` does.
        on_halt: what is reported of a run that a test has ended: ``"report"``, or the ``"start"``.
    """

    steps: optax.GradientTransformation
    report: Callable[[Any, Any], Any]
    on_halt: str = "report"


class Pull(NamedTuple):
    """A term (strength/2)·‖w - centre‖² of the objective.

    Attributes:
        strength: λ ≥ 0.
        centre: a public point; ``None`` for the start.
    """

    strength: Any
    centre: Any = None


def projected_sgd(
    step_size: Any, domain: Domain, decay_power: float | None = 0.0, on_halt: str = "report"
) -> Method:
    """Steps against the gradient, projected onto the domain.

    Args:
        step_size: η.
        domain: of the parameters.
        decay_power: of ``transforms.average``, which is reported; the last point for ``None``.
        on_halt: see ``Method``.

    Raises:
        ValueError: if an argument is out of its range.
    """
    _checks.require_number("step_size", step_size, "a real number")
    _checks.require_instance("domain", domain, Domain)
    _checks.require_choice("on_halt", on_halt, _ON_HALT)
    steps = [optax.scale(-step_size), transforms.project(domain)]
    if decay_power is None:
        return Method(optax.chain(*steps), lambda opt_state, params: params, on_halt)
    steps.append(transforms.average(decay_power))
    return Method(optax.chain(*steps), transforms.average_eval_params, on_halt)


def scheduled_sgd(step_sizes: Any, shares: Any, domain: Domain) -> Method:
    """Steps of given lengths against the gradient, projected; a weighted average is reported.

    Args:
        step_sizes: γ_0, ..., γ_{T-1}.
        shares: of the iterates in the average, as in ``transforms.average``.
        domain: of the parameters.

    Raises:
        ValueError: if an argument is out of its range, or there are not as many step sizes as shares.
    """
    _checks.require_number("step_sizes", step_sizes, "real numbers")
    _checks.require_probability("shares", shares)
    _checks.require_instance("domain", domain, Domain)
    each = jnp.asarray(step_sizes)
    same = each.ndim == 1 and each.shape == jnp.shape(shares)
    _checks.require(same, "step_sizes", each.shape, f"as many as shares: {jnp.shape(shares)}")
    steps = [
        optax.scale_by_schedule(lambda count: -each[count]),
        transforms.project(domain),
        transforms.average(shares=shares),
    ]
    return Method(optax.chain(*steps), transforms.average_eval_params)


def momentum(step_size: Any, coefficient: Any, domain: Domain) -> Method:
    """Heavy-ball steps, projected: v ← β·v + (1 - β)·gradient, w ← Π(w - η·v). The last point is reported.

    Args:
        step_size: η, what a gradient moves the point by in all the steps that remember it.
        coefficient: β in [0, 1).
        domain: of the parameters.

    Raises:
        ValueError: if an argument is out of its range.
    """
    _checks.require_number("step_size", step_size, "a real number")
    _checks.require_instance("domain", domain, Domain)
    steps = [_velocity(coefficient), optax.scale(-step_size), transforms.project(domain)]
    return Method(optax.chain(*steps), lambda opt_state, params: params)


def linear_decay(step_size: Any, num_steps: int, domain: Domain, coefficient: Any = 0.0) -> Method:
    """Projected steps of lengths that fall linearly to nothing; the last point is reported.

    Step t = 0, ..., T - 1 has the length η·(T - t)/(T + 1), which for the last point proves what the average
    of steps of the length η has (docs/theory/linear_decay.md). Later steps have none.

    Args:
        step_size: η.
        num_steps: T.
        domain: of the parameters.
        coefficient: β in [0, 1) of a velocity, as in ``momentum``; 0 for plain steps.

    Raises:
        ValueError: if an argument is out of its range.
    """
    _checks.require_number("step_size", step_size, "a real number")
    _checks.require_count("num_steps", num_steps)
    _checks.require_instance("domain", domain, Domain)
    steps = [
        _velocity(coefficient),
        optax.scale_by_schedule(
            lambda t: -step_size * jnp.maximum(num_steps - t, 0) / (num_steps + 1)
        ),
        transforms.project(domain),
    ]
    return Method(optax.chain(*steps), lambda opt_state, params: params)


def _velocity(coefficient: Any) -> optax.GradientTransformation:
    _checks.require_within("coefficient", coefficient, 0.0, 1.0, open_high=True)
    # Gradients are released in float32 or wider, whatever the parameters have.
    trace = optax.trace(coefficient, accumulator_dtype=jnp.zeros(()).dtype)
    return optax.chain(trace, optax.scale(1 - coefficient))


def ac_sa(
    smoothness: Any,
    strong_convexity: Any,
    domain: Domain,
    stage_length: int | jax.Array | None = None,
) -> Method:
    """Accelerated stochastic approximation; its aggregate is reported.

    Args:
        smoothness: H of what is minimized, or the step parameter of a policy.
        strong_convexity: μ.
        domain: of the parameters.
        stage_length: steps between restarts from the aggregate, an integer or an array of one; ``None`` for
            no restart.

    Raises:
        ValueError: if an argument is out of its range.
    """
    _checks.require_instance("domain", domain, Domain)
    steps: optax.GradientTransformation = transforms.ac_sa(smoothness, strong_convexity, domain)
    if stage_length is not None:
        if not isinstance(stage_length, jax.Array):
            _checks.require_integer("stage_length", stage_length, 1)
        steps = transforms.restart_every(steps, stage_length, transforms.ac_sa_eval_params)
    return Method(steps, transforms.ac_sa_eval_params)


def staged_ac_sa(smoothness: Any, lengths: tuple[int, ...], domain: Domain) -> Method:
    """AC-SA for convex losses in stages, each from the aggregate of the one before, which is reported.

    Args:
        smoothness: Γ of every stage, ``[stages]``.
        lengths: steps of every stage.
        domain: of the parameters.

    Raises:
        ValueError: if an argument is out of its range, or there are not as many numbers as lengths.
    """
    _checks.require_number("smoothness", smoothness, "real numbers")
    _checks.require_instance("domain", domain, Domain)
    each = jnp.asarray(smoothness)
    steps = transforms.restart_stages(
        lambda stage: transforms.ac_sa(each[stage], 0.0, domain),
        lengths,
        transforms.ac_sa_eval_params,
    )
    wanted = (len(lengths),)
    _checks.require(each.shape == wanted, "smoothness", each.shape, f"of shape {wanted}")
    return Method(steps, transforms.ac_sa_eval_params)


def run(
    key: jax.Array,
    mean: Mean,
    method: Method,
    objective: Objective,
    data: Any,
    params: Any,
    num_steps: int | jax.Array,
    gradients: int,
    pull: Pull | None = None,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs a method on a mean.

    Args:
        key: a typed key; samples and shifts have one half of it, noise the other.
        mean: of the users' gradients.
        method: what is done with it.
        objective: static; the domain, and the regularizer whose exact gradient is added.
        data: ``UserData``; or ``StoredUsers``, for ``means.Clipped`` with no shift of a round or item.
        params: the starting point; projected onto the domain.
        num_steps: T, static; or traced where there is no trace.
        gradients: the public number of item gradients of the run.
        pull: a further quadratic term.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Returns:
        The reported point. After a halt the status is HALTED, and the point that of the last step before.
    """
    _checks.require_instance("mean", mean, Mean)
    _checks.require_instance("method", method, Method)
    _checks.require_choice("method.on_halt", method.on_halt, _ON_HALT)
    oracle_key, noise_key = jax.random.split(key)
    project = objective.domain.project
    if isinstance(data, StoredUsers):
        _checks.require_instance("mean", mean, Clipped)
        project = jax.jit(project)  # rounded as in a compiled run
    start = project(params)
    oracle, rows, release, may_halt = mean.open(noise_key, objective, data, start)
    rest = optax.chain(_regularizers(objective, pull, start), method.steps)
    chain = transforms.until_halted(release, rest) if may_halt else optax.chain(release, rest)
    end = loop.run(oracle_key, oracle, chain, start, rows, num_steps, trace)
    reported = method.report(end.opt_state, end.params)
    stopped = transforms.halted(end.opt_state) if may_halt else jnp.zeros([], bool)
    if may_halt and method.on_halt == "start":
        reported = jax.tree.map(lambda a, s: jnp.where(stopped, s, a), reported, start)
    solution = finished(reported, end.opt_state, gradients, end.num_gradients, end.trace)
    halted = stopped & (solution.status == int(Status.OK))
    status = jnp.where(halted, int(Status.HALTED), solution.status).astype(jnp.int32)
    return solution._replace(status=status)


def _regularizers(
    objective: Objective, pull: Pull | None, start: Any
) -> optax.GradientTransformation:
    """Adds the exact gradients of the regularizer and of the further term."""
    if pull is None:
        return optax.stateless(
            lambda g, p: jax.tree.map(jnp.add, g, objective.regularizer_gradient(p))
        )
    centre = start if pull.centre is None else pull.centre

    def regularized(gradient: Any, point: Any) -> Any:
        def add(g: Any, ridge: Any, w: Any, origin: Any) -> Any:
            return g + ridge + (pull.strength * (w - origin)).astype(g.dtype)

        return jax.tree.map(add, gradient, objective.regularizer_gradient(point), point, centre)

    return optax.stateless(regularized)
