"""What was released and at what cost, as a value that prints: ``report()`` of an estimator.

What it computes: rows of names and texts, in sections, from what a fitted estimator holds. Nothing is
computed from data, which an estimator does not keep.

Formal guarantee: everything in a report is declared, follows from public sizes, or is part of what was
released: the report is as public as the fitted estimator. The seed is never in it.

Example:
    >>> from dpsco_jax.estimators import Report
    >>> print(Report("a fit", (("cost", (("epsilon", "1"), ("delta", "1e-06"))),)))
    a fit
      cost
        epsilon  1
        delta    1e-06
"""

import dataclasses
from typing import Any

from dpsco_jax import privacy
from dpsco_jax._checks import require, require_choice, require_given, require_instance

Row = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Report:
    """What was released, at what cost.

    Attributes:
        title: the first line.
        sections: (heading, rows) in order; a row is (name, text).
        certificate: the guarantee that the section on cost states.
    """

    title: str
    sections: tuple[tuple[str, tuple[Row, ...]], ...]
    certificate: privacy.Certificate | None = None

    def __post_init__(self) -> None:
        require_instance("title", self.title, str)
        require_given(_require_certificate, certificate=self.certificate)
        pairs = isinstance(self.sections, tuple) and all(map(_is_section, self.sections))
        require(pairs, "sections", self.sections, "a tuple of (heading, ((name, text), ...))")

    def __str__(self) -> str:
        width = max((len(name) for _, rows in self.sections for name, _ in rows), default=0)
        lines = [self.title]
        for heading, rows in self.sections:
            lines.append(f"  {heading}")
            lines += [f"    {name:<{width}}  {text}" for name, text in rows]
        return "\n".join(lines)

    def section(self, heading: str) -> dict[str, str]:
        """The rows of a section, by name.

        Args:
            heading: of the section.

        Raises:
            ValueError: if there is no such section.
        """
        headings = [found for found, _ in self.sections]
        require_choice("heading", heading, headings)
        return dict(self.sections[headings.index(heading)][1])


def _is_section(value: Any) -> bool:
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)):
        return False
    rows = value[1]
    return isinstance(rows, tuple) and all(
        isinstance(row, tuple) and len(row) == 2 and all(isinstance(text, str) for text in row)
        for row in rows
    )


def _require_certificate(name: str, value: Any) -> None:
    require_instance(name, value, privacy.Certificate)
