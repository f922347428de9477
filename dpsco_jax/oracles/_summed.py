"""Oracles that are a sum over users, in the parts that a loop over users needs; and their estimate.

``SumOracle`` draws a sample, adds up a function of chunks of users, and returns the sum in two parts: the
float next to it, and what that lacks, the remainder. All users are at hand in its own loop (``chunks``);
``streamed`` has another, over users who are read in blocks, with the same parts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dpsco_jax import _compensated, _sharding
from dpsco_jax.geometry import clipping
from dpsco_jax.oracles import Estimate
from dpsco_jax.oracles.chunks import split_sum_over_users
from dpsco_jax.oracles.sampling import Draw, UserSample


class Parts(NamedTuple):
    """What is added up in one estimate.

    Attributes:
        chunk_sum: as of ``chunks.sum_over_users``; returns a sum and a number of gradients.
        at_once: users in a chunk.
        finish: of the whole sum, in two parts; the sum itself by default.
    """

    chunk_sum: Callable[[Any, jax.Array, jax.Array], Any]
    at_once: int
    finish: Callable[[Any], Any] = lambda total: total


@dataclasses.dataclass(frozen=True)
class SumOracle:
    """An oracle that returns the sum of ``chunk_sum`` over a sample of users.

    Attributes:
        sampler: draws the users of a step; all if ``None``.
        clip_norm: to which each user's share is clipped; a number, or a tree of them.
        keys: of the key of a step, that of the sample and that of whatever else is drawn.
        parts: ``parts(key, params, data, sample)``, with the second of these keys. It looks at the shapes of
            data and sample only, of all users: ``_compensated.room`` pays for them.
    """

    sampler: Callable[[jax.Array], UserSample] | None
    clip_norm: Any
    keys: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    parts: Callable[[jax.Array, Any, Any, UserSample | None], Parts]

    def __call__(self, key: jax.Array, params: Any, data: Any) -> Estimate:
        """The estimate at a point."""
        return _of_all(self, key, params, data)


@functools.partial(_sharding.automatic, data="data")
def _of_all(oracle: SumOracle, key: jax.Array, params: Any, data: Any) -> Estimate:
    sample_key, other_key = oracle.keys(key)
    sample = None if oracle.sampler is None else oracle.sampler(sample_key)
    parts = oracle.parts(other_key, params, data, sample)
    total, count = split_sum_over_users(parts.chunk_sum, data, sample, parts.at_once)
    return summed(parts.finish(total), count, oracle.clip_norm, sample)


def two_keys(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """That of the sample and that of whatever else is drawn."""
    sample_key, other_key = jax.random.split(key)
    return sample_key, other_key


def summed(
    total: Any, num_gradients: jax.Array, clip_norm: Any, sample: UserSample | None = None
) -> Estimate:
    """The estimate of a sum that ``chunks.split_sum_over_users`` returns, with what a release compares.

    Args:
        total: the sum, in two parts.
        num_gradients: that entered it.
        clip_norm: of each user's share; a number, or a tree of them.
        sample: of the users; ``None`` for all of those who were handed over.
    """
    # Behind the barrier there is one array: computed twice it could differ in a bit from its own checksum.
    gradient = jax.lax.optimization_barrier(_compensated.rounded(total))
    extra_args = {
        "remainder": _compensated.remainder(total),
        "clipped_to": clipping.joint_bound(clip_norm),
        "checksum": _compensated.checksum(gradient),
    }
    return Estimate(gradient, extra_args | drawn_by(sample), num_gradients)


def drawn_by(sample: UserSample | None) -> dict[str, Draw]:
    """What an estimate says of the draw of its users: nothing, where the law of the draw is not known."""
    return {} if sample is None or sample.draw is None else {"draw": sample.draw}
