"""The distribution of a categorical item, from users with many items each.

What it computes: each user's frequencies over k categories, their private mean, and its projection onto the
simplex if wanted.

Source: L Corollary 1 applied to one-hot items (the paper has no algorithm of its own for this).

Formal guarantee: that of ``winsorized_mean``, under REPLACE_ONE: a user's frequencies are a function of that
user's items alone; the projection is post-processing. Utility: E‖p̂ - p‖² is (1 - ‖p‖²)/(mn) plus the noise
variance of the releases, while no row is clipped; the projection only brings it nearer to p.

Cost: users × categories numbers, and those of the mean.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpsco_jax._checks import (
    require_count,
    require_each,
    require_flag,
    require_integer,
    require_integers,
    require_mask,
    require_number,
    require_real,
)
from dpsco_jax._given import inside
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms.winsorized.winsorized_mean import winsorized_mean
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases


def frequencies(
    categories: Int[Array | np.ndarray, "users items"],
    num_categories: int,
    mask: Bool[Array | np.ndarray, "users items"] | None = None,
) -> Float[Array, "users {num_categories}"]:
    """Each user's share of items in each category; zeros for a user without items.

    Args:
        categories: of every item; one outside [0, num_categories) counts as no item.
        num_categories: k.
        mask: which items are there, booleans; all if left out.
    """
    num_categories = require_integer("num_categories", num_categories, 1)
    require_integers("categories", categories)
    if mask is not None:
        mask = require_mask("mask", mask, categories.shape)
    place = inside(categories, num_categories)
    if mask is not None:
        place = jnp.where(mask, place, num_categories)
    counts = jax.vmap(lambda row: jnp.bincount(row, length=num_categories + 1))(place)
    total = jnp.maximum(jnp.sum(place < num_categories, axis=1), 1)
    return counts[:, :num_categories].astype(float) / total[:, None]


def frequency_radius(items_per_user: int, num_users: int, failure: float) -> float:
    """(1 + √ln(n/γ))/√m: all users' frequencies lie within it of the distribution, but for γ.

    McDiarmid's inequality: E‖p̂_u - p‖ <= 1/√m, and exchanging one item moves it by √2/m.

    Args:
        items_per_user: m ≥ 1.
        num_users: n ≥ 1.
        failure: γ in (0, 1).
    """
    require_each(require_count, items_per_user=items_per_user, num_users=num_users)
    failure = require_real("failure", failure, 0.0, 1.0)
    return (1 + math.sqrt(math.log(num_users / failure))) / math.sqrt(items_per_user)


def user_level_histogram(
    key: jax.Array,
    rows: Float[Array | np.ndarray, "users categories"],
    releases: WinsorizedReleases,
    project: bool = True,
) -> Float[Array, "categories"]:
    """The private mean of users' frequencies; costs ``releases.query_loss()`` under REPLACE_ONE.

    Args:
        key: a typed key, used up.
        rows: of ``frequencies``.
        releases: of ``calibrate_winsorized`` with ``bound=1`` (frequencies have no larger norm) and a radius
            such as ``frequency_radius``.
        project: whether to return the nearest distribution, or the noisy mean as it is.
    """
    require_flag("project", project)
    require_number("rows", rows, "an array of real numbers")
    mean = winsorized_mean(key, rows, releases)
    return domains.simplex().project(mean) if project else mean
