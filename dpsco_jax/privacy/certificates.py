"""Certificates: the (ε, δ) of what was released, on the host, by the tightest accountant that applies.

A certificate says what is guaranteed, under which neighbouring relation, by whose arithmetic and under
which assumptions; it prints as a short text and survives a round trip through JSON.

Source: the closed form of the Gaussian is Balle and Wang 2018, Theorem 8; the privacy loss distribution
is in ``pld.convolution``, the dominating pairs in ``pld.pairs``.

Formal guarantee: the event is (ε, δ)-DP under the relation if the assumptions hold. ε is an upper bound;
every accountant rounds against itself, and the least of their bounds is taken.

Cost: 5 to 100 ms for a certificate, about ten times that for a noise multiplier.
"""

import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsFloat

from dp_accounting import NeighboringRelation

from dpsco_jax import __version__
from dpsco_jax._checks import (
    require,
    require_instance,
    require_integer,
    require_real,
    require_relation,
    require_sentences,
)
from dpsco_jax.privacy import _wrappers, accountants, ledger, pld
from dpsco_jax.privacy._kinds import Composition
from dpsco_jax.privacy.dp_accounting.compositions import compositions
from dpsco_jax.privacy.dp_accounting.events import DpEvent
from dpsco_jax.privacy.loss import epsilon


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


def certificate(
    event: DpEvent,
    delta: SupportsFloat,
    relation: NeighboringRelation,
    assumptions: Iterable[str] = (),
    max_points: int = pld.MAX_POINTS,
) -> Certificate:
    """The guarantee of an event: the least ε at δ over the accountants that apply to it.

    Args:
        event: what was released, from ``privacy.events`` or ``dp_accounting``. Every noise
            multiplier is σ over the sensitivity under ``relation``.
        delta: in (0, 1).
        relation: the neighbouring relation.
        assumptions: sentences to carry along; they do not enter the computation.
        max_points: of a grid of losses. Fewer are faster, and prove a larger ε.

    Raises:
        ValueError: if δ is out of range or a part of the event is unknown or has no proof under the
            relation; nothing is composed then.
    """
    delta, assumptions = _checked(delta, assumptions)
    alternatives = compositions(event, relation)
    return certificate_of(alternatives, delta, relation, assumptions, max_points)


def certificate_of(
    alternatives: Iterable[Composition],
    delta: SupportsFloat,
    relation: NeighboringRelation,
    assumptions: Iterable[str] = (),
    max_points: int = pld.MAX_POINTS,
) -> Certificate:
    """The guarantee of releases that were made for the relation: the least ε at δ over the accountants.

    Args:
        alternatives: one composition for each place where the differing record may be, one or more.
        delta: in (0, 1).
        relation: the neighbouring relation for which the releases were made.
        assumptions: sentences to carry along; they do not enter the computation.
        max_points: of a grid of losses. Fewer are faster, and prove a larger ε.

    Raises:
        ValueError: a release was made for another relation.
    """
    delta, assumptions = _checked(delta, assumptions)
    require_relation("relation", relation)
    require_integer("max_points", max_points, 1)
    alternatives = tuple(alternatives)
    require(bool(alternatives), "alternatives", alternatives, "compositions, one or more")
    for release, _ in (part for releases in alternatives for part in releases):
        fits = relation in release.bounds_under
        require(fits, "relation", relation, f"one of {release.bounds_under} for {release}")
    # Where parts are released in parallel, the differing record is in the worst of them.
    epsilon, accountant = max(_tightest(releases, delta, max_points) for releases in alternatives)
    return Certificate(epsilon, delta, relation, accounted_by(accountant), assumptions)


def state_certificate(
    opt_state: Any,
    delta: SupportsFloat,
    *,
    independent_draws: bool = False,
    trust: type | tuple[type, ...] = (),
    assumptions: Iterable[str] = (),
) -> Certificate:
    """The guarantee of what an optimizer state has released, with what the caller vouches for in words.

    ε is that of ``privacy_spent``, by Rényi curves. Where it is infinite because of what the state holds, the
    certificate says why in place of the accountant.

    Args:
        opt_state: any nesting of concrete optimizer states, of one optimizer and not of a batch.
        delta: in (0, 1).
        independent_draws: what the caller vouches for in ``privacy_spent``.
        trust: the wrappers that the caller vouches for in ``privacy_spent``.
        assumptions: further sentences to carry along.

    Raises:
        ValueError: the state is that of a batch, or one that ``privacy_spent`` refuses.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dp_accounting import NeighboringRelation
        >>> from dpsco_jax import privacy, transforms
        >>> mean = transforms.clipped_mean(1.0, 10, NeighboringRelation.ADD_OR_REMOVE_ONE)
        >>> release = transforms.privatize(mean, jax.random.key(0), 5.0)
        >>> _, state = release.update(jnp.ones((10, 3)), release.init(jnp.zeros(3)))
        >>> round(privacy.state_certificate(state, 1e-5).epsilon, 2)
        0.94
    """
    delta, sentences = _checked(delta, assumptions)
    loss = ledger.privacy_spent(opt_state, independent_draws=independent_draws, trust=trust)
    require(loss.delta.ndim == 0, "opt_state", f"a batch of {loss.delta.shape}", "one optimizer's")
    reasons = ledger.doubts(opt_state, independent_draws=independent_draws, trust=trust)
    found = float(epsilon(loss, delta))
    named = [_wrappers.name_of(kind) for kind in _wrappers.require_types("trust", trust)]
    if named:
        what = "hands every update to the release inside and passes on nothing else"
        sentences += tuple(f"{name} {what}" for name in named)
    if independent_draws:
        sentences += ("no two releases have looked at one draw of users",)
    accountant = "; ".join(reasons) if reasons else "Rényi curves of the ledgers"
    relation = ledger.relation_of(opt_state)
    return Certificate(found, delta, relation, accounted_by(accountant), sentences)


def accounted_by(accountant: str) -> str:
    """The name of an accountant with the version of this library, as certificates state it."""
    require_instance("accountant", accountant, str)
    return f"{accountant} (dpsco_jax {__version__})"


def _checked(delta: SupportsFloat, assumptions: Iterable[str]) -> tuple[float, tuple[str, ...]]:
    delta = require_real("delta", delta, 0.0, 1.0)
    return delta, require_sentences("assumptions", assumptions)


def _tightest(releases: Composition, delta: float, max_points: int) -> tuple[float, str]:
    """The least ε, and whose it is."""
    if not all(release.private for release, _ in releases):
        return math.inf, "definition"
    if (exact := accountants.closed_form(releases, delta)) is not None:
        return exact, "closed form"
    bounds = [(accountants.renyi(releases, delta), "Rényi curves")]
    bound = accountants.privacy_loss_distribution(releases, delta, max_points)
    if bound is not None:
        bounds.append((bound, "privacy loss distribution"))
    return min(bounds)


def _ceil(value: float) -> str:
    """Five significant digits, rounded up."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = 4 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10.0**digits) / 10.0**digits:.{max(digits, 0)}f}"
