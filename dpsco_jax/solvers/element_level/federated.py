"""Element-level private federated learning: clients flip coins for their elements, a server adds the noise.

What it computes: in each round the server broadcasts w; every client flips a coin for each of its elements
and, for each that takes part, makes E steps of gradient descent on that element's mean loss from w; what they
have moved, (w - w_E)/(η_l·E), the mean of the gradients on the way, is clipped. Clients send the sum of
their updates; the server adds these up, divides by q·num_users, adds noise, and hands the result as a
gradient to any optax optimizer.

Source: E sections 4.3 and 4.4; McMahan et al. 2017 and Reddi et al. 2021 for several local steps and the
server's optimizer.

Formal guarantee: that of ``sgd`` with the same sizes and noise. An update is a function of the items of its
element and of w, and is clipped, whatever the number of steps; all that the server does with the noised sum
is post-processing. Who took part is secret: clients must not show their coins, and the server sees sums only
(secure aggregation), or is trusted. With one local step and the default server this is ``sgd`` on all of
space with its last point.

Cost: num_steps·batch_size·elements_per_user·local_steps unit gradients; memory of one chunk of units.

Example:
    >>> import jax, optax
    >>> from dpsco_jax import Budget, Problem
    >>> from dpsco_jax.problems import losses
    >>> from dpsco_jax.problems.elements import ElementData
    >>> from dpsco_jax.problems.objective import Example
    >>> from dpsco_jax.solvers.element_level import federated
    >>> x, y = jax.random.normal(jax.random.key(0), (50, 4, 2, 3)), jax.numpy.ones((50, 4, 2))
    >>> objective, data = losses.logistic(1.0), ElementData(Example(x, y))
    >>> problem = Problem(objective, num_users=50, dim=3, items_per_user=8)
    >>> sizes = {"num_steps": 5, "elements_per_user": 4, "batch_size": 10, "local_steps": 3}
    >>> plan = federated.plan(problem, Budget(2.0, 1e-3), local_step_size=0.5, step_size=0.1, **sizes)
    >>> arguments = (jax.random.key(1), plan, objective, data, jax.numpy.zeros(3))
    >>> federated.solve(*arguments, server=optax.adam(0.1)).params.shape
    (3,)
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks, _sharding, privacy
from dpsco_jax._argument_kinds import Count, Positive
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _arguments, _plan_base, _planning, first_order, methods
from dpsco_jax.solvers.element_level import _unit_updates, sgd
from dpsco_jax.solvers.element_level.sgd import Plan
from dpsco_jax.solvers.solution import Solution

__all__ = ["Plan", "plan", "solve"]


@pytree
class LocalUpdates(_unit_updates.UnitUpdates):
    """The mean of what clients have moved: (w - w_E)/(η_l·E) after E projected steps on a unit's mean loss.

    Attributes:
        local_steps: E.
        local_step_size: η_l.
    """

    local_steps: int = static()
    local_step_size: Number

    @property
    def passes(self) -> int:
        """Gradients of a unit that its update takes: E."""
        return self.local_steps

    def update(self, objective: Objective, start: Any, method: Any) -> _unit_updates.Update:
        """The local steps of a unit, whatever the server's method; zero for a unit without items."""
        del method
        local_steps, local_step_size = self.local_steps, self.local_step_size
        one_step = _unit_updates.gradient_mapping(objective, lambda step: local_step_size)
        if _unit_updates.is_whole_space(objective.domain, start):
            one_step = _unit_updates.gradient_update(objective)

        def local(step: Any, params: Any, items: Any, mask: Any) -> Any:
            def descend(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                point, total = carry
                made = one_step(step, point, items, mask)
                moved = jax.tree.map(
                    lambda w, g: w - (local_step_size * g).astype(w.dtype), point, made
                )
                return moved, jax.tree.map(jnp.add, total, made)

            first = params, jax.tree.map(jnp.zeros_like, params)
            total = jax.lax.fori_loop(0, local_steps, descend, first)[1]
            return jax.tree.map(lambda x: x / local_steps, total)

        return local


@_plan_base.remembers(least_users=1)
def plan(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    elements_per_user: Count,
    local_step_size: Positive,
    step_size: Positive,
    local_steps: Count = 1,
    batch_size: int | None = None,
    sampling: str = "element",
    relation: str = "replace",
    cap: float = math.inf,
    clip_norm: Positive | None = None,
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
) -> Plan:
    """Checks all arguments and calibrates the noise. All of them are public.

    Args:
        problem: for the Lipschitz constant, n and the number of parameters.
        budget: (ε, δ) of the run for one element, δ > 0.
        num_steps: T ≥ 1, rounds.
        elements_per_user: K ≥ 1, slots of a client in the data.
        local_step_size: η_l, of the clients.
        step_size: of the server, where ``solve`` is given no optimizer.
        local_steps: E ≥ 1.
        batch_size: q·n in [1, n]: every unit, or client, is drawn with probability batch_size/n, or
            batch_size·K units are; to be left out for ``"full"`` only.
        sampling: ``"element"``, ``"user"``, ``"fixed"`` (units, without replacement) or ``"full"``.
        relation: ``"replace"``, or ``"zero_out"``, which halves the sensitivity and for which nothing is
            proven under ``"fixed"`` or ``"user"``.
        cap: bound on a client's summed update in clip norms, in [1, ∞]; for sampled clients only.
        clip_norm: of an element's update; the objective's Lipschitz constant, which no mean of its gradients
            exceeds, if left out.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: units whose updates are held at once.

    Raises:
        ValueError: an argument is out of range, or nothing is proven of the sampling under the relation.
    """
    base = sgd.plan(
        problem,
        budget,
        num_steps=num_steps,
        elements_per_user=elements_per_user,
        batch_size=batch_size,
        sampling=sampling,
        relation=relation,
        cap=cap,
        clip_norm=clip_norm,
        step_size=step_size,
        accountant=accountant,
        chunk_size=chunk_size,
    )
    of = base.mean
    local = LocalUpdates(of.chunk_size, of.releases, of.clip_norm, local_steps, local_step_size)
    return dataclasses.replace(
        base,
        title="element-level private federated learning",
        mean=local,
        method=methods.ProjectedSgd(step_size, "last"),
    )


@_sharding.solver
def solve(
    key: jax.Array,
    plan: Plan,
    objective: Objective,
    data: ElementData | UserData,
    params: Any,
    server: optax.GradientTransformation | None = None,
    trace: Callable[[Any, Any, Any], Any] | None = None,
) -> Solution:
    """Runs the plan. Pure JAX: jit and map over key, the plan's numbers, data and params.

    Args:
        key: a typed key.
        plan: of ``plan``.
        objective: static; close over it when compiling. Its loss is that of an item.
        data: as for ``sgd.solve``.
        params: the starting point; projected onto the domain.
        server: takes the private mean update as a gradient; steps of ``plan.step_size`` if left out. Every
            new point is projected onto the domain.
        trace: see ``loop.run``; its output goes to ``unprivate["trace"]``.

    Raises:
        ValueError: if the number of users, slots or parameters is not the planned one, or ``server`` is no
            optax transformation.
    """
    _arguments.require_plan(Plan, plan)
    if server is not None:
        _checks.require_instance("server", server, optax.GradientTransformation)
        plan = dataclasses.replace(plan, method=methods.Optax(server))
    return first_order.solve(key, plan, objective, data, params, trace)
