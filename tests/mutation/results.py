"""The file of results of ``python -m tests.mutation``, and the table of them."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from tests.mutation import Fault

Row = dict[str, Any]


class Book:
    """The file of results: rows of faults by name, and of tests without a fault, of this tree, by test."""

    def __init__(self, path: pathlib.Path, tree: str):
        self.path, self.tree = path, tree
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.faults = {row["name"]: row for row in rows if "name" in row}
        self.clean = {
            row["clean"]: row for row in rows if row.get("tree") == tree and "clean" in row
        }

    def add(self, row: Row) -> None:
        row["tree"] = self.tree
        if "clean" in row:
            self.clean[row["clean"]] = row
        else:
            self.faults[row["name"]] = row
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def table(faults: Sequence[Fault], results: dict[str, Row]) -> str:
    """The results as Markdown, in the order of the list."""
    rows = [results[fault.name] for fault in faults if fault.name in results]
    killed = sum(row["result"] == "killed" for row in rows)
    lines = [
        f"{killed} of {len(rows)} faults are noticed ({100 * killed / max(len(rows), 1):.1f} %).",
        "",
        "| fault | file | noticed by |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        by = row["by"].removeprefix("tests/") if row["result"] == "killed" else row["result"]
        lines.append(f"| {row['name']} | `{row['file']}` | {by} |")
    left = [fault.name for fault in faults if fault.name not in results]
    return "\n".join(
        [*lines, *(["", f"Not run yet ({len(left)}): {'; '.join(left)}."] if left else [])]
    )
