"""Regularization: a convex problem by a solver for strongly convex ones.

What it computes: runs the inner solver on the objective plus (u/2)·‖w - center‖², where the centre is the
starting point.

Source: T, Lemma 1.4.10, for empirical and for population risk. With this correction: the term is centred at
the start; the printed u·‖w‖² proves what it should only if the origin is near the domain.

Formal guarantee: privacy is the inner solver's. Utility, for R ≥ ‖w_0 - w*‖, with E the inner bound for the
sum H of objective and term:

    F(w) - F(w*) ≤ E + uR²/2,    since F(w) ≤ H(w) ≤ H(w*) + E = F(w*) + (u/2)‖w* - w_0‖² + E.

Cost: that of the inner solver.
"""

import math
from collections.abc import Callable
from typing import Any

from dpsco_jax import _checks
from dpsco_jax.problems.objective import Objective
from dpsco_jax.solvers.combinators.composite import Plan, farthest

_ROUNDS = 2


def plan(
    inner: Callable[..., Any],
    objective: Objective,
    *,
    num_users: int,
    epsilon: float,
    delta: float,
    initial_distance: float | None = None,
    regularization: float | None = None,
) -> Plan:
    """Checks all arguments and plans the inner solver. All of them are public.

    Args:
        inner: ``plan`` of a solver for strongly convex problems; see ``composite``.
        objective: for its constants and domain.
        num_users: N ≥ 2.
        epsilon: budget, in (0, inf).
        delta: budget, in (0, 1).
        initial_distance: R, bound on the distance from the start to a minimizer; the diameter of the domain
            if left out.
        regularization: u > 0; if left out, what balances uR²/2 with an inner bound of the form κ·G²/u, for
            κ as found.

    Raises:
        ValueError: an argument is out of range or R is not finite.
    """
    _checks.require_count("num_users", num_users)
    _checks.require_instance("objective", objective, Objective)
    _checks.require_callable("inner", inner)
    if initial_distance is None:
        initial_distance = farthest(objective)
    distance = _checks.require_real("initial_distance", initial_distance, 0)
    lipschitz = float(objective.lipschitz)

    def under(strength: float) -> Plan:
        reach = min(distance, farthest(objective, strength))
        part = inner(
            objective,
            num_users=num_users,
            epsilon=epsilon,
            delta=delta,
            initial_distance=reach,
            regularization=strength,
        )
        return Plan(
            title="regularization",
            num_users=num_users,
            on_blocks=False,
            composition="sequential",
            remarks=(),
            premises=(),
            initial_distance=distance,
            parts=(part,),
            distances=(reach,),
            strengths=(strength,),
            center_shares=(1.0,),
            epsilon=float(epsilon),
            delta=float(delta),
            excess_bound=part.excess_bound + strength * distance**2 / 2,
        )

    if regularization is not None:
        return under(_checks.require_real("regularization", regularization, 0))
    strength = lipschitz / distance / math.sqrt(num_users)
    best = under(strength)
    for _ in range(_ROUNDS):
        error = best.parts[0].excess_bound
        if not math.isfinite(error):
            break
        strength = math.sqrt(2 * error * strength) / distance
        best = min(best, under(strength), key=lambda found: found.excess_bound)
    return best
