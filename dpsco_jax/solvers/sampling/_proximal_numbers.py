"""The numbers of a proximal sampler for linear models: how far its chain goes, and how exactly.

From sizes, constants and k, μ, c, T, N alone follow the step size, the precision of a proposal, the
probability with which one is accepted at least, the gradients that an anchor costs at most, the units of the
grids, and the four parts of the distance of the last point from its ideal law, on every data set of the
planned sizes. docs/theory/proximal_sampler.md derives every line, and names it as the comments here do.
``valid`` is false where a derivation does not apply; nothing is proven then.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax._conditions import positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax._redact import described
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.sampling import _rows
from dpsco_jax.solvers.sampling.chain_lengths import mixing_variation, trials_variation

MOST_PARAMETERS = 2**17
MOST_ROWS = 2**32
TOLERANCE = 0.5  # of an anchor: its distance from the mean of the proposal, over the deviation
LONGEST_OFFSET = 512.0  # of a proposal from the anchor, over the deviation
_UNIT = 2.0**-53
_RELEASED = 32.0  # units of the released point's grid in a deviation of a proposal, at least
_FAR_SHARE = 2.0**-20  # of the mixing part: the probability of leaving ``reach``
_LESS = 1.0 - 2.0**-20
_UP = 1.0 + 2.0**-40


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
    """The setting of an objective and of sizes.

    Raises:
        ValueError: the objective is not a smooth, globally convex and Lipschitz loss of ``problems.losses``
            on vectors with a remainder, on the whole space.
    """
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
    """All numbers of a run; they may be traced.

    Args:
        setting: sizes and constants.
        inverse_temperature: k: the target is exp(-k·(F + (μ/2)‖x - centre‖²)).
        convexity: μ.
        relative_step: c, the step size over 1/(kH).
        num_steps: T.
        num_trials: N.
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
