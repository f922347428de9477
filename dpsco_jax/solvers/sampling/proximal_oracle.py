"""The step of the proximal sampler for smooth linear models: exact, at a step size free of n and d.

What it computes: draws from exp(-k·F(x) - (m/2)‖x - c‖² - ‖x - y‖²/(2η)), F the mean user loss of a linear
model, whole space. A point w, the anchor, is brought near the minimizer by gradient steps; a proposal comes
from the Gaussian that has the tangent of F at w in place of F, and is accepted with probability

    exp(-k·(F(x) - F(w) - ⟨∇F(w), x - w⟩)).

This is exact for convex F and any w. Points are kept as the anchor and an offset from it, and anchors and
rows on grids of powers of two, on which margins and the leading parts of all sums are exact.

Source: the rejection is T, Proposition 4.4.8, there for the regularizer, here for the loss itself; step size,
acceptance and rounding are derived in docs/theory/proximal_sampler.md.

Formal guarantee: for a loss that is H-smooth, η = c/(kH) and ‖q - w‖·√P ≤ ½, q the mean of the proposal and P
= m + 1/η its precision, a trial succeeds with probability at least exp(-⅝·c), whatever n, d and the data. By
``_proximal_numbers`` J gradients bring w that near, and the law of a step is off by no more than is stated
there.

Cost: at most J gradients for a step, fewer where w is near before (a fact about the data), one pass over the
rows for a trial. Memory of the rows in float64 and some vectors of their number.

Example:
    >>> import jax, jax.numpy as jnp
    >>> from dpsco_jax.problems import synthetic
    >>> from dpsco_jax.solvers.sampling import alternating_sampler
    >>> from dpsco_jax.solvers.sampling.proximal_oracle import proximal_oracle
    >>> with jax.enable_x64(True):
    ...     made = synthetic.logistic_regression(jax.random.key(0), num_users=50, items_per_user=1, dim=2)
    ...     oracle = proximal_oracle(
    ...         *(made.objective, made.data, jnp.zeros(2)),
    ...         inverse_temperature=100.0, convexity=0.1, num_steps=20
    ...     )
    ...     draw = alternating_sampler.run(
    ...         jax.random.key(1), oracle, jnp.zeros(2), num_steps=20, num_trials=200
    ...     )
    >>> draw.params.shape, draw.params.dtype, int(draw.num_accepted)
    ((2,), dtype('float64'), 20)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dpsco_jax import _checks
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _rows
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling._proximal_numbers import (
    LONGEST_OFFSET,
    TOLERANCE,
    model_of,
    setting_of,
)
from dpsco_jax.solvers.sampling._proximal_numbers import numbers as numbers_of
from dpsco_jax.solvers.sampling.alternating_sampler import Oracle

__all__ = ["State", "proximal_oracle"]

# Of a row in the test: sums below 2^10, where anything is accepted at all, are exact.
_TERM_UNIT = 2.0**-43


class State(NamedTuple):
    """A point as anchor and offset, both relative to the centre, and what is prepared at the anchor.

    Attributes:
        anchor: w, on the grid, ``[dim]``.
        offset: x - w, ``[dim]``.
        margins: of the rows at w, ``[rows]``.
        gradient: of the mean loss at w, ``[dim]``.
        move: q - w, from the anchor to the mean of the proposal, ``[dim]``.
        evaluations: gradients so far, a fact about the data.
    """

    anchor: Float[Array, "dim"]
    offset: Float[Array, "dim"]
    margins: Float[Array, "rows"]
    gradient: Float[Array, "dim"]
    move: Float[Array, "dim"]
    evaluations: Int[Array, ""]


def proximal_oracle(
    objective: Objective,
    data: UserData,
    center: Float[Array, "dim"],
    *,
    inverse_temperature: Any,
    convexity: Any,
    relative_step: Any = 3.0,
    num_steps: Any,
    all_gradients: bool = False,
) -> Oracle:
    """The oracle of ``alternating_sampler.run`` for exp(-k·(F(x) + (μ/2)‖x - centre‖²)).

    Args:
        objective: a smooth loss of ``problems.losses`` on vectors that has a ``LinearModel.remainder``: the
            logistic or Huber's. Its ridge counts as part of μ, and of the centre.
        data: of n users.
        center: ``[dim]``, float64. Points of the chain are relative to it: a chain from the centre starts at
            zeros, and ``center + draw.params`` is its end.
        inverse_temperature: k > 0; may be traced, as the other numbers.
        convexity: μ > 0.
        relative_step: c > 0, the step size over 1/(kH).
        num_steps: T of the chain, from which follows how far anchors have to go.
        all_gradients: static; whether J gradients are always taken.

    Raises:
        ValueError: an argument is of another kind or out of its range, or ``jax_enable_x64`` is off.
    """
    require_x64("proximal_oracle")
    setting = setting_of(objective, data, center)
    _checks.require_positive("inverse_temperature", inverse_temperature)
    _checks.require_positive("convexity", convexity)
    _checks.require_positive("relative_step", relative_step)
    _checks.require_whole("num_steps", num_steps, 1)
    all_gradients = _checks.require_flag("all_gradients", all_gradients)
    # Numbers that are narrower are those that run, and are reckoned with in float64.
    k, mu, c, steps = (
        jnp.asarray(number, jnp.float64)
        for number in (inverse_temperature, convexity, relative_step, num_steps)
    )
    numbers = numbers_of(setting, k, mu, c, steps, steps)
    model = model_of(objective)
    remainder = model.remainder
    assert remainder is not None
    rows = _rows.prepare(model, data, setting.dim)
    unit = numbers.anchor_unit * _rows.feature_unit(setting.feature_bound)
    # However they were rounded, these are margins of the same loss, moved once for all steps.
    center_margins = _rows.on_grid(_rows.margins(rows, center), unit)
    n, slope_unit = setting.num_users, setting.slope_unit
    eta, precision = numbers.step_size, numbers.precision
    deviation = 1.0 / jnp.sqrt(precision)

    def on_grid(anchor: Array) -> Array:
        inside = jnp.minimum(1.0, numbers.reach / jnp.maximum(jnp.linalg.norm(anchor), 1e-300))
        # One rounding for all that is computed from it.
        return jax.lax.optimization_barrier(_rows.on_grid(anchor * inside, numbers.anchor_unit))

    def at(anchor: Array) -> tuple[Array, Array]:
        """Margins and mean gradient; the margins are exact."""
        found = center_margins + _rows.margins(rows, anchor)
        slopes = rows.weights * model.derivative(found, rows.labels)
        large = _rows.on_grid(slopes, slope_unit)
        parts = _rows.total(rows, jnp.stack([large, slopes - large]), len(anchor))
        return found, (parts[0] + parts[1]) / n

    def towards(anchor: Array, gradient: Array, to_noised: Array) -> Array:
        """From a point to the mean of the proposal with the tangent there; ``to_noised`` leads to y."""
        return (to_noised / eta - numbers.convexity * anchor - k * gradient) / precision

    def init(point: Array) -> State:
        anchor = on_grid(point)
        none = jnp.zeros_like(rows.labels)
        zero = jnp.zeros_like(point)
        return State(anchor, point - anchor, none, zero, zero, jnp.zeros((), jnp.int32))

    def diffuse(key: Array, state: State) -> State:
        to_noised = state.offset + jnp.sqrt(eta) * jax.random.normal(key, state.anchor.shape)
        first = on_grid(state.anchor + towards(state.anchor, state.gradient, to_noised))

        def prepared(anchor: Array) -> tuple[Array, Array, Array, Array]:
            found, gradient = at(anchor)
            # Anchors are on the grid: their difference is exact.
            left = to_noised - (anchor - state.anchor)
            return anchor, found, gradient, towards(anchor, gradient, left)

        def away(carry: Any) -> Array:
            (_, _, _, move), count = carry
            far = jnp.linalg.norm(move) > TOLERANCE * deviation
            return (far | all_gradients) & (count < numbers.most_gradients)

        def nearer(carry: Any) -> Any:
            (anchor, _, _, move), count = carry
            return prepared(on_grid(anchor + numbers.damping * move)), count + 1

        one = jnp.ones((), jnp.int32)
        (anchor, found, gradient, move), count = jax.lax.while_loop(
            away, nearer, (prepared(first), one)
        )
        offset = state.offset - (anchor - state.anchor)
        return State(anchor, offset, found, gradient, move, state.evaluations + count)

    def trial(key: Array, state: State) -> tuple[State, Array]:
        normal_key, uniform_key = jax.random.split(key)
        step = deviation * jax.random.normal(normal_key, state.anchor.shape)
        offset = state.move + step
        large = _rows.on_grid(offset, numbers.offset_unit)
        changes = _rows.margins(rows, large) + _rows.margins(rows, offset - large)
        remainders = remainder(state.margins, rows.labels, changes)
        exponent = _exact_sum((k / n) * (rows.weights * remainders))
        near = jnp.linalg.norm(offset) < LONGEST_OFFSET * deviation
        accepted = near & (jax.random.uniform(uniform_key) < jnp.exp(-exponent))
        return state._replace(offset=offset), accepted

    def point(state: State) -> Array:
        # The last digits of the sum itself would be those of the offset, and tell of the anchor.
        base = _rows.on_grid(state.anchor, numbers.release_unit)
        rest = (state.anchor - base) + state.offset
        return base + _rows.on_grid(rest, numbers.release_unit)

    return Oracle(init, diffuse, trial, point)


def _exact_sum(terms: Float[Array, "rows"]) -> Array:
    """The sum of terms that are not negative, to a rounding of the result where it is below 2^10."""
    large = _rows.on_grid(terms, _TERM_UNIT)
    return jnp.sum(large) + jnp.sum(terms - large)
