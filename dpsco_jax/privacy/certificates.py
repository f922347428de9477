"""Certificates: the (ε, δ) of what was released, on the host, by the tightest accountant that applies.

A certificate says what is guaranteed, under which neighbouring relation, by whose arithmetic and under
which assumptions; it prints as a short text and survives a round trip through JSON. The noise multiplier
that meets a budget is found with the same accountants, so that plan and certificate cannot disagree.

Source: the closed form of the Gaussian is Balle and Wang 2018, Theorem 8; the privacy loss distribution
is in ``pld.py``, the dominating pairs in ``pairs.py``.

Formal guarantee: the event is (ε, δ)-DP under the relation if the assumptions hold. ε is an upper bound;
every accountant rounds against itself, and the least of their bounds is taken.

Cost: 5 to 100 ms for a certificate, about ten times that for a noise multiplier.
"""

import importlib.metadata
import json
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, SupportsFloat, runtime_checkable

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from scipy import optimize, special

from dpsco_jax.privacy import events, pairs, pld

Releases = tuple[tuple[DpEvent, int], ...]

_FEW_POINTS = 2**16
_UNDER_BUDGET = 2e-5  # calibration stops when ε is below its target by at most this, relative


class Certificate(NamedTuple):
    """An (ε, δ) guarantee and what it rests on.

    Attributes:
        epsilon: upper bound on ε, ``inf`` if nothing is guaranteed.
        delta: the δ it was asked for.
        relation: the neighbouring relation it speaks of.
        accountant: whose bound it is, with the version.
        assumptions: what the proof assumes and the code does not enforce.
    """

    epsilon: float
    delta: float
    relation: NeighboringRelation
    accountant: str
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"({_ceil(self.epsilon)}, {self.delta:.6g})-DP under {self.relation.name}",
            f"  by {self.accountant}",
        ]
        lines += [f"  assuming {assumption}" for assumption in self.assumptions]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The certificate as a JSON object; every float survives exactly."""
        fields = self._asdict() | {"relation": self.relation.name}
        # JSON has no infinity.
        fields["epsilon"] = self.epsilon if math.isfinite(self.epsilon) else str(self.epsilon)
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """The certificate that ``to_json`` wrote."""
        fields = json.loads(text)
        return cls(
            epsilon=float(fields["epsilon"]),
            delta=float(fields["delta"]),
            relation=NeighboringRelation[fields["relation"]],
            accountant=fields["accountant"],
            assumptions=tuple(fields["assumptions"]),
        )


@runtime_checkable
class GaussianSampling(Protocol):
    """What ``certified_noise_multiplier`` needs of a sampling scheme."""

    def gaussian_event(self, noise_multiplier: float) -> DpEvent:
        """The event of one Gaussian release on a sample."""


def certificate(
    event: DpEvent,
    delta: SupportsFloat,
    relation: NeighboringRelation,
    assumptions: Iterable[str] = (),
) -> Certificate:
    """The guarantee of an event: the least ε at δ over the accountants that apply to it.

    Args:
        event: what was released, from ``dpsco_jax.privacy.events`` or ``dp_accounting``. Every noise
            multiplier is σ over the sensitivity under ``relation``.
        delta: in (0, 1).
        relation: the neighbouring relation.
        assumptions: sentences to carry along; they do not enter the computation.

    Raises:
        ValueError: if δ is out of range or a part of the event is unknown or has no proof under the
            relation; nothing is composed then.
    """
    delta = float(delta)
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be in (0, 1), got {delta}.")
    # Where parts are released in parallel, the differing record is in the worst of them.
    epsilon, accountant = max(
        _tightest(releases, delta) for releases in events.compositions(event, relation)
    )
    version = importlib.metadata.version("dpsco-jax")
    return Certificate(
        epsilon, delta, relation, f"{accountant} (dpsco_jax {version})", tuple(assumptions)
    )


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε of one Gaussian release with the given σ over sensitivity, rounded up; exact otherwise."""
    log_target = math.log(delta)
    if _log_gaussian_delta(0.0, noise_multiplier) <= log_target:
        return 0.0
    upper = 1.0
    while _log_gaussian_delta(upper, noise_multiplier) > log_target:
        upper *= 2.0
    root = optimize.brentq(
        lambda e: _log_gaussian_delta(e, noise_multiplier) - log_target, 0.0, upper, xtol=1e-15
    )
    return _raised(root, lambda e: _log_gaussian_delta(e, noise_multiplier) <= log_target)


def certified_noise_multiplier(
    sampling: GaussianSampling,
    num_steps: int,
    epsilon: SupportsFloat,
    delta: SupportsFloat,
    relation: NeighboringRelation,
) -> float:
    """The noise multiplier with which ``num_steps`` subsampled Gaussian releases meet (ε, δ).

    Args:
        sampling: ``FullBatch()``, ``Poisson(...)`` or ``WithoutReplacement(...)``.
        num_steps: number of releases, at least 1.
        epsilon: the budget, positive.
        delta: in (0, 1).
        relation: the neighbouring relation.

    Returns:
        σ over the ℓ2 sensitivity under ``relation``. ``certificate`` of the releases is at most
        ``epsilon``, without tolerance, and within 2e-5 of it, relative.

    Raises:
        ValueError: if an argument is out of range or the scheme has no proof under the relation.
    """
    epsilon, delta = float(epsilon), float(delta)
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}.")
    if not 0.0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be in (0, inf), got {epsilon}.")
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be in (0, 1), got {delta}.")

    def excess(log_multiplier: float, max_points: int = pld.MAX_POINTS) -> float:
        event = events.repeated(sampling.gaussian_event(math.exp(log_multiplier)), num_steps)
        (releases,) = events.compositions(event, relation)
        spent = _from_losses(releases, delta, max_points)
        # Far from the root, how far says nothing about where it is.
        return math.log(min(max(spent / epsilon, 1e-2), 1e2))

    # Without sampling, num_steps releases are one Gaussian: a multiplier that is always enough.
    enough = math.log(_gaussian_multiplier(epsilon, delta) * math.sqrt(num_steps))
    if excess(enough, _FEW_POINTS) > -1e-9:
        return math.exp(_raised(enough, lambda x: excess(x) <= 0.0))
    near = decreasing_root(lambda x: excess(x, _FEW_POINTS), enough, 1e-3)
    return math.exp(decreasing_root(excess, near, _UNDER_BUDGET))


def _tightest(releases: Releases, delta: float) -> tuple[float, str]:
    if not releases:
        return 0.0, "closed form"
    if any(isinstance(release, NonPrivateDpEvent) for release, _ in releases):
        return math.inf, "closed form"
    if len(releases) == 1 and isinstance(releases[0][0], GaussianDpEvent):
        return _from_losses(releases, delta), "closed form of the Gaussian"
    return _from_losses(releases, delta), "privacy loss distribution"


def _from_losses(releases: Releases, delta: float, max_points: int = pld.MAX_POINTS) -> float:
    """ε from dominating pairs; in closed form for a single Gaussian."""
    if not releases:
        return 0.0
    if len(releases) == 1 and isinstance(releases[0][0], GaussianDpEvent):
        return gaussian_epsilon(releases[0][0].noise_multiplier, delta)
    forward = [(_pair(release), count) for release, count in releases]
    bound = pld.epsilon(forward, delta, max_points)
    if any(isinstance(release, PoissonSampledDpEvent) for release, _ in releases):
        backward = [(pairs.reverse(pair), count) for pair, count in forward]
        # Mostly the other direction is the cheaper one, which a small grid is enough to see.
        if (reverse := pld.epsilon(backward, delta, min(max_points, _FEW_POINTS))) > bound:
            reverse = pld.epsilon(backward, delta, max_points)
        bound = max(bound, reverse)
    return bound


def _pair(release: DpEvent) -> pairs.Pair:
    if isinstance(release, GaussianDpEvent):
        return pairs.gaussian(release.noise_multiplier)
    if isinstance(release, LaplaceDpEvent):
        return pairs.laplace(release.noise_multiplier)
    if isinstance(release, events.ApproximateDpEvent):
        return pairs.approximate_dp(release.epsilon, release.delta)
    if isinstance(release, PoissonSampledDpEvent):
        return pairs.poisson_gaussian(release.event.noise_multiplier, release.sampling_probability)
    if isinstance(release, SampledWithoutReplacementDpEvent):
        fraction = release.sample_size / release.source_dataset_size
        return pairs.gaussian_without_replacement(release.event.noise_multiplier, fraction)
    raise ValueError(f"No dominating pair for {release!r}.")


def _log_gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """Log δ(ε) = log [Φ(1/2s - εs) - e^ε Φ(-1/2s - εs)], exact where the difference cancels."""
    half, shift = 0.5 / noise_multiplier, epsilon * noise_multiplier
    first = float(special.log_ndtr(half - shift))
    second = epsilon + float(special.log_ndtr(-half - shift))
    return first + math.log(-math.expm1(min(second - first, -1e-300)))


def _gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of one Gaussian release with the given (ε, δ), not yet rounded."""
    log_target = math.log(delta)

    def excess(log_multiplier: float) -> float:
        return _log_gaussian_delta(epsilon, math.exp(log_multiplier)) - log_target

    low = high = 0.0
    while excess(low) < 0:
        low -= 2.0
    while excess(high) > 0:
        high += 2.0
    return math.exp(optimize.brentq(excess, low, high, xtol=1e-15)) if low < high else 1.0


def decreasing_root(excess: Callable[[float], float], start: float, under: float) -> float:
    """A point at which a decreasing function lies between -under and 0.

    Steps of growing length from the start bracket the root; then false position, aimed a little past
    the root, with a bisection whenever two steps have not halved the bracket. The first step is right
    if the slope is about -1, as that of log ε against the logarithm of the noise mostly is.
    """
    low, at_low, high, at_high = -math.inf, math.inf, math.inf, -math.inf
    point, step = start, 0.0
    widths = [math.inf, math.inf]
    while True:
        value = excess(point)
        if -under <= value <= 0:
            return point
        if value > 0:
            low, at_low = point, value
        else:
            high, at_high = point, value
        width = high - low
        if width == math.inf:
            step = max(2.0 * step, min(1.3 * abs(value) + under, 2.0))
            point += math.copysign(step, value)
            continue
        if width <= 1e-12 * (1.0 + abs(high)):
            return high
        if width > 0.5 * widths[-2]:
            point = 0.5 * (low + high)
        else:
            point = low + width * (at_low + 0.5 * under) / (at_low - at_high)
        widths.append(width)


def _raised(value: float, holds: Callable[[float], bool]) -> float:
    """The value, raised until the condition holds at it."""
    step = 2.0**-52
    while not holds(value):
        value *= 1.0 + step
        step *= 2.0
    return value


def _ceil(value: float) -> str:
    """Five significant digits, rounded up."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 4 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10.0**digits) / 10.0**digits:.{max(digits, 0)}f}"
