"""How far the mean of the inliers moves when one vector is replaced, given that the vectors are concentrated.

Weights are clip((f - n/2) / ((θ - 1/2) n), 0, 1), f the number of vectors within twice the score radius; the
mean is weighted by them, or taken over a random set drawn with these probabilities. The weights that run are
float32, and their ramp is a little steeper: all bounds here are of that one.

If at least ``level`` of the n - 1 vectors that two neighbours share lie within one score radius of some
point, and level >= θ n, the two means are at most the returned multiple of the radius apart, under
REPLACE_ONE, and under REPLACE_SPECIAL, where the special value is close to nothing and has weight zero. This
replaces U Lemmas 3.3 to 3.5 and T Lemmas 9.3.3 to 9.3.5, 10.7.2, 10.8.2; proof:
docs/theory/concentrated_mean.md, sections 1 to 3.
"""

import math
from types import ModuleType
from typing import Any, SupportsFloat

import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax._checks import require_integer, require_relation, require_within
from dpsco_jax._numerics import as_floats
from dpsco_jax.privacy.concentrated._coins import Coins

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
RELATIONS = (REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
_MOST_COINS = 4096

_RAMP_ROUNDING = 2.0**-21
"""Of kept level times batch, in float32: a ramp is steeper by this share of it over its length."""


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
        ValueError: there is no proof under the relation.
    """
    _check(num_users, level, keep_level, relation)
    core, keep = float(level), float(keep_level)
    return float(weighted_shift(num_users, core, keep, vectors_of_one_user(relation)))


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
        num_users: n, how many vectors there are, at least 2.
        level: how many of the n - 1 shared vectors certainly lie within one radius of some point.
        keep_level: θ in (1/2, 1): probability 1 for vectors that see θ n others; at most level / n.
        failure: probability in one release, in (0, 1).
        relation: REPLACE_ONE or REPLACE_SPECIAL.

    Raises:
        ValueError: there is no proof under the relation.
    """
    coins = selection_coins(num_users, level, keep_level, failure, relation)
    core, keep = float(level), float(keep_level)
    return float(coupled_shift(num_users, core, keep, coins.most, coins.always))


def selection_coins(
    num_users: int,
    level: SupportsFloat,
    keep_level: SupportsFloat,
    failure: SupportsFloat,
    relation: NeighboringRelation = REPLACE_ONE,
) -> Coins:
    """The coins that ``coupled_sensitivity``, with the same arguments, allows to differ."""
    shared, core, ramp = _check(num_users, level, keep_level, relation)
    require_within("failure", failure, 0.0, 1.0, open_low=True, open_high=True)
    steeper = float(steepness(keep_level))
    return Coins(
        total=shared - math.floor(core),
        probability=min(steeper / ramp, 1.0),
        always=vectors_of_one_user(relation),
        most=differing_coins(steeper * (shared - core) / ramp, float(failure)),
    )


def steepness(keep_level: Any) -> Any:
    """By what factor the ramp of float32 weights is steeper than 1/((θ - 1/2) n), at most."""
    _, (keep,) = as_floats(keep_level)
    return 1.0 + _RAMP_ROUNDING * keep / (keep - 0.5)


def weighted_shift(num_users: int, core: Any, keep_level: Any, sides: float) -> Any:
    """κ of the weighted mean, as ``mean_sensitivity``, of numbers in range that may be traced.

    Args:
        num_users: n.
        core: an integer, at least θ n, below n; arrays of one shape are taken entry by entry.
        keep_level: θ in (1/2, 1).
        sides: on how many sides the replaced vector can have a weight.
    """
    xp, (core, keep) = as_floats(core, keep_level)
    shared, ramp = num_users - 1, (keep - 0.5) * num_users
    # The weight times the reach is a parabola in the degree up to θ n, and falls after it.
    vertex = 0.25 * num_users + 0.5 + 0.25 * (6.0 * shared - 2.0 * core)
    kept = 0.5 * num_users + ramp
    degrees = xp.stack([xp.floor(vertex), xp.ceil(vertex), xp.floor(kept), xp.ceil(kept)])
    degrees = xp.clip(degrees, num_users // 2 + 1, num_users)
    weights = xp.clip((degrees - 0.5 * num_users) / ramp, 0.0, 1.0)
    moved = xp.max(weights * _reach(degrees - 1.0, shared, core, xp), axis=0)
    unmoved = (shared - core) / ramp * _reach(0.5 * (num_users - 1.0), shared, core, xp)
    return _rounding(xp, keep) * steepness(keep) * (sides * moved + unmoved) / core


def coupled_shift(num_users: int, core: Any, keep_level: Any, most: Any, sides: float) -> Any:
    """κ of the random mean where ``most`` coins differ, of numbers in range that may be traced."""
    xp, (core, keep, most) = as_floats(core, keep_level, most)
    reach = _reach(0.5 * (num_users - 1.0), num_users - 1, core, xp)
    return _rounding(xp, keep) * (sides + most) * reach / core


def vectors_of_one_user(relation: NeighboringRelation) -> float:
    """On how many sides the replaced vector can have a weight."""
    return 2.0 if relation is REPLACE_ONE else 1.0


def differing_coins(mean: Any, failure: Any) -> Any:
    """K such that independent coins of this total probability show more than k with at most ``failure``.

    By the Chernoff bound P(X >= k) <= e^(k - M) (M/k)^k for k >= M, which holds for every sum of
    independent coins with mean at most M.

    Args:
        mean: M, may be traced.
        failure: may be traced.

    Returns:
        An integer as a float; ``inf`` where it is above M by more than some thousands.
    """
    xp, (mean, failure) = as_floats(mean, failure)
    some = xp.where(mean > 0, mean, 1.0)
    counts = xp.ceil(some) + np.arange(_MOST_COINS, dtype=mean.dtype)
    fall = counts * xp.log(some / counts)
    rounding = 8.0 * xp.finfo(mean.dtype).eps * (counts + xp.abs(fall))
    enough = counts - some + fall + rounding <= xp.log(failure)
    count = xp.where(xp.any(enough), counts[xp.argmax(enough)], xp.inf)
    return xp.where(mean > 0, count - 1.0, 0.0)


def _rounding(xp: ModuleType, keep: Any) -> Any:
    """What the arithmetic may have taken off: most where θ - 1/2 cancels."""
    eps = float(xp.finfo(keep.dtype).eps)
    return 1.0 + xp.maximum(1e-12, 8.0 * eps * (1.0 + 1.0 / (keep - 0.5)))


def _reach(neighbours: Any, shared: int, core: Any, xp: ModuleType) -> Any:
    """ψ(a): how far an inlier with a shared vectors near it can be from a mean that holds the core."""
    return (6.0 * shared - 2.0 * core - 2.0 * xp.minimum(neighbours, core)) / shared


def _check(
    num_users: int, level: SupportsFloat, keep_level: SupportsFloat, relation: NeighboringRelation
) -> tuple[int, float, float]:
    require_relation("relation", relation, RELATIONS)
    require_integer("num_users", num_users, 2)
    require_within("keep_level", keep_level, 0.5, 1.0, open_low=True, open_high=True)
    require_within("level", level, float(keep_level) * num_users, num_users - 1.0)
    return num_users - 1, float(level), (float(keep_level) - 0.5) * num_users
