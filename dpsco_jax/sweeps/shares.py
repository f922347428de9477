"""Shares of an experiment: its cells dealt out by hash, for runs that cannot see each other.

Guarantee: each cell is in exactly one of the shares ``1/n`` to ``n/n``, the same on every machine and in
every process, whatever other cells there are: the share is the cell's identity modulo ``n``.

Cost: one division for each cell.
"""

import dataclasses
import re

from dpsco_jax._checks import require, require_count, require_instance
from dpsco_jax.sweeps.cells import Cell

_TEXT = re.compile(r"([0-9]{1,18})/([0-9]{1,18})", flags=re.ASCII)
_RANGE = "I/N with 1 <= I <= N, such as 3/8"


@dataclasses.dataclass(frozen=True)
class Share:
    """Share ``number`` of ``total``, counted from 1.

    Example:
        >>> from dpsco_jax.sweeps.shares import Share
        >>> Share(3, 8).total
        8
    """

    number: int
    total: int

    def __post_init__(self) -> None:
        require_count("total", self.total)
        require_count("number", self.number)
        require(self.number <= self.total, "number", self.number, f"from 1 to {self.total}")

    def has(self, cell: Cell) -> bool:
        """Whether the cell is in this share."""
        require_instance("cell", cell, Cell)
        return int(cell.id, 16) % self.total == self.number - 1


def parse(share: str) -> Share:
    """A share from a text."""
    found = _TEXT.fullmatch(share) if isinstance(share, str) else None
    require(found is not None, "share", share, _RANGE)
    assert found is not None
    number, total = int(found[1]), int(found[2])
    require(1 <= number <= total, "share", share, _RANGE)
    return Share(number, total)
