"""The tables of a store, how they are opened, and look-ups by name.

A look-up reads only the records that it finds. Opening brings a store of an earlier version up to date: what
it lacks is an index and a table, which no version minds.
"""

import fcntl
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run INTEGER PRIMARY KEY AUTOINCREMENT,
    started TEXT NOT NULL,
    config TEXT NOT NULL,      -- JSON: the whole configuration, axes included
    versions TEXT NOT NULL,    -- JSON: of this package, of the libraries, of Python
    device TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS cells (
    id TEXT PRIMARY KEY,
    config_hash TEXT NOT NULL, -- of the experiment's name, version and constants
    settings TEXT NOT NULL,    -- JSON
    status TEXT NOT NULL CHECK (status IN ('ok', 'nonfinite', 'failed')),
    results TEXT,              -- JSON, with NaN and Infinity as Python writes them
    traceback TEXT,            -- of a failed cell
    seconds REAL,              -- wall time of the chunk, divided by its cells
    attempts INTEGER NOT NULL,
    finished TEXT NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (run)
);
CREATE TABLE IF NOT EXISTS claims (
    id TEXT PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (run)
);
CREATE INDEX IF NOT EXISTS claims_by_run ON claims (run);
CREATE TABLE IF NOT EXISTS sizes (
    name TEXT PRIMARY KEY,     -- JSON: of cells that share a program
    size INTEGER NOT NULL      -- how many of them make a chunk
);
"""
_WAIT_SECONDS = 60.0

BLOCK = 500
"""How many names one query asks for: SQLite before 3.32 allows 999."""


def connect(file: Path) -> sqlite3.Connection:
    """Opens the database in this file, makes its tables where they are missing, waits for other writers.

    The connection may be used by several threads, one at a time.
    """
    db = sqlite3.connect(file, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA synchronous = FULL")
        for statement in _SCHEMA.split(";\n"):
            db.execute(statement)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Takes the write lock at once, so that what is read inside stays true until the commit."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk may have ended it
            db.execute("ROLLBACK")
        raise


def look_up(
    db: sqlite3.Connection, columns: str, ids: Iterable[str]
) -> Iterator[tuple[str, sqlite3.Row | None]]:
    """Each name with these columns of its cell, or with ``None`` where nothing is stored."""
    for block in blocks(ids):
        query = f"SELECT {columns} FROM cells WHERE id IN ({marks(block)})"
        rows = {row["id"]: row for row in db.execute(query, block)}
        yield from ((cell, rows.get(cell)) for cell in block)


def blocks(names: Iterable[str]) -> Iterator[list[str]]:
    """The names in lists that one query takes."""
    names = iter(names)
    while block := list(itertools.islice(names, BLOCK)):
        yield block


def marks(names: Sequence[str]) -> str:
    """The placeholders of a query for these names."""
    return ", ".join("?" * len(names))


def alive(lock: Path) -> bool:
    """Whether the run that made this lock file still holds it."""
    try:
        with lock.open("r") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
