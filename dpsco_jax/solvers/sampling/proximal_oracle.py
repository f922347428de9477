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
``numbers`` J gradients bring w that near, and the law of a step is off by no more than is stated there.

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

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dpsco_jax import _checks, _float64
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax._redact import described
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _rows
from dpsco_jax.solvers.sampling._precision import require_x64
from dpsco_jax.solvers.sampling.alternating_sampler import Oracle
from dpsco_jax.solvers.sampling.chain_lengths import mixing_variation, trials_variation

__all__ = ["State", "proximal_oracle"]

MOST_PARAMETERS = 2**17
MOST_ROWS = 2**32
TOLERANCE = 0.5  # of an anchor: its distance from the mean of the proposal, over the deviation
LONGEST_OFFSET = 512.0  # of a proposal from the anchor, over the deviation
_UNIT = 2.0**-53
_RELEASED = 32.0  # units of the released point's grid in a deviation of a proposal, at least
_FAR_SHARE = 2.0**-20  # of the mixing part: the probability of leaving ``reach``
_LESS = 1.0 - 2.0**-20
_UP = 1.0 + 2.0**-40
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
    made = numbers(setting, k, mu, c, steps, steps)
    model = model_of(objective)
    remainder = model.remainder
    assert remainder is not None
    rows = _rows.prepare(model, data, setting.dim)
    unit = made.anchor_unit * _rows.feature_unit(setting.feature_bound)
    # However they were rounded, these are margins of the same loss, moved once for all steps.
    center_margins = _rows.on_grid(_rows.margins(rows, center), unit)
    n, slope_unit = setting.num_users, setting.slope_unit
    eta, precision = made.step_size, made.precision
    deviation = 1.0 / jnp.sqrt(precision)

    def on_grid(anchor: Array) -> Array:
        inside = jnp.minimum(1.0, made.reach / jnp.maximum(jnp.linalg.norm(anchor), 1e-300))
        # One rounding for all that is computed from it.
        return jax.lax.optimization_barrier(_rows.on_grid(anchor * inside, made.anchor_unit))

    def at(anchor: Array) -> tuple[Array, Array]:
        """Margins and mean gradient; the margins are exact."""
        found = center_margins + _rows.margins(rows, anchor)
        slopes = rows.weights * model.derivative(found, rows.labels)
        large = _rows.on_grid(slopes, slope_unit)
        parts = _rows.total(rows, jnp.stack([large, slopes - large]), len(anchor))
        return found, (parts[0] + parts[1]) / n

    def towards(anchor: Array, gradient: Array, to_noised: Array) -> Array:
        """From a point to the mean of the proposal with the tangent there; ``to_noised`` leads to y."""
        return (to_noised / eta - made.convexity * anchor - k * gradient) / precision

    def init(point: Array) -> State:
        point = _float64.exact("proximal_oracle", jnp.asarray(point))
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
            return (far | all_gradients) & (count < made.most_gradients)

        def nearer(carry: Any) -> Any:
            (anchor, _, _, move), count = carry
            return prepared(on_grid(anchor + made.damping * move)), count + 1

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
        large = _rows.on_grid(offset, made.offset_unit)
        changes = _rows.margins(rows, large) + _rows.margins(rows, offset - large)
        remainders = remainder(state.margins, rows.labels, changes)
        exponent = _exact_sum((k / n) * (rows.weights * remainders))
        near = jnp.linalg.norm(offset) < LONGEST_OFFSET * deviation
        accepted = near & (jax.random.uniform(uniform_key) < jnp.exp(-exponent))
        return state._replace(offset=offset), accepted

    def point(state: State) -> Array:
        # The last digits of the sum itself would be those of the offset, and tell of the anchor.
        base = _rows.on_grid(state.anchor, made.release_unit)
        rest = (state.anchor - base) + state.offset
        return base + _rows.on_grid(rest, made.release_unit)

    return Oracle(init, diffuse, trial, point)


def _exact_sum(terms: Float[Array, "rows"]) -> Array:
    """The sum of terms that are not negative, to a rounding of the result where it is below 2^10."""
    large = _rows.on_grid(terms, _TERM_UNIT)
    return jnp.sum(large) + jnp.sum(terms - large)


class Setting(NamedTuple):
    """What is fixed: sizes of the data, and proven constants of the loss."""

    num_users: int
    items_per_user: int
    dim: int
    lipschitz: float  # L of the loss
    smoothness: float  # H of the loss
    feature_bound: float  # B; the derivative of the link is at most L/B

    @property
    def num_rows(self) -> int:
        """Rows of all users."""
        return self.num_users * self.items_per_user

    @property
    def slope_unit(self) -> float:
        """The grid of the coefficients of rows."""
        return _rows.slope_unit(self.lipschitz / self.feature_bound, self.num_rows)


def sized(objective: Objective, num_users: int, items_per_user: int, dim: int) -> Setting:
    """The setting of sizes and of a smooth, proven loss on vectors with a remainder, on the whole space."""
    _checks.require_instance("objective", objective, Objective)
    _rows.require_everywhere(objective)
    _rows.require_whole_space(objective)
    _checks.require(
        objective.smoothness is not None, "objective.smoothness", None, "a number: a smooth loss"
    )
    model = model_of(objective)
    return Setting(
        num_users=num_users,
        items_per_user=items_per_user,
        dim=dim,
        lipschitz=float(objective.lipschitz),
        smoothness=float(objective.smoothness or math.nan),
        feature_bound=float(model.feature_bound),
    )


def model_of(objective: Objective) -> LinearModel:
    """The linear model; ``ValueError`` unless there is one, on vectors and with a remainder."""
    model = objective.vector_model
    if model is None or model.remainder is None:
        raise ValueError(
            "objective must be a linear model on vectors that has a remainder, as problems.losses.logistic "
            f"and huber, got {objective.loss!r}"
        )
    return model


def setting_of(objective: Objective, data: UserData, center: Any) -> Setting:
    """The setting of an objective and data that are given."""
    _checks.require_instance("data", data, UserData)
    users, slots = jax.tree.leaves(data.items)[0].shape[:2]
    wide = getattr(center, "dtype", None) == jnp.float64 and jnp.ndim(center) == 1
    _checks.require(wide, "center", described(center), "a float64 array [dim]")
    return sized(objective, users, slots, center.shape[0])


class Variation(NamedTuple):
    """The parts of τ: their sum bounds the distance in total variation from the ideal law."""

    mixing: Any  # of the chain whose steps are exact
    capped: Any  # the probability that the trials run out
    far: Any  # the probability that the chain goes where anchors are cut short
    rounding: Any  # of all steps

    @property
    def total(self) -> Any:
        """τ, rounded up."""
        return (self.mixing + self.capped + self.far + self.rounding) * _UP


class Numbers(NamedTuple):
    """What a run needs beside the arguments."""

    convexity: Any  # m = kμ, of the target
    step_size: Any  # η = c/(kH)
    precision: Any  # P = m + 1/η, of a proposal
    damping: Any  # P/(P + kH/2), of a gradient step towards an anchor
    most_gradients: Any  # J, of an anchor
    acceptance: Any  # p, at least, of a trial
    anchor_unit: Any  # the grid of anchors
    offset_unit: Any  # the grid of the large part of offsets
    release_unit: Any  # the grid of the point that leaves
    reach: Any  # R, how far from the centre anchors may be
    variation: Variation
    valid: Any  # whether all of this is proven


def numbers(
    setting: Setting,
    inverse_temperature: Any,
    convexity: Any,
    relative_step: Any,
    num_steps: Any,
    num_trials: Any,
) -> Numbers:
    """All numbers of a run of k, μ, c, T and N, on every data set of these sizes; they may be traced.

    docs/theory/proximal_sampler.md derives every line, and names it as the comments here do.
    """
    xp, (k, mu, c, steps, trials) = as_floats(
        inverse_temperature, convexity, relative_step, num_steps, num_trials
    )
    slope, bend, dim = setting.lipschitz, setting.smoothness, setting.dim
    valid = positive_and_finite(k, mu, c) & (steps >= 1) & (trials >= steps) & (trials < 2.0**31)
    valid = valid & (steps == xp.floor(steps)) & (trials == xp.floor(trials))
    k, mu, c = (xp.where(valid, value, 1.0) for value in (k, mu, c))
    steps, trials = xp.where(valid, steps, 1.0), xp.where(valid, trials, 1.0)

    m, eta = k * mu, c / (k * bend)
    precision = m + 1.0 / eta
    deviation = 1.0 / xp.sqrt(precision)
    # (1) mixing: Wasserstein distance of the centre, where the chain starts, from the target.
    start = slope / mu + xp.sqrt(dim / m)
    mixing = mixing_variation(steps, eta, m, start)

    # (2) anchors: gradient steps with contraction ρ = c/(2 + c) from a distance of 2kL/P, on a grid whose
    # rounding adds √(1 + ηm)/64 to what is tested.
    width = xp.sqrt(eta / dim) / (16.0 * (1.0 + c) * (2.0 + c))
    anchor_unit = _rows.power_below(width)
    floor = xp.sqrt(1.0 + eta * m) / 32.0
    kappa = k * slope * deviation
    close = (TOLERANCE * _LESS - floor) / (1.0 + c)
    anchored = close > 0
    ratio = xp.maximum(2.0 * kappa / xp.where(anchored, close, 1.0), 1.0)
    most_gradients = 2.0 + xp.ceil(xp.log(ratio) / xp.log1p(2.0 / c))

    # (3) trials: Jensen's inequality, with the second moments of a proposal along a row.
    acceptance = xp.exp(-0.5 * c * (1.0 + TOLERANCE**2)) * _LESS
    capped = trials_variation(steps, trials, acceptance)

    # (4) how far the chain goes: 2T deviations of Gaussian tails.
    far = _FAR_SHARE * mixing
    tail = xp.sqrt(2.0 * xp.log(2.0 * steps / xp.maximum(far, 1e-300)))
    spread = math.sqrt(dim) + tail
    shrunk = eta * m
    reach = slope / mu + spread * xp.sqrt(eta) * (1.0 + xp.sqrt(1.0 + shrunk)) / shrunk
    reach = (reach + 2.0 * deviation) * _UP
    # Margins of anchors are exact up to 2^53 units; half of them are left for those of the centre.
    units = (
        setting.feature_bound * reach / (_rows.feature_unit(setting.feature_bound) * anchor_unit)
    )
    fits = units <= 2.0 ** (_rows.SIGNIFICAND_BITS - 1)

    # (5) rounding of a step.
    rho = m * reach * deviation
    log_rows = math.ceil(math.log2(setting.num_rows))
    summed = setting.items_per_user * 2.0 ** (2 * log_rows - 33)
    tilt = (13.0 + 0.5 * summed) * kappa + 5.0 * rho + 4.0 + math.sqrt(dim)
    tested = 32.0 + 2.0 * c + 6.5 * c * math.sqrt(dim + 1.0) + c * dim**2 * 2.0**-22
    tested += 2.0 ** (2 * log_rows - 44)
    # (6) the last point, which is rounded to a grid of its own: it may fall on another place of it.
    release_unit = _rows.power_below(xp.maximum(deviation / _RELEASED, anchor_unit))
    released = (8.0 * dim + 2.0 * math.sqrt(dim)) * deviation / (release_unit * acceptance)
    rounding = _UNIT * (steps * (tilt + tested / acceptance) + released)

    valid = valid & anchored & fits & (dim <= MOST_PARAMETERS) & (log_rows <= 32)
    return Numbers(
        convexity=m,
        step_size=eta,
        precision=precision,
        damping=precision / (precision + 0.5 * k * bend),
        most_gradients=most_gradients,
        acceptance=acceptance,
        anchor_unit=anchor_unit,
        offset_unit=_rows.power_below(deviation * 2.0**-22),
        release_unit=release_unit,
        reach=reach,
        variation=Variation(mixing, capped, far, rounding),
        valid=valid,
    )
