"""Truncated concentrated differential privacy: the accountant in which the older theorems are proved.

What it computes: (ρ, ω)-tCDP parameters of Gaussian releases on fixed-size samples, their composition and
their conversion to (ε, δ). Only the solvers' ``constants="paper"`` use it: at equal (ε, δ) it asks for 4 to
5 times the noise of a privacy loss distribution.

Source: Bun, Dwork, Rothblum and Steinke 2018; thesis, Definition 1.6.1 to Fact 1.6.4. Two corrections of
the thesis are made: a replaced record moves a sum of vectors of norm G by 2G (the noise multiplier here is σ
over that sensitivity), and the truncation of a subsampled step is log(1/q)/(4ρ), not 1/ρ.

Formal guarantee: a mechanism is (ρ, ω)-tCDP if its Rényi divergence of order α is at most ρα for all
1 < α < ω. Subsampling is of a fixed number of records without replacement, under REPLACE_ONE.

Cost: closed forms.
"""

import math
from typing import NamedTuple

from dpsco_jax._checks import require_instance, require_integer, require_real, require_within


class TruncatedCdp(NamedTuple):
    """A (ρ, ω)-tCDP guarantee.

    Attributes:
        rho: bound on the Rényi divergence over its order.
        omega: the order up to which the bound holds, ``inf`` for zCDP.
    """

    rho: float
    omega: float


def gaussian(noise_multiplier: float) -> TruncatedCdp:
    """One Gaussian release; σ over the ℓ2 sensitivity."""
    require_within("noise_multiplier", noise_multiplier, 0.0, math.inf, open_low=True)
    return TruncatedCdp(0.5 / noise_multiplier**2, math.inf)


def subsampled(loss: TruncatedCdp, sampling_fraction: float) -> TruncatedCdp:
    """The loss of a release on a uniform sample of fixed size; REPLACE_ONE.

    Args:
        loss: of the release on the sample.
        sampling_fraction: q, the sample's share of the population.

    Raises:
        ValueError: if a condition of the theorem fails; the message says which.
    """
    require_instance("loss", loss, TruncatedCdp)
    rho, omega = loss
    require_within("sampling_fraction", sampling_fraction, 0.0, 0.1, open_low=True)
    if not 0 < rho <= 0.1:
        raise ValueError(f"rho of the release on a sample must be in (0, 0.1], got {rho!r}")
    log_rate = math.log(1 / sampling_fraction)
    if log_rate < 3 * rho * (2 + math.log2(1 / rho)):
        raise ValueError(
            f"log(1/sampling_fraction) must be at least 3 rho (2 + log2(1/rho)), got {log_rate!r}"
        )
    needed = log_rate / (2 * rho)
    if omega < needed or needed < 3:
        raise ValueError(
            f"omega must be at least log(1/q)/(2 rho) = {needed!r} >= 3, got {omega!r}"
        )
    return TruncatedCdp(13 * sampling_fraction**2 * rho, log_rate / (4 * rho))


def scale(loss: TruncatedCdp, count: int) -> TruncatedCdp:
    """``count`` releases of the same loss."""
    require_instance("loss", loss, TruncatedCdp)
    return TruncatedCdp(require_integer("count", count, 0) * loss.rho, loss.omega)


def epsilon(loss: TruncatedCdp, delta: float) -> float:
    """The ε that the loss proves at δ."""
    require_instance("loss", loss, TruncatedCdp)
    delta = require_real("delta", delta, 0.0, 1.0)
    if math.isnan(loss.rho) or math.isnan(loss.omega):
        return math.inf
    log_delta = math.log(1 / delta)
    if math.isinf(loss.omega) or log_delta <= (loss.omega - 1) ** 2 * loss.rho:
        return loss.rho + 2 * math.sqrt(loss.rho * log_delta)
    return loss.rho * loss.omega + log_delta / (loss.omega - 1)
