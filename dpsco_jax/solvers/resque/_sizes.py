"""How large the localized calls of a private call are: numbers, so that several sizes share a program."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, padded, pytree, static
from dpsco_jax.oracles import sampling


class Level(NamedTuple):
    """One localized call of a strongly convex one.

    Attributes:
        num_queries: its T.
        beta_factor: its β over that of the whole call; at least 1.
    """

    num_queries: int
    beta_factor: float


def levels(num_queries: int) -> tuple[Level, ...]:
    """The localized calls of a strongly convex one of T queries; their sizes add up to less than T.

    There are k = ⌈log2 log2 T⌉ of them, for i = 0, ..., k - 1, with T_i = 2^(i-k)·T queries and β_i =
    2^((k-i)/2)·β. The first have the largest β: an accountant must see every level.

    Raises:
        ValueError: if ``num_queries`` is not a power of two, at least 4.
    """
    if num_queries < 4 or num_queries & (num_queries - 1):
        raise ValueError(f"num_queries must be a power of two, at least 4, got {num_queries}")
    count = max(1, math.ceil(math.log2(math.log2(num_queries))))
    return tuple(Level(num_queries >> (count - i), 2.0 ** ((count - i) / 2)) for i in range(count))


@pytree
class Sizes:
    """The localized calls of a call, one level after the other, with sizes that may be numbers.

    Of a run in a program of its own they are Python integers and arrays of NumPy. Of several runs in one
    program arrays have the room of the largest call; what lies beyond a run's own sizes is not looked at.

    Attributes:
        most_drawn: users of the largest call.
        replacement: whether a user may be drawn several times in a call.
        shuffled: whether a level takes more than half of its users, so that their order has to be drawn too.
        batch: the draw of a level; ``None`` with replacement, or if everybody is drawn.
        num_users: n.
        num_drawn: users of the call.
        num_phases: of all levels together.
        drawn: users of each level, ``[levels]``, one less than its queries.
        beta_factor: of each level.
        inverse_root: 1/√T of each level.
        phase_level: the level of each phase, ``[phases]``.
        phase_count: how many queries it has.
        phase_scale: its step size over that of its level.
    """

    most_drawn: int = static(joined=max)
    replacement: bool = static()
    shuffled: bool = static()
    batch: sampling.Batch | None
    num_users: Number
    num_drawn: Number
    num_phases: Number
    drawn: Number = padded()
    beta_factor: Number = padded()
    inverse_root: Number = padded()
    phase_level: Number = padded()
    phase_count: Number = padded()
    phase_scale: Number = padded()

    @property
    def levels(self) -> tuple[Level, ...]:
        """The localized calls."""
        return tuple(map(Level, self.drawn + 1.0, self.beta_factor))


def sizes_of(num_users: int, calls: Sequence[Level], replacement: bool) -> Sizes:
    """The sizes of localized calls on so many users.

    Raises:
        ValueError: if a level needs more different users than there are.
    """
    drawn = [level.num_queries - 1 for level in calls]
    most = max(drawn)
    if not replacement:
        _checks.require(most <= num_users, "num_queries", most + 1, f"at most {num_users + 1}")
    # Phase j = 1, 2, ... of a level has T/2^j queries, and steps 4^-j times as long.
    phases = [
        (i, level.num_queries >> j, 0.25**j)
        for i, level in enumerate(calls)
        for j in range(1, level.num_queries.bit_length())
    ]
    of_level, counts, scales = zip(*phases, strict=True)
    some = not replacement and most < num_users
    return Sizes(
        most_drawn=sum(drawn),
        replacement=replacement,
        shuffled=not replacement and 2 * most > num_users,
        batch=sampling.batch_of(num_users, most) if some else None,
        num_users=num_users,
        num_drawn=sum(drawn),
        num_phases=len(phases),
        drawn=np.asarray(drawn, np.int32),
        beta_factor=np.asarray([level.beta_factor for level in calls]),
        inverse_root=np.asarray([1.0 / math.sqrt(level.num_queries) for level in calls]),
        phase_level=np.asarray(of_level, np.int32),
        phase_count=np.asarray(counts, np.int32),
        phase_scale=np.asarray(scales),
    )
