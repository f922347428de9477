"""Which tests of a room notice which of its faults, and the fewest that notice them all.

The faults of a room are those in its files; its tests are its folder under ``tests/`` and what its faults
name. Every fault is run once against all of these tests, to the end. Of the answers a cover is taken, test by
test: next is the one that notices most further faults for a second of processor time. A test outside of the
cover notices no fault alone. That makes it a candidate to go and no more: audits, goldens, contracts,
refusals, closed forms and documented examples show what no fault of the list stands for.
"""

import json
import pathlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.mutation import Fault
from tests.mutation.fork_server import FAILED, PASSED, Run

Row = dict[str, Any]


class Cover(NamedTuple):
    """The fewest tests, greedily: each with the faults that it adds; and those that nothing notices."""

    chosen: dict[str, list[str]]
    alone: dict[str, list[str]]  # faults that only this test notices
    unseen: list[str]


def function(test: str) -> str:
    """A test without its parameters: the unit that is kept or goes."""
    return test.split("[")[0]


def of_room(
    faults: Iterable[Fault], room: str, root: pathlib.Path
) -> tuple[list[Fault], list[str]]:
    """The faults in files of a room, and the tests that are to notice them."""
    found = [fault for fault in faults if fault.file.split("/")[0].removesuffix(".py") == room]
    folder = [f"tests/{room}"] if (root / "tests" / room).is_dir() else []
    named = {test.split("::")[0] for fault in found for test in fault.tests}
    others = sorted(test for test in named if not test.startswith(f"tests/{room}/"))
    if not found:
        rooms = sorted({fault.file.split("/")[0].removesuffix(".py") for fault in faults})
        raise ValueError(f"--cover: no fault in room {room!r}, only in {', '.join(rooms)}")
    return found, folder + others


def noticed(fault: Fault, text: str, clean: pathlib.Path, tests: Sequence[str], run: Any) -> Row:
    """All tests that fail with the fault in its file: ``status`` says how the run ended."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder).resolve() / "tree"
        shutil.copytree(clean, tree, ignore=shutil.ignore_patterns("__pycache__"))
        (tree / "dpsco_jax" / fault.file).write_text(text)
        found: Run = run(tree, "\n".join(tests))
    return {"name": fault.name, "status": found.status, "failures": list(found.failures)}


def cover(seen: Mapping[str, Iterable[str]], cost: Mapping[str, float]) -> Cover:
    """A greedy set cover: of each fault the tests that notice it, of each test its seconds."""
    by_test: dict[str, set[str]] = defaultdict(set)
    alone: dict[str, list[str]] = defaultdict(list)
    for fault, tests in seen.items():
        names = {function(test) for test in tests}
        for name in names:
            by_test[name].add(fault)
        if len(names) == 1:
            alone[names.pop()].append(fault)
    left = {fault for faults in by_test.values() for fault in faults}
    chosen: dict[str, list[str]] = {}
    while left:
        best = max(
            sorted(by_test),
            key=lambda name: len(by_test[name] & left) / (0.01 + cost.get(name, 0.0)),
        )
        chosen[best] = sorted(by_test[best] & left)
        left -= by_test[best]
    return Cover(chosen, dict(alone), [fault for fault in seen if not seen[fault]])


def report(rows: Sequence[Row], cost: Mapping[str, float]) -> str:
    """The cover as Markdown, and which tests are not in it, the dearest first."""
    ended = [row for row in rows if row["status"] in (PASSED, FAILED)]
    by_function: dict[str, float] = defaultdict(float)
    for test, seconds in cost.items():
        by_function[function(test)] += seconds
    found = cover({row["name"]: row["failures"] for row in ended}, by_function)
    lines = [
        f"{len(found.chosen)} of {len(by_function)} tests notice all "
        f"{len(ended) - len(found.unseen)} faults that any of them notices.",
        "",
        "| test | seconds | faults that it adds | that it notices alone |",
        "| --- | --- | --- | --- |",
    ]
    for name, faults in found.chosen.items():
        alone = len(found.alone.get(name, ()))
        lines.append(f"| {name} | {by_function[name]:.1f} | {'; '.join(faults)} | {alone} |")
    others = sorted(set(by_function) - set(found.chosen), key=lambda name: -by_function[name])
    seconds = sum(by_function[name] for name in others)
    lines += ["", f"Outside of the cover: {len(others)} tests, {seconds:.0f} seconds."]
    lines += [f"- {name} ({by_function[name]:.1f} s)" for name in others]
    lines += ["", f"Noticed by no test of the room: {'; '.join(found.unseen) or 'none'}."]
    broken = [f"{row['name']} ({row['status']})" for row in rows if row not in ended]
    lines += [f"Runs that did not come to an end: {'; '.join(broken) or 'none'}."]
    return "\n".join(lines)


class Answers:
    """The file of answers, a JSON line a fault; those of another tree or other tests do not count."""

    def __init__(self, path: pathlib.Path, tree: str, tests: Sequence[str]):
        self.path, self.stamp = path, {"tree": tree, "tests": list(tests)}
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [row for row in map(json.loads, lines) if row["stamp"] == self.stamp]
        self.clean = next((row["clean"] for row in rows if "clean" in row), None)
        self.rows = {row["name"]: row for row in rows if "name" in row}

    def add(self, row: Row) -> None:
        if "clean" in row:
            self.clean = row["clean"]
        else:
            self.rows[row["name"]] = row
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row | {"stamp": self.stamp}) + "\n")
