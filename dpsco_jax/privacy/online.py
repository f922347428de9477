"""What a lazy sequence of draws costs: L2P, which keeps its point until a coin says that it is drawn anew.

What it computes: over batches s = 1, ..., n of B rounds each, x_1 is drawn from a law that no data enter.
Then x_s is x_{s-1} with the probability (1 - p)·r, and otherwise a fresh draw from ν_s, which has seen the
batches before s; r is a function of x_{s-1} and of the losses in batch s - 1 alone. ``LazyReleases`` are the
numbers of such a run, with its loss on the grid of orders and its certificate at the best real order.

- ``reference="none"``: r = exp(-Σ c_i), with the c_i = β·loss_i(x_{s-1}) clipped into [0, κ].
- ``reference="lagged"`` (thesis, Algorithm 44): r = exp(-Σ c_i - E), with the c_i = β(loss_i(x_{s-1}) -
  loss_i(y_{s-1})) clipped into [-κ, κ] and an envelope E ≥ B·κ; y_s is y_{s-1}, or a fresh draw from ν_s with
  the probability p_y.

Source: thesis, Theorem 13.3.2, whose own account is kept for comparison in ``l2p_epsilon_thesis``; the one
here is ours, with its proof in docs/theory/online.md. Corrections C13-3, C13-5 and C13-6.

Formal guarantee: under REPLACE_ONE of the losses of one round, for all x_s, y_s and coins together, against
losses that may depend on what was played before. With ρ such that a fresh draw is ρ-zCDP, u = κ or 2κ, a the
largest and q one minus the least probability of keeping a point,

    rdp(α) ≤ D_α(Ber(a), Ber(a·e^-u)) + α·ρ + (n - 2)·g(q) + (n - 1)·g(p_y),
    g(q) = log(1 - q + q·e^(α(α-1)ρ)) / (α - 1),

D_α the larger of both directions. Assumed: draws are exact, or within ``variation`` of exact ones.

Cost: a few operations at each order.

Example:
    >>> from dpsco_jax.privacy.online import LazyReleases
    >>> run = LazyReleases(
    ...     num_batches=10_000, batch_size=1, reference="none", clip=0.0288, envelope=0.0,
    ...     redraw_probability=0.0172, reference_probability=0.0, draw_zcdp=0.5 * 0.0288**2, delta=1e-6,
    ... )
    >>> run.certificate().epsilon < 4.0
    True
"""

import math
from typing import Annotated, Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks
from dpsco_jax._argument_kinds import Count, Inside, Positive, checked, real
from dpsco_jax._numerics import as_floats, round_up
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.privacy.certificates import Certificate, accounted_by
from dpsco_jax.privacy.loss import PrivacyLoss, epsilon, unbounded_unless
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.variation import with_variation

__all__ = ["LazyReleases", "l2p_epsilon_thesis"]

_ROUNDING_ULPS = 16.0
_EXPONENT_ROUNDING = 2.0**-22
# Orders less one, of the first look; each further one is as fine between two neighbours of the best.
_EXCESS = np.geomspace(1e-3, 1e9, 241)
_LOOKS = 3
_LARGE = 80.0  # whose exponential is a float32


def _divergence(
    orders: Any,
    num_batches: int,
    shift: Any,
    slack: Any,
    span: Any,
    redraw_probability: Any,
    reference_probability: Any,
    draw_zcdp: Any,
) -> Any:
    """The Rényi divergence of all that a lazy sequence of draws has, in closed form, rounded up.

    Args:
        orders: α > 1, of shape ``[orders]``, or ``[..., orders]``.
        num_batches: n, at least 1; all numbers after it are of shape ``[...]``.
        shift: u, how far a replaced loss moves the logarithm of r.
        slack: least value of -log r, at least 0.
        span: largest value of -log r.
        redraw_probability: p in (0, 1].
        reference_probability: p_y in [0, 1]; 0 if there is no y.
        draw_zcdp: ρ of a fresh draw, at least 0.

    Returns:
        The divergences, of shape ``[..., orders]``.
    """
    numbers = (shift, slack, span, redraw_probability, reference_probability, draw_zcdp)
    xp, (u, low, high, p, p_y, rho) = as_floats(*numbers)
    u, low, high, p, p_y, rho = (x[..., None] for x in (u, low, high, p, p_y, rho))
    alpha = xp.asarray(orders, u.dtype)
    above = xp.asarray(np.asarray(orders, np.float64) - 1.0, u.dtype)
    eps = float(xp.finfo(u.dtype).eps)

    # Nothing of this cancels: at p = 0.003 and η = 0.002 both coins are the same to three digits.
    kept = (1.0 - p) * xp.exp(-low)
    gone = p - (1.0 - p) * xp.expm1(-low)
    moved = -kept * xp.expm1(-u)
    log_kept, log_gone = _log(xp, kept), _log(xp, gone)
    ratio = xp.log1p(moved / gone)  # of the probabilities of a fresh draw
    first = xp.logaddexp(log_kept + above * u, log_gone - above * ratio)
    second = xp.logaddexp(log_kept - u - above * u, log_gone + ratio + above * ratio)
    size = 1.0 + above * (u + ratio)
    coin = (xp.maximum(xp.maximum(first, second), 0.0) + 8.0 * eps * size) / above
    coin = xp.where((kept == 0) | (u == 0), 0.0, xp.minimum(coin, xp.maximum(u, ratio)))

    def fresh(chance: Any) -> Any:
        """g: of a draw that is made with this chance, which is seen."""
        power = alpha * above * rho
        near = xp.log1p(chance * xp.expm1(xp.minimum(power, _LARGE)))
        far = xp.logaddexp(_log(xp, 1.0 - chance), _log(xp, chance) + power)
        # A rounding of the power is one of its exponential, relative to it; many batches add nothing to that.
        return xp.where(power < _LARGE, near, far) * (1.0 + 4.0 * eps * (1.0 + power)) / above

    redrawn = p - (1.0 - p) * xp.expm1(-high)
    total = coin + alpha * rho + max(num_batches - 2, 0) * fresh(redrawn)
    # A product with zero would be NaN where the other factor is infinite.
    total = total + xp.where(p_y > 0, (num_batches - 1) * fresh(p_y), 0.0)
    return round_up(total if num_batches > 1 else 0.0 * total, _ROUNDING_ULPS)


def _log(xp: Any, number: Any) -> Any:
    """Of zero minus infinity, without a warning."""
    there = number > 0
    return xp.where(there, xp.log(xp.where(there, number, 1.0)), -xp.inf)


@pytree
class LazyReleases:
    """A run of lazy draws: all that accounting needs to know of it. A pytree; sizes are static.

    Attributes:
        num_batches: n = ⌈T/B⌉.
        batch_size: B, rounds in which one point is played.
        reference: ``"none"`` or ``"lagged"``; see the top of the file.
        clip: κ ≥ 0, what one round may add to -log r.
        envelope: E ≥ B·κ with a reference; not used without.
        redraw_probability: p in (0, 1]. With 1 every batch has a fresh draw, and no coin tells anything.
        reference_probability: p_y in [0, 1]; not used without a reference.
        draw_zcdp: ρ of one fresh draw: η²/2 of multiplicative weights e^(-η·Σ loss) with losses in [0, 1],
            whose log-ratio has the range 2η.
        delta: δ of the certificate.
        variation: total variation distance of one draw from an exact one, at most, whatever the data are;
            ``None`` if draws are exact.
    """

    num_batches: int = static()
    batch_size: int = static()
    reference: str = static(choices=("none", "lagged"))
    clip: Number
    envelope: Number
    redraw_probability: Number
    reference_probability: Number
    draw_zcdp: Number
    delta: Number
    variation: Number | None = None

    @property
    def relation(self) -> NeighboringRelation:
        """The losses of one round are replaced."""
        return NeighboringRelation.REPLACE_ONE

    @property
    def num_draws(self) -> int:
        """The most draws that are made of laws that have seen data."""
        return (2 if self.reference == "lagged" else 1) * (self.num_batches - 1)

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers of ``_divergence``, by name."""
        lagged = self.reference == "lagged"
        xp, (clip, envelope, p, p_y, rho) = as_floats(
            self.clip,
            self.envelope if lagged else 0.0,
            self.redraw_probability,
            self.reference_probability if lagged else 0.0,
            self.draw_zcdp,
        )
        clip = xp.where(clip < np.inf, clip, np.nan)
        whole = self.batch_size * clip
        span = envelope + whole if lagged else whole
        # The exponent of a coin is a float32, of which neighbours have roundings of their own.
        lost = _EXPONENT_ROUNDING * (span - xp.log1p(-xp.minimum(p, 1.0 - 1e-6)))
        return {
            "shift": xp.where(clip == 0, 0.0, (2.0 * clip if lagged else clip) + lost),
            "slack": envelope - whole if lagged else 0.0 * clip,
            "span": span,
            "redraw_probability": p,
            "reference_probability": p_y,
            "draw_zcdp": rho,
        }

    @property
    def accounted(self) -> Any:
        """Whether anything is proven of a run with these numbers; a boolean, which may be traced."""
        given = self.numbers
        p, p_y = given["redraw_probability"], given["reference_probability"]
        good = (p > 0) & (p <= 1) & (p_y >= 0) & (p_y <= 1) & (given["slack"] >= 0)
        for name in ("shift", "span", "draw_zcdp"):
            good = good & (given[name] >= 0) & (given[name] < np.inf)
        return good

    def loss(self) -> PrivacyLoss:
        """What the run costs, on the grid of orders; may be traced. Infinite where nothing is proven."""
        given, good = self.numbers, self.accounted
        xp, _ = as_floats(*given.values())
        safe = {name: xp.where(good, number, 0.5) for name, number in given.items()}
        rdp = _divergence(ORDERS, self.num_batches, **safe)
        ideal = PrivacyLoss(rdp, xp.zeros(rdp.shape[:-1], rdp.dtype))
        if self.variation is not None:
            whole = xp.minimum(self.num_draws * as_floats(self.variation)[1][0], 1.0)
            horizon = epsilon(ideal, 0.5 * self.delta)
            ideal = with_variation(ideal, whole, 2.0 * horizon, 0.5 * self.delta)
        return unbounded_unless(good, ideal)

    def epsilon_at(self, delta: float, *, coarse: bool = False) -> Any:
        """ε of exact draws at a δ in (0, 1), at the best of all real orders; on the host, in any batch.

        Args:
            delta: δ.
            coarse: for searches: at one order in three of the first look alone, which proves a
                hundredth more.
        """
        delta = _checks.require_real("delta", delta, 0.0, 1.0)
        given = {name: np.asarray(number, np.float64) for name, number in self.numbers.items()}
        good = self.accounted
        safe = {name: np.where(good, number, 0.5) for name, number in given.items()}
        excess, best = _EXCESS[:: 3 if coarse else 1], np.inf
        for _ in range(1 if coarse else _LOOKS):
            orders = 1.0 + excess
            rdp = _divergence(orders, self.num_batches, **safe)
            offset = np.log1p(-1.0 / orders) - np.log(orders) / excess
            needed = math.log(delta) / excess
            # The terms may cancel: what their rounding can have taken off is added.
            found = rdp + offset - needed + 4e-15 * (rdp + np.abs(offset) + np.abs(needed))
            best = np.minimum(best, found.min(axis=-1))
            place = np.argmin(found, axis=-1)[..., None]
            spread = np.broadcast_to(excess, found.shape)
            last = spread.shape[-1] - 1
            low = np.take_along_axis(spread, np.maximum(place - 1, 0), axis=-1)[..., 0]
            high = np.take_along_axis(spread, np.minimum(place + 1, last), axis=-1)[..., 0]
            excess = np.geomspace(low, high, len(_EXCESS), axis=-1)
        return np.where(good, np.maximum(best, 0.0), np.inf)[()]

    def certificate(self) -> Certificate:
        """(ε, δ) of the run, with what inexact draws add: δ = δ(ε) + (1 + e^ε)·(number of draws)·variation.

        Raises:
            ValueError: a number is an array, of a batch of plans.
        """
        delta = _checks.require_real("delta", self.delta, 0.0, 1.0)
        lost = 0.0
        if self.variation is not None:
            lost = self.num_draws * _checks.require_share("variation", self.variation)

        def least(bound: float) -> float:
            rest = delta - (1.0 + math.exp(min(bound, 700.0))) * lost if lost else delta
            return float(self.epsilon_at(rest)) if rest > 0 else math.inf

        bound = least(0.0)
        for _ in range(100):  # from below to the least ε that holds
            raised = least(bound)
            if raised <= bound * (1.0 + 1e-12):
                break
            bound = raised
        bound = bound * (1.0 + 1e-11)
        bound = bound if least(bound) <= bound else math.inf
        bound = min(bound, float(epsilon(self.loss(), delta)))
        by = accounted_by("Rényi curves of lazy draws")
        assumed = ("coins, reference points and the key stay secret",)
        return Certificate(bound, delta, self.relation, by, assumed)


@checked
def l2p_epsilon_thesis(
    num_rounds: Count,
    batch_size: Count,
    learning_rate: Positive,
    redraw_probability: Annotated[float, real(0.0, math.nextafter(1.0, 2.0))],
    delta: Inside,
) -> float:
    """ε of L2P by Theorem 13.3.2 of the thesis, of exact draws, for comparison only: no plan uses it.

    2η/p + η + 3Tη²p·l/(2B) + √(6Tη²p·l²/B), l = log(2T/δ).

    Args:
        num_rounds: T.
        batch_size: B.
        learning_rate: η.
        redraw_probability: p in (0, 1].
        delta: δ = 2T·δ_1, in (0, 1).

    Returns:
        ε; infinite where the theorem says nothing, for η·B·l/p above 1.

    Example:
        >>> printed = l2p_epsilon_thesis(10**6, 1, 1e-5, 1e-3, 1e-6)
        >>> round(printed, 2)
        0.04
    """
    log = math.log(2.0 * num_rounds / delta)
    if learning_rate * batch_size * log / redraw_probability > 1.0:
        return math.inf
    drawn = num_rounds * learning_rate**2 * redraw_probability / batch_size
    coin = 2.0 * learning_rate / redraw_probability + learning_rate
    return coin + 1.5 * drawn * log + math.sqrt(6.0 * drawn) * log
