"""What ``dp_accounting`` says of the same event, asked in a way that its accountants agree on.

Its accountants read a ``GaussianDpEvent`` differently under REPLACE_ONE: the PLD accountant doubles the
sensitivity, the RDP accountant does not. For noise multiplier 1 and δ = 1e-6 that makes ε 11.0 and 5.2.

Source: ``dp_accounting`` 0.6, ``pld_privacy_accountant.py`` and ``rdp_privacy_accountant.py``.

Formal guarantee: none here; a certificate does not depend on these numbers.

Cost: 0.05 to several seconds.
"""

from typing import SupportsFloat

import dp_accounting
from dp_accounting import DpEvent, NeighboringRelation

from dpsco_jax._checks import require_real
from dpsco_jax.privacy import _kinds
from dpsco_jax.privacy.dp_accounting._translation import event_of
from dpsco_jax.privacy.dp_accounting.compositions import compositions

_ACCOUNTANTS = {"RDP": dp_accounting.rdp.RdpAccountant, "PLD": dp_accounting.pld.PLDAccountant}


def second_opinion(
    event: DpEvent, delta: SupportsFloat, relation: NeighboringRelation
) -> dict[str, float]:
    """ε of the event by the accountants of ``dp_accounting``, with the event converted for each.

    Its PLD accountant is asked under ADD_OR_REMOVE_ONE, where it divides σ by what we divide by; for
    unsampled Gaussian and Laplace releases the curve depends on that ratio alone, whatever the relation.
    Poisson samples under REPLACE_ONE it knows too: then it is asked under REPLACE_ONE, where it takes σ over
    half of the sensitivity, of all releases.

    Returns:
        "RDP" and "PLD", each absent where that accountant does not know a release.
    """
    delta = require_real("delta", delta, 0.0, 1.0)
    opinions: dict[str, float] = {}
    for name in ("RDP", "PLD"):
        worst = 0.0
        for releases in compositions(event, relation):
            asked, halves = relation, 1.0
            if name == "PLD":
                replaced = any(isinstance(release, _kinds.UsersSampled) for release, _ in releases)
                asked = relation if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
                halves = 2.0 if replaced else 1.0
            accountant = _ACCOUNTANTS[name](neighboring_relation=asked)
            stated = [(_over(event_of(release), halves), count) for release, count in releases]
            if not all(accountant.supports(part) for part, _ in stated):
                break
            for part, count in stated:
                accountant.compose(part, count)
            worst = max(worst, float(accountant.get_epsilon(float(delta))))
        else:
            opinions[name] = worst
    return opinions


def _over(event: DpEvent, halves: float) -> DpEvent:
    """The event with Gaussian noise over ``1 / halves`` of the sensitivity."""
    match event:
        case dp_accounting.GaussianDpEvent():
            return dp_accounting.GaussianDpEvent(halves * event.noise_multiplier)
        case dp_accounting.PoissonSampledDpEvent():
            return dp_accounting.PoissonSampledDpEvent(
                event.sampling_probability, _over(event.event, halves)
            )
    return event
