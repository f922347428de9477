"""What private one-pass solvers share: roundings of float64, the loop over phases, and the release.

A pass over users in float64, of n steps none of which brings two points farther apart, is computed with an
error in each step. ``rounding`` allows for it: a gradient is computed up to 2^-40 of its clip, of several
items, which may cancel, up to (dim + 16)·2^-51 of the Lipschitz constant besides, and a point up to (dim +
16)·2^-50 of its norm, for each of the two runs. This is an allowance, not a proof; of 10^6 steps in 64
dimensions it is 10^-7 of a point.

Privacy rests on losses and domains of this package: convex and smooth by construction, projections that
expand nothing (a ball, a box, a simplex, all of space; an l1 ball too).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _counts, _float64, transforms
from dpsco_jax._numerics import as_floats
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _planning, _sequence
from dpsco_jax.solvers.solution import Solution

_GRADIENT_ROUNDING = 2.0**-40
_ITEM_ROUNDING = 2.0**-51
_STEP_ROUNDING = 2.0**-50

ASSUMES = (
    "roundings of float64 in a step are below 2^-40 of the clip, (dim + 16)·2^-50 of the point and, of"
    " several items, (dim + 16)·2^-51 of the loss's Lipschitz constant"
)


def in_float64(name: str, params: Any) -> Any:
    """The leaves in float64, and not on a TPU; ``ValueError`` unless float64 is switched on."""
    _float64.require_x64(name)
    return _float64.exact(name, jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params))


def gradient_rounding(dim: int, longest: Any, steepest: float = 0.0) -> Any:
    """How far a computed gradient is from the true one, of which both are cut to a length.

    Args:
        dim: number of parameters.
        longest: bound on a gradient after its clip.
        steepest: of the gradients of items whose mean is clipped; 0 of a single item, of which only the
            clipped part is rounded.
    """
    return _GRADIENT_ROUNDING * longest + (dim + 16) * _ITEM_ROUNDING * steepest


def rounding(
    dim: int,
    count: Any,
    step_size: Any,
    longest: Any,
    diameter: float,
    norm: float = 0.0,
    steepest: float = 0.0,
) -> Any:
    """How far rounding puts the averages of two runs apart, of passes that start at the origin.

    Args:
        dim: number of parameters.
        count: steps of a pass.
        step_size: η.
        longest: bound on a gradient after its clip.
        diameter: of the domain; ``inf`` for none.
        norm: of a start that is not the origin.
        steepest: as of ``gradient_rounding``.
    """
    xp, (n, step, most) = as_floats(count, step_size, longest)
    reach = xp.minimum(n * step * most, diameter) + norm
    each = step * gradient_rounding(dim, most, steepest) + (dim + 16) * _STEP_ROUNDING * reach
    return 2.0 * n * each


def start_rounding(dim: int, count: Any, start: Any) -> Any:
    """What a start adds to it: its points are rounded at the size of its norm."""
    return 2.0 * count * (dim + 16) * _STEP_ROUNDING * global_norm(start)


def run_phases(
    name: str,
    key: jax.Array,
    phases: Sequence[Any],
    phase_solver: Callable[..., Solution],
    objective: Objective,
    data: UserData,
    params: Any,
) -> Solution:
    """Phases in order, in float64, each on the next users: turns of one program where they can be.

    Args:
        name: of the solver.
        key: of the run.
        phases: with ``num_users`` each.
        phase_solver: ``phase_solver(key, phase, objective, data, first, start)``, of the users from a
            position ``first`` on.
        objective: of all phases.
        data: of all users.
        params: the start, whose dtypes the result has.
    """

    def gradients(phase: Any, block: UserData) -> Any:
        return phase.num_users * jax.tree.leaves(block.items)[0].shape[1]

    def alone(key: Any, phase: Any, objective: Any, block: Any, start: Any) -> Solution:
        done = phase_solver(key, phase, objective, block, 0, start)
        return done._replace(gradients=_counts.count(gradients(phase, block)))

    turns = _sequence.Turns(
        lowered=lambda phase: phase,
        prepared=lambda phase, objective, data, params: jax.tree.map(jnp.asarray, data),
        solver=phase_solver,
        gradients=gradients,
        check=lambda *given: None,
    )
    done = _sequence.run(key, phases, alone, objective, data, in_float64(name, params), turns=turns)
    point = jax.tree.map(lambda x, p: x.astype(p.dtype), done.params, params)
    return done._replace(params=point)


def release(
    key: jax.Array, sensitivity: Any, noise_multiplier: Any, start: Any, average: Any
) -> tuple[Any, Any]:
    """The average with its noise, not projected, and the state that holds the ledger."""
    statistic = transforms.Aggregate(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (updates, state),
        sensitivity,
        _planning.REPLACE_ONE,
    )
    chain = transforms.privatize(statistic, key, noise_multiplier)
    moved = jax.tree.map(jnp.subtract, average, start)
    noised, state = chain.update(moved, chain.init(moved))
    return jax.tree.map(jnp.add, start, noised), state
