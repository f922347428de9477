"""How far the mean of the inliers moves when one vector is replaced, given that the vectors are concentrated.

What it computes: weights are clip((f - n/2) / ((θ - 1/2) n), 0, 1), f the number of vectors within twice the
score radius; the mean is weighted by them, or taken over a random set drawn with these probabilities.

Source: replaces U Lemmas 3.3 to 3.5 and T Lemmas 9.3.3 to 9.3.5, 10.7.2, 10.8.2.

Formal guarantee: if at least ``level`` of the n - 1 vectors that two neighbours share lie within one score
radius of some point, and level >= θ n, the two means are at most the returned multiple of the radius apart.
Proof: docs/privacy/concentrated_mean.md, sections 1 to 3. Relations: REPLACE_ONE; REPLACE_SPECIAL, where the
special value is close to nothing and has weight zero.

Cost: microseconds.
"""

import math
from types import ModuleType
from typing import Any, SupportsFloat

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import require_within
from dpsco_jax.privacy._numerics import array_namespace
from dpsco_jax.privacy._threshold_coins import Coins

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
_RELATIONS = (REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_ROUNDING = 1.0 + 1e-12


def mean_sensitivity(
    num_users: int,
    level: SupportsFloat,
    keep_level: SupportsFloat,
    relation: NeighboringRelation = REPLACE_ONE,
) -> float:
    """How far the weighted mean can move, κ, in units of the score radius.

    Args:
        num_users: n, how many vectors there are, at least 2.
        level: how many of the n - 1 shared vectors certainly lie within one radius of some point.
        keep_level: θ in (1/2, 1): weight 1 for vectors that see θ n others; at most level / n.
        relation: REPLACE_ONE or REPLACE_SPECIAL.

    Raises:
        ValueError: an argument is out of range, or there is no proof under the relation.
    """
    shared, core, ramp = _check(num_users, level, keep_level, relation)
    # The weight times the reach is a parabola in the degree up to θ n, and falls after it.
    vertex = 0.25 * num_users + 0.5 + 0.25 * (6.0 * shared - 2.0 * core)
    keep = 0.5 * num_users + ramp
    degrees = np.array([math.floor(vertex), math.ceil(vertex), math.floor(keep), math.ceil(keep)])
    degrees = np.clip(degrees, num_users // 2 + 1, num_users)
    weights = np.clip((degrees - 0.5 * num_users) / ramp, 0.0, 1.0)
    moved = float(np.max(weights * _reach(degrees - 1.0, shared, core)))
    sides = vectors_of_one_user(relation)
    unmoved = (shared - core) / ramp * float(_reach(0.5 * (num_users - 1.0), shared, core))
    return _ROUNDING * (sides * moved + unmoved) / core


def coupled_sensitivity(
    num_users: int,
    level: SupportsFloat,
    keep_level: SupportsFloat,
    failure: SupportsFloat,
    relation: NeighboringRelation = REPLACE_ONE,
) -> float:
    """How far the mean of a random set of inliers can move, but for a probability, in units of the radius.

    Each vector is in the set independently, with its weight as probability. The sets of two neighbours are
    coupled coin by coin; more than k coins of shared vectors differ with probability ``failure`` at most.

    Args:
        num_users: as in ``mean_sensitivity``, as are ``level``, ``keep_level`` and ``relation``.
        level: see there.
        keep_level: see there.
        failure: probability in one release, in (0, 1).
        relation: see there.

    Raises:
        ValueError: see ``mean_sensitivity``.
    """
    shared, core, ramp = _check(num_users, level, keep_level, relation)
    require_within("failure", failure, 0.0, 1.0, open_low=True, open_high=True)
    sides = vectors_of_one_user(relation)
    differing = differing_coins((shared - core) / ramp, float(failure))
    reach = float(_reach(0.5 * (num_users - 1.0), shared, core))
    return _ROUNDING * (sides + differing) * reach / core


def selection_coins(
    num_users: int,
    level: SupportsFloat,
    keep_level: SupportsFloat,
    failure: SupportsFloat,
    relation: NeighboringRelation = REPLACE_ONE,
) -> Coins:
    """The coins that ``coupled_sensitivity``, with the same arguments, allows to differ."""
    shared, core, ramp = _check(num_users, level, keep_level, relation)
    return Coins(
        total=shared - math.floor(core),
        probability=min(1.0 / ramp, 1.0),
        always=vectors_of_one_user(relation),
        most=differing_coins((shared - core) / ramp, float(failure)),
    )


def coins_of(
    num_users: int, level: Any, keep_level: Any, sensitivity: Any, always: float
) -> tuple[Any, Any, float, Any]:
    """The fields of ``selection_coins`` for a ``coupled_sensitivity``, of numbers that may be traced."""
    xp = array_namespace(level, keep_level, sensitivity)
    shared, ramp = num_users - 1, (keep_level - 0.5) * num_users
    one_vector = _reach(0.5 * (num_users - 1.0), shared, level, xp) / level
    most = xp.round(sensitivity / one_vector - always)
    return shared - level, xp.minimum(1.0 / ramp, 0.999), always, most


def vectors_of_one_user(relation: NeighboringRelation) -> float:
    """On how many sides the replaced vector can have a weight."""
    return 2.0 if relation is REPLACE_ONE else 1.0


def differing_coins(mean: float, failure: float) -> int:
    """K such that independent coins of this total probability show more than k with at most ``failure``.

    By the Chernoff bound P(X >= k) <= e^(k - M) (M/k)^k for k >= M, which holds for every sum of
    independent coins with mean at most M.
    """
    if mean <= 0.0:
        return 0
    count = math.ceil(mean)
    while count - mean + count * math.log(mean / count) > math.log(failure):
        count += 1
    return count - 1


def _reach(neighbours: Any, shared: int, core: Any, xp: ModuleType = np) -> Any:
    """ψ(a): how far an inlier with a shared vectors near it can be from a mean that holds the core."""
    return (6.0 * shared - 2.0 * core - 2.0 * xp.minimum(neighbours, core)) / shared


def _check(
    num_users: int, level: SupportsFloat, keep_level: SupportsFloat, relation: NeighboringRelation
) -> tuple[int, float, float]:
    if relation not in _RELATIONS:
        raise ValueError(f"relation must be REPLACE_ONE or REPLACE_SPECIAL, got {relation.name}")
    if num_users < 2 or num_users != int(num_users):
        raise ValueError(f"num_users must be an integer of at least 2, got {num_users}")
    require_within("keep_level", keep_level, 0.5, 1.0, open_low=True, open_high=True)
    require_within("level", level, float(keep_level) * num_users, num_users - 1.0)
    return num_users - 1, float(level), (float(keep_level) - 0.5) * num_users
