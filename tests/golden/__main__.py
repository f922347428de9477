"""Writes the golden numbers, or compares them bit for bit.

python -m tests.golden write [--only NAME] [--file FILE]
python -m tests.golden check [--only NAME] [--file FILE]
"""

import argparse
import json
import pathlib
import sys

from tests.golden.cases import CASES
from tests.golden.record import differences, record

FILE = pathlib.Path(__file__).parent / "numbers.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--missing", action="store_true", help="write what is not there yet, alone")
    parser.add_argument("--file", type=pathlib.Path, default=FILE)
    options = parser.parse_args()
    known = json.loads(options.file.read_text()) if options.file.exists() else {}
    said = []
    for case in CASES:
        if options.only not in case.name or (options.missing and case.name in known):
            continue
        found = record(case)
        if options.action == "write":
            known[case.name] = found
            ordered = {case.name: known[case.name] for case in CASES if case.name in known}
            options.file.write_text(json.dumps(ordered, indent=1) + "\n")
            print(f"{case.name}: {sum(map(len, found.values()))} numbers", flush=True)
            continue
        changed = differences(known.get(case.name, {}), found, 0.0)
        if case.name not in known:
            changed = ["not recorded yet"]
        print(f"{case.name}: {len(changed)} changes", flush=True)
        said += [f"{case.name}: {line}" for line in changed]
    print("\n".join(said))
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
