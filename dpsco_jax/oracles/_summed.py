"""The estimate of a sum in two parts: the float next to it, and what that lacks, the remainder."""

from typing import Any

import jax

from dpsco_jax import _sums
from dpsco_jax.oracles import Estimate


def summed(total: Any, num_gradients: jax.Array) -> Estimate:
    """The estimate of a sum that ``chunks.split_sum_over_users`` returns."""
    return Estimate(_sums.rounded(total), {"remainder": _sums.remainder(total)}, num_gradients)
