"""What a guarantee for elements says of a whole user: k elements of one user changed at once.

What it computes: the least of the ε at one δ that are proven:

- group privacy: k changes of one element, each (ε, δ')-DP: (kε, δ'·Σ_{i<k} e^{iε}), at the best δ' there is;
- no amplification: given who was drawn, the sum moves by at most min(k, cap) times the sensitivity to one
  element;
- under ``"element"``, how many of the k are drawn is binomial, and j of them move the sum by at most j times
  as much: the pairs of ``privacy.pld.binomial_pairs``;
- under ``"fixed"``, how many of the k are drawn is hypergeometric, and others are drawn in place of the rest:
  the pair of ``privacy.pld.hypergeometric_pairs``;
- under ``"user"``: a user is drawn with probability q, and two projected sums are at most 2·min(k, cap) clip
  norms apart, and each at most min(K, cap) long, for the elements that do not change show the coin too: users
  sampled with all their units, in units of min(k, cap).

Source: E Corollary 2.2 (group privacy, with the exact factor) and section 10; docs/theory/mixtures.md,
sections 5 and 7.

Formal guarantee: (ε, δ)-DP for neighbours that differ in at most k elements of one user: each of them
replaced, or under ``"zero_out"`` replaced by nothing.

Cost: two certificates or three; about ten for a part of a user's elements where users are sampled.
"""

import math
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy
from dpsco_jax.privacy import accountants, certificates, pld
from dpsco_jax.privacy.pld import binomial_pairs, hypergeometric_pairs, pairs
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import FullBatch, PoissonUsers, WithoutReplacement
from dpsco_jax.solvers.element_level._releases import ElementReleases

_HALVINGS = 8


def user_certificate(releases: ElementReleases, elements: Any = None) -> privacy.Certificate:
    """The guarantee of a run for a user of whom at most ``elements`` elements change; K if left out.

    Raises:
        ValueError: if ``elements`` is not in [1, K], or there is no certificate.
    """
    slots, made = releases.elements_per_user, releases.certificate()
    k = _checks.require_integer("elements", slots if elements is None else elements, 1, slots)
    if releases.protects == "user" or (k == 1 and elements is not None):
        return made
    ways = [(made.epsilon, made.accountant)] if k == 1 else _ways(releases, k)
    epsilon, accountant = min(ways)
    kept = [line for line in made.assumptions if not line.startswith("neighbours")]
    differ = f"neighbours differ in one user, in at most {k} elements"
    return made._replace(epsilon=epsilon, accountant=accountant, assumptions=(*kept, differ))


def _ways(releases: ElementReleases, k: int) -> list[tuple[float, str]]:
    delta, steps, rate = float(releases.delta), releases.steps, _rate(releases)
    sigma = float(releases.noise_multiplier)
    moved = [GaussianSteps(FullBatch(), steps.relation, steps.num_steps)]
    length = min(float(k), releases.longest) if releases.sums_users else float(k)
    if releases.sampling == "user":
        scheme = PoissonUsers(rate, releases.longest / length)
        moved.append(GaussianSteps(scheme, steps.relation, steps.num_steps))
    found = [way.certificate(sigma / length, delta) for way in moved]
    ways = [(one.epsilon, one.accountant) for one in found]
    if releases.sampling in ("element", "fixed") and rate < 1 and 0 < sigma < math.inf:
        ways.append(_drawn(steps, rate, sigma, delta, k))
    # Of units, and of users whole, there are data that give away all that was counted, or nearly all where
    # their number is fixed: no group costs less, and none was found to.
    whole = releases.sampling == "user" and length == releases.longest
    exact = whole or releases.sampling in ("element", "fixed", "full")
    if not exact or min(ways)[0] == math.inf:
        ways.append(_group(steps, sigma, delta, k))
    return ways


def _drawn(
    steps: GaussianSteps, rate: float, sigma: float, delta: float, k: int
) -> tuple[float, str]:
    """The ε of k elements, the number of which that are drawn in a step is random."""
    name = certificates.accounted_by("privacy loss distribution")
    points = accountants.FEW_POINTS
    if isinstance(steps.scheme, WithoutReplacement):
        sizes = steps.scheme.population_size, steps.scheme.batch_size
        fixed = hypergeometric_pairs.hypergeometric_replaced_gaussian(sigma, *sizes, k)
        return pld.epsilon([(fixed, steps.num_steps)], delta, points), name
    if steps.relation is NeighboringRelation.REPLACE_ONE:
        replaced = binomial_pairs.binomial_replaced_gaussian(sigma, rate, k)
        return pld.epsilon([(replaced, steps.num_steps)], delta, points), name
    removed = binomial_pairs.binomial_removed_gaussian(sigma, rate, k)
    both = removed, pairs.reverse(removed)
    return max(pld.epsilon([(way, steps.num_steps)], delta, points) for way in both), name


def _rate(releases: ElementReleases) -> float:
    return releases.batch_size / releases.num_users


def _group(steps: GaussianSteps, sigma: float, delta: float, k: int) -> tuple[float, str]:
    """The ε of k changes, k times that of one at the largest δ found whose k-fold δ is small enough."""
    low, high = math.log(delta) - 40.0, math.log(delta / k)
    best = (math.inf, "group privacy")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        one = steps.certificate(sigma, math.exp(middle))
        factor = (
            np.logaddexp.reduce(one.epsilon * np.arange(k)) if one.epsilon < math.inf else math.inf
        )
        if middle + factor <= math.log(delta) - 1e-9:
            best = min(best, (k * one.epsilon, f"{one.accountant}, {k}-fold"))
            low = middle
        else:
            high = middle
    return best
