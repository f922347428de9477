"""Plants the faults of ``tests.mutation`` one by one and says which of them the tests notice.

    python -m tests.mutation                   all faults that have no result yet
    python -m tests.mutation --only "blocks"   those whose name contains the text, again if they had one
    python -m tests.mutation --report          the table of the results so far, for docs/privacy/auditing.md

Results go to a file of JSON lines, one a fault, so that a run that was stopped goes on where it was. The tree
is copied to a temporary folder: the checkout is not touched. The tests named for a fault are run one after
another until one fails; tests that pick nothing up or cannot be collected are errors of the list, no kills.
Without a fault all of them must pass, which is for the suite to show first.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from tests.mutation import Fault
from tests.mutation.faults_mended import FAULTS as MENDED
from tests.mutation.faults_privacy import FAULTS as PRIVACY
from tests.mutation.faults_releases import FAULTS as RELEASES
from tests.mutation.faults_solvers import FAULTS as SOLVERS

ROOT = pathlib.Path(__file__).parents[2]
FAULTS: tuple[Fault, ...] = (*SOLVERS, *PRIVACY, *RELEASES, *MENDED)
_TESTS_FAILED = 1  # exit statuses of pytest
_PASSED = 0


def text_with(fault: Fault) -> str:
    """The file with the fault in it.

    Raises:
        ValueError: unless the text that is replaced occurs exactly once.
    """
    text = (ROOT / "dpsco_jax" / fault.file).read_text()
    found = text.count(fault.right)
    if found != 1 or fault.right == fault.wrong:
        raise ValueError(f"{fault.name}: {fault.file} must hold the text once, found {found}")
    return text.replace(fault.right, fault.wrong)


def outcome(fault: Fault, timeout: float) -> dict[str, object]:
    """What the tests say: ``killed``, ``survived``, ``no end`` or ``error``, by whom, and seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        for part in ("dpsco_jax", "tests", "experiments"):
            shutil.copytree(ROOT / part, tree / part, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", tree)
        (tree / "dpsco_jax" / fault.file).write_text(text_with(fault))
        result, by = "survived", ""
        for test in fault.tests:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
            try:
                run = subprocess.run(
                    command, cwd=tree, env=_environment(tree), timeout=timeout,
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                # No kill: the machine may be slow. Another test may still fail.
                result, by = "no end", test
                continue
            if run.returncode == _TESTS_FAILED:
                lines = [x for x in run.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
                result, by = "killed", lines[0].split(" - ")[0].split(" ", 1)[1] if lines else test
                break
            if run.returncode != _PASSED:
                result, by = "error", f"{test}: {run.stdout[-400:]}{run.stderr[-400:]}"
                break
    seconds = round(time.monotonic() - started, 1)
    return {"name": fault.name, "file": fault.file, "result": result, "by": by, "seconds": seconds}


def _environment(tree: pathlib.Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def table(results: dict[str, dict[str, str]]) -> str:
    """The results as Markdown, in the order of the list."""
    rows = [results[fault.name] for fault in FAULTS if fault.name in results]
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
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", help="faults whose name contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument(
        "--shuffle", type=int, help="seed of a random order, for runs that are stopped"
    )
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "results/mutation.jsonl")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one test file")
    parser.add_argument("--report", action="store_true", help="print the table, run nothing")
    options = parser.parse_args()

    for fault in FAULTS:
        text_with(fault)  # all of them, before any time is spent
    found = {}
    if options.results.exists():
        rows = map(json.loads, options.results.read_text().splitlines())
        found = {row["name"]: row for row in rows}
    if not options.report:
        asked = [f for f in FAULTS if options.only is None or options.only in f.name]
        left = asked if options.only else [f for f in asked if f.name not in found]
        if options.shuffle is not None:
            random.Random(options.shuffle).shuffle(left)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            pending = [pool.submit(outcome, fault, options.timeout) for fault in left]
            for done, future in enumerate(concurrent.futures.as_completed(pending), 1):
                row = future.result()
                found[row["name"]] = row
                options.results.parent.mkdir(exist_ok=True)
                with options.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                said = f"{row['result']:8} {row['seconds']:6} s  {row['name']}  {row['by']}"
                print(f"[{done}/{len(left)}] {said}", flush=True)
    print(table(found))
    return int(any(row["result"] != "killed" for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
