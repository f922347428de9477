"""Writes the golden numbers, or compares them bit for bit; every case in a process of its own.

    python -m tests.golden write [--only NAME] [--file FILE]
    python -m tests.golden check [--only NAME] [--file FILE]

In a process that has run other programs before, the last bits of some runs are others.
"""

import argparse
import concurrent.futures
import multiprocessing
import pathlib
import sys

from tests.golden.cases import CASES
from tests.golden.record import differences, read, record_named, write

FILE = pathlib.Path(__file__).parent / "numbers.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--file", type=pathlib.Path, default=FILE)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    known = read(options.file)
    names = [case.name for case in CASES if options.only in case.name]
    if not names:
        parser.error(f"--only {options.only}: no case has such a name")
    said = []
    alone = concurrent.futures.ProcessPoolExecutor(
        options.jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    )
    with alone:
        for name, found in zip(names, alone.map(record_named, names), strict=True):
            if options.action == "write":
                known[name] = found
                ordered = {case.name: known[case.name] for case in CASES if case.name in known}
                write(options.file, ordered)
                print(f"{name}: {sum(map(len, found.values()))} numbers", flush=True)
                continue
            changed = differences(known.get(name, {}), found, 0.0)
            if name not in known:
                changed = ["not recorded yet"]
            print(f"{name}: {len(changed)} changes", flush=True)
            said += [f"{name}: {line}" for line in changed]
    print("\n".join(said))
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
