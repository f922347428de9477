"""How benchmarks are shown and kept: a table for the eye, Markdown or JSON for a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments.benchmarks.roofline import share_of_peak
from experiments.benchmarks.timing import Row

HEADER = ("work", "ours", "cost", "peer", "cost", "ratio", "target", "of peak", "note")


def cost(value: float, unit: str) -> str:
    """A cost in three digits, seconds in the unit that suits them."""
    if unit != "s":
        return f"{value:.3g} {unit}"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def cells(row: Row) -> tuple[str, ...]:
    """The texts of one comparison, in the order of ``HEADER``."""
    share = share_of_peak(row.moved, row.our_cost) if row.unit == "s" else None
    return (
        row.work,
        row.ours,
        cost(row.our_cost, row.unit),
        row.peer,
        cost(row.peer_cost, row.unit),
        f"{row.ratio:,.2f}" if row.ratio < 100 else f"{row.ratio:,.0f}",
        "" if row.target is None else f"{row.target:.3g}",
        "" if share is None else f"{100 * share:.3g} %",
        row.note,
    )


def table(title: str, rows: Sequence[Row]) -> Table:
    """For a terminal; ratios below their targets in red."""
    shown = Table(*HEADER, title=title)
    for row in rows:
        texts = list(cells(row))
        if row.missed:
            texts[5] = f"[red]{texts[5]}[/]"
        shown.add_row(*texts)
    return shown


def write(
    path: Path,
    about: Mapping[str, str],
    found: Mapping[str, Sequence[Row]],
    failed: Mapping[str, str],
) -> None:
    """All suites so far, as JSON if the file is called so, else as Markdown.

    Args:
        path: of the file, which is replaced.
        about: device and versions.
        found: the rows of every suite that ended.
        failed: what went wrong in the others.
    """
    text = (
        _as_json(about, found, failed)
        if path.suffix == ".json"
        else _as_markdown(about, found, failed)
    )
    path.write_text(text, encoding="utf-8")


def _as_json(about: Any, found: Any, failed: Any) -> str:
    suites = {
        name: [
            {
                **row._asdict(),
                "ratio": row.ratio,
                "missed": row.missed,
                "share_of_peak": share_of_peak(row.moved, row.our_cost)
                if row.unit == "s"
                else None,
            }
            for row in rows
        ]
        for name, rows in found.items()
    }
    whole = {"about": dict(about), "suites": suites, "failed": dict(failed)}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _as_markdown(about: Any, found: Any, failed: Any) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in about.items()), ""]
    for name, rows in found.items():
        lines += [f"## {name}", "", _line(HEADER), _line(["---"] * len(HEADER))]
        lines += [*(_line(cells(row)) for row in rows), ""]
    lines += [f"{name} failed: {why}" for name, why in failed.items()]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
