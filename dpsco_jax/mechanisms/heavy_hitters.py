"""Heavy hitters under element-level privacy: how many users have an item, for all items at once.

What it computes: for pairs (user, item) in any order, the number of distinct users of every item plus
Gaussian noise, and how many pairs of items a noisy release puts in the wrong order.

Source: E (7), (8), Lemma 3.1. Corrected where docs/corrections.md says so: neither noise nor sensitivity
rests on users with the same number of items, of whom no two would be neighbours (N7); the user-level
sensitivity is √min(2m, d), not √m (N6); the loss counts wrong orders, not right ones (N8).

Formal guarantee: a unit is a pair (user, item); neighbours differ in one, which is there in one data set and
not in the other (REPLACE_ONE over units). One such pair moves one count by at most 1 and no other: ℓ2
sensitivity exactly 1, whatever else users have and however often they repeat a pair. ``heavy_hitter_loss`` is
that of a Gaussian of this sensitivity. Pairs whose user or item is out of range count as none. A user with k
items is k units: what protects the whole user is the k-fold, see ``user_level_sensitivity``.

Cost: one sort of the pairs and ``[num_items]`` numbers: no matrix of users and items is formed.

Example:
    >>> import jax, numpy as np
    >>> users, items = np.array([0, 0, 1, 1]), np.array([2, 2, 2, 0])
    >>> heavy_hitter_counts(jax.random.key(0), users, items, 2, 3, stddev=0.0)
    Array([1., 0., 2.], dtype=float32)
"""

import math
from typing import SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Integer

from dpsco_jax import privacy
from dpsco_jax._checks import (
    require,
    require_count,
    require_finite,
    require_multiplier,
    require_nonnegative,
    require_real,
)
from dpsco_jax._given import inside
from dpsco_jax.mechanisms import _sparse_counts, additive

_SENSITIVITY = 1.0


def heavy_hitter_counts(
    key: jax.Array,
    users: Integer[Array | np.ndarray, "pairs"],
    items: Integer[Array | np.ndarray, "pairs"],
    num_users: int,
    num_items: int,
    stddev: ArrayLike,
) -> Float[Array, "{num_items}"]:
    """The number of users of each item, with noise; costs ``heavy_hitter_loss(stddev)`` under REPLACE_ONE.

    Args:
        key: a typed key, used up.
        users: of every pair; one outside [0, num_users) makes the pair count as none.
        items: of every pair; one outside [0, num_items) makes the pair count as none. Pairs that repeat count
            once.
        num_users: n, public, below 2^24.
        num_items: d, public.
        stddev: of the noise on a count, nonnegative; may be traced.
    """
    num_users, num_items = (
        require_count("num_users", num_users),
        require_count("num_items", num_items),
    )
    require(num_users < 2**24, "num_users", num_users, "below 2^24, so that counts are exact")
    require_nonnegative("stddev", stddev)
    _sparse_counts.require_pairs(users, items)
    user = inside(users, num_users)
    item = inside(items, num_items)
    # Equal pairs are alike: the memory of a stable sort would buy nothing.
    user, item = jax.lax.sort((user, item), num_keys=2, is_stable=False)
    first = _sparse_counts.changes(user) | _sparse_counts.changes(item)
    first &= user < num_users
    counts = jax.ops.segment_sum(first.astype(jnp.int32), item, num_items + 1)[:num_items]
    return additive.gaussian(key, counts.astype(float), stddev)


def heavy_hitter_loss(stddev: ArrayLike) -> privacy.PrivacyLoss:
    """What one ``heavy_hitter_counts`` costs for elements under REPLACE_ONE; ``stddev`` may be traced.

    On the host, ``privacy.certificate(privacy.events.gaussian(stddev), delta, REPLACE_ONE)`` is the tightest.

    Args:
        stddev: of the noise on a count, nonnegative. No noise costs ``inf``.
    """
    require_multiplier("stddev", stddev)
    return additive.gaussian_loss(stddev, _SENSITIVITY)


def user_level_sensitivity(items_per_user: int, num_items: int) -> float:
    """√min(2m, d): how far the counts move in ℓ2 if all of a user's items are replaced.

    It needs what ``heavy_hitter_counts`` does not ask for: that no user has more than m distinct items, which
    the caller must enforce. Two such users differ in at most 2m items, and in no more than there are.

    Args:
        items_per_user: m, the largest number of distinct items of a user, public.
        num_items: d.
    """
    most = 2 * require_count("items_per_user", items_per_user)
    return math.sqrt(min(most, require_count("num_items", num_items)))


def ordering_loss(
    noisy: Float[Array | np.ndarray, "items"],
    probabilities: Float[Array | np.ndarray, "items"],
    gap: SupportsFloat,
) -> int:
    """The number of pairs of items with p_j - p_l >= gap of which the noisy numbers say H_j < H_l.

    A diagnostic for whoever knows the probabilities: nothing private is released by it.

    Args:
        noisy: what was released, finite.
        probabilities: true ones, in any order, finite.
        gap: γ > 0: the least difference that should be seen.

    Returns:
        E (8) without the expectation, with the inequality the right way round. Computed on the host by
        counting in sorted blocks: d·log²d steps and d numbers of memory.
    """
    for name, value in (("noisy", noisy), ("probabilities", probabilities)):
        require_finite(name, value)
        require(np.ndim(value) == 1, name, value, "an array of one dimension")
    same = np.shape(noisy) == np.shape(probabilities)
    require(same, "noisy", np.shape(noisy), f"of the shape {np.shape(probabilities)}")
    gap = require_real("gap", gap, 0.0)
    released, truth = np.asarray(noisy, np.float64), np.asarray(probabilities, np.float64)
    order = np.argsort(truth, kind="stable")
    rank = np.unique(released, return_inverse=True)[1][order].astype(np.int64)
    return _larger_before(rank, _num_below(truth[order], gap))


def _num_below(ascending: np.ndarray, gap: float) -> np.ndarray:
    """How many numbers each one exceeds by at least the gap, by the difference as it is rounded."""
    distinct, place, times = np.unique(ascending, return_inverse=True, return_counts=True)
    count = np.searchsorted(distinct, distinct - gap, side="right")
    for _ in range(2):  # the difference and the sum may be rounded to either side
        more = (count < len(distinct)) & (
            distinct - distinct[np.minimum(count, len(distinct) - 1)] >= gap
        )
        count = count + more
        less = (count > 0) & (distinct - distinct[np.maximum(count - 1, 0)] < gap)
        count = count - less
    return np.concatenate([[0], np.cumsum(times)])[count][place]


def _larger_before(rank: np.ndarray, prefix: np.ndarray) -> int:
    """Σ_j of how many of the first ``prefix[j]`` ranks are above ``rank[j]``.

    A prefix is a union of blocks of sizes 2^b, one for each bit of its length; blocks of one size are sorted
    together, and one binary search in all of them counts.
    """
    total, base = 0, len(rank) + 1
    place = np.arange(len(rank))
    for bit in range(int(prefix.max(initial=0)).bit_length()):
        block = place >> bit
        ordered = np.sort(block * base + rank)
        asked = (prefix >> bit) & 1 == 1
        its = (prefix[asked] >> bit) - 1
        upto = np.searchsorted(ordered, its * base + rank[asked], side="right")
        total += int(np.sum(((its + 1) << bit) - upto))
    return total
