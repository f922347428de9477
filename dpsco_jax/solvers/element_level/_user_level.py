"""What a guarantee for elements says of a whole user: k elements of one user changed at once.

What it computes: the least of the ε at one δ that are proven:

- group privacy: k changes of one element, each (ε, δ')-DP: (kε, δ'·Σ_{i<k} e^{iε}), at the best δ' there is;
- no amplification: given who was drawn, the sum moves by at most k times the sensitivity to one element;
- some of the k units are drawn with probability Q = 1 - (1 - q)^k, under ``"element"``: the laws are averages
  over which units S ≠ ∅ of the k are drawn, of (1 - Q)·N(0) + Q·N(a_S) and (1 - Q)·N(0) + Q·N(b_S), with a_S
  and b_S at most k clip norms long, so by joint convexity they are covered by records that are drawn with
  probability Q and are k times as long;
- under ``"user"``: a user is drawn with probability q, and the projected sums are min(k, cap) clip norms
  long: the curve of whole users.

Source: E Corollary 2.2 (group privacy, with the exact factor) and section 10.

Formal guarantee: (ε, δ)-DP for neighbours that differ in at most k elements of one user.

Cost: about ten certificates.
"""

import math
from typing import Any

import numpy as np

from dpsco_jax import _checks, privacy
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import FullBatch, Poisson
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
    length = float(k)
    if releases.sampling == "user":
        length = min(length, releases.longest)
        moved.append(GaussianSteps(Poisson(rate), steps.relation, steps.num_steps))
    elif releases.sampling == "element":
        some = -math.expm1(k * math.log1p(-rate)) if rate < 1 else 1.0
        # Up, past the rounding of the logarithm.
        some = min(1.0, some * (1 + 2.0**-40))
        moved.append(GaussianSteps(Poisson(some), steps.relation, steps.num_steps))
    found = [way.certificate(sigma / length, delta) for way in moved]
    return [*((one.epsilon, one.accountant) for one in found), _group(steps, sigma, delta, k)]


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
