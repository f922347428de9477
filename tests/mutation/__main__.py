"""Plants the faults of ``tests.mutation`` one by one and says which of them the tests notice.

    python -m tests.mutation                   all faults that have no result yet
    python -m tests.mutation --only "blocks"   those whose name contains the text, again if they had one
    python -m tests.mutation --names FILE      those whose names are the lines of the file, likewise
    python -m tests.mutation --report          the table of the results so far
    python -m tests.mutation --cover rates     the fewest tests that notice all faults in a room's files

Results go to a file of JSON lines, one a fault, so that a run that was stopped goes on where it was. The tree
is copied to a temporary folder first: the checkout is not touched, and may change meanwhile. The tests named
for a fault are run one after another, the slow ones of a file last, until one fails, and that one is run
without the fault too: it has to pass. Tests that fail either way, pick nothing up or cannot be collected are
errors of the list, no kills.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import importlib
import pathlib
import queue
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from tests.mutation import Fault
from tests.mutation.cover import Answers, noticed, of_room, report
from tests.mutation.fork_server import FAILED, PASSED, Run, Server
from tests.mutation.results import Book, Row, table

ROOT = pathlib.Path(__file__).parents[2]
LISTS = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("faults_*.py"))
FAULTS: tuple[Fault, ...] = tuple(
    fault for name in LISTS for fault in importlib.import_module(f"tests.mutation.{name}").FAULTS
)
Runs = Callable[..., Run]  # of a tree, a test, and whether to go on after a failure


def text_with(fault: Fault, root: pathlib.Path) -> str:
    """The file with the fault in it.

    Raises:
        ValueError: unless the text that is replaced occurs exactly once.
    """
    text = (root / "dpsco_jax" / fault.file).read_text()
    found = text.count(fault.right)
    if found != 1 or fault.right == fault.wrong:
        raise ValueError(f"{fault.name}: {fault.file} must hold the text once, found {found}")
    return text.replace(fault.right, fault.wrong)


def copied(root: pathlib.Path, tree: pathlib.Path) -> str:
    """Copies what the tests need into a folder and says what it is: a hash of the sources."""
    for part in ("dpsco_jax", "tests", "experiments"):
        shutil.copytree(root / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", tree)
    found = hashlib.sha256()
    for path in sorted(tree.rglob("*.py")):
        name = str(path.relative_to(tree))
        if not name.startswith("tests/mutation/"):
            found.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def passes(test: str, clean: pathlib.Path, run: Runs, book: Book) -> bool:
    """Whether a test passes without a fault; run once for a tree."""
    if test not in book.clean:
        found = run(clean, test)
        book.add({"clean": test, "passes": found.status == PASSED, "said": found.said[-300:]})
    return book.clean[test]["passes"]


def outcome(fault: Fault, clean: pathlib.Path, run: Runs, book: Book) -> Row:
    """What the tests say: ``killed``, ``survived``, ``no end`` or ``error``, by whom, why, and seconds."""
    started = time.monotonic()
    result, by, said = "survived", "", ""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder).resolve() / "tree"
        shutil.copytree(clean, tree, ignore=shutil.ignore_patterns("__pycache__"))
        (tree / "dpsco_jax" / fault.file).write_text(text_with(fault, clean))
        for test in fault.tests:
            found = run(tree, test)
            if found.status is None:
                # No kill: the machine may be slow. Another test may still fail.
                result, by = "no end", test
            elif found.status == FAILED and not passes(found.failed or test, clean, run, book):
                result, by, said = "error", found.failed or test, "fails without the fault too"
                break
            elif found.status == FAILED:
                result, by, said = "killed", found.failed or test, found.said
                break
            elif found.status != PASSED:
                result, by, said = "error", test, f"pytest: {found.status}: {found.said}"
                break
    seconds = round(time.monotonic() - started, 1)
    row = {"name": fault.name, "file": fault.file, "result": result, "by": by, "said": said[-300:]}
    return row | {"seconds": seconds}


def chosen(options: argparse.Namespace, known: dict[str, Row]) -> list[Fault]:
    """The faults to run, those with cheap tests first: solvers take longest."""
    names = options.names.read_text().splitlines() if options.names else []
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        raise ValueError(f"--names: no faults of these names: {sorted(unknown)}")
    if options.names or options.only:
        asked = [f for f in FAULTS if f.name in names or (options.only and options.only in f.name)]
    else:
        asked = [f for f in FAULTS if f.name not in known]
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(asked)
        return asked
    return sorted(asked, key=lambda fault: fault.tests[0].startswith("tests/solvers"))


@contextlib.contextmanager
def servers(count: int, cache: pathlib.Path, seconds: float) -> Iterator[Runs]:
    """A function that runs a test in one of so many processes, when one is free."""
    found = [Server(cache) for _ in range(count)]
    free: queue.SimpleQueue[Server] = queue.SimpleQueue()
    for server in found:
        free.put(server)

    def run(tree: pathlib.Path, test: str, every: bool = False) -> Run:
        server = free.get()
        try:
            return server.run(tree, test, seconds, every)
        finally:
            free.put(server)

    try:
        yield run
    finally:
        for server in found:
            server.close()


def covered(room: str, options: argparse.Namespace) -> int:
    """Runs every fault of a room against all of its tests, and prints the fewest that notice them all."""
    path = options.results.resolve().parent / f"cover_{room}.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        clean = pathlib.Path(folder).resolve() / "tree"
        tree = copied(ROOT, clean)
        faults, tests = of_room(FAULTS, room, ROOT)
        answers = Answers(path, tree, tests)
        left = [fault for fault in faults if fault.name not in answers.rows]
        with (
            servers(options.jobs, path.parent / "compiled", options.timeout) as run,
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
        ):
            every = functools.partial(run, every=True)
            if answers.clean is None:
                found = every(clean, "\n".join(tests))
                if found.status != PASSED:
                    print(f"fails without a fault: {found.failures or found.said}")
                    return 1
                answers.add({"clean": found.cost})
            pending = [
                pool.submit(noticed, fault, text_with(fault, clean), clean, tests, every)
                for fault in left
            ]
            for done, future in enumerate(concurrent.futures.as_completed(pending), 1):
                row = future.result()
                answers.add(row)
                said = f"{len(row['failures'])} tests notice: {row['name']}"
                print(f"[{done}/{len(left)}] {said}", flush=True)
    print(report([answers.rows[fault.name] for fault in faults], answers.clean))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", help="faults whose name contains this text")
    parser.add_argument("--names", type=pathlib.Path, help="file of names of faults, one a line")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--shuffle", type=int, help="seed of a random order, for runs that stop")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "results/mutation.jsonl")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one test file")
    parser.add_argument("--report", action="store_true", help="print the table, run nothing")
    parser.add_argument("--cover", metavar="ROOM", help="the fewest tests of a room, as geometry")
    options = parser.parse_args()
    if options.cover:
        return covered(options.cover, options)

    with tempfile.TemporaryDirectory() as folder:
        clean = pathlib.Path(folder).resolve() / "tree"
        book = Book(options.results, copied(ROOT, clean))
        for fault in FAULTS:
            text_with(fault, clean)  # all of them, before any time is spent
        left = [] if options.report else chosen(options, book.faults)
        cache = options.results.resolve().parent / "compiled"
        with (
            servers(options.jobs if left else 0, cache, options.timeout) as run,
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
        ):
            pending = [pool.submit(outcome, fault, clean, run, book) for fault in left]
            for done, future in enumerate(concurrent.futures.as_completed(pending), 1):
                row = future.result()
                book.add(row)
                said = f"{row['result']:8} {row['seconds']:6} s  {row['name']}  {row['by']}"
                print(f"[{done}/{len(left)}] {said}", flush=True)
    print(table(FAULTS, book.faults))
    return int(any(row["result"] != "killed" for row in book.faults.values()))


if __name__ == "__main__":
    sys.exit(main())
