"""What a report shows and saves, kept for those who put it on a page.

Inside ``with collecting() as found:`` every table that ``report.show`` prints and every figure that
``figures.save`` writes is noted in ``found``, in order; outside nothing is.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple


class Shown(NamedTuple):
    """A table as it was printed.

    Attributes:
        title: above it, perhaps empty.
        headings: of its columns.
        rows: the texts of its cells.
        numeric: for each column, whether it holds numbers.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]


@dataclasses.dataclass
class Collected:
    """What has been shown and saved.

    Attributes:
        tables: in the order in which they were shown.
        figures: the SVG files, in the order in which they were saved.
    """

    tables: list[Shown] = dataclasses.field(default_factory=list)
    figures: list[Path] = dataclasses.field(default_factory=list)


_COLLECTED: ContextVar[Collected | None] = ContextVar("collected", default=None)


@contextmanager
def collecting() -> Iterator[Collected]:
    """Notes what is shown and saved inside the ``with``."""
    found = Collected()
    token = _COLLECTED.set(found)
    try:
        yield found
    finally:
        _COLLECTED.reset(token)


def note(shown: Shown | Path) -> None:
    """Notes a table or a figure's SVG file, if anybody is collecting."""
    found = _COLLECTED.get()
    if found is None:
        return
    if isinstance(shown, Path):
        found.figures.append(shown)
    else:
        found.tables.append(shown)
