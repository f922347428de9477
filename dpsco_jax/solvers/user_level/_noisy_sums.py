"""A sum over users under Gaussian noise, as their mean, with the noise's size and its cost.

The sensitivity is the one that ``transforms.summed_contributions`` proves for terms of a bounded norm under
REPLACE_ONE. The bound may be a function of what was released before.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpsco_jax import privacy, transforms


class Release(NamedTuple):
    """What was released.

    Attributes:
        mean: of the users' terms, with noise.
        stddev: of the noise on each number of the mean.
        loss: what it cost.
    """

    mean: Array
    stddev: Any
    loss: privacy.PrivacyLoss


def released(
    key: jax.Array, num_users: int, total: Array, bound: Any, multiplier: Any, nonnegative: bool
) -> Release:
    """The mean of terms from their sum.

    Args:
        key: of the noise; used once.
        num_users: N.
        total: the sum over users.
        bound: on the norm of a term, as the sum was made.
        multiplier: σ over the sensitivity.
        nonnegative: whether no two terms have a negative product: the sensitivity is then √2 times the
            bound instead of twice the bound.
    """
    aggregate = transforms.summed_contributions(bound, num_users, nonnegative=nonnegative)
    release = transforms.privatize(aggregate, key, multiplier)
    mean, state = release.update(total, release.init(jnp.zeros_like(total)), clipped_to=bound)
    return Release(mean, multiplier * aggregate.sensitivity, privacy.privacy_spent(state))
