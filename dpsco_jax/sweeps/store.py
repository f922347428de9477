"""Finished cells in SQLite: each stored once, by runs that may be killed at any moment.

Before a run computes cells it claims them; storing a cell and giving up its claim are one
transaction. A claim counts for as long as the run that made it lives, which the operating system
answers: every run holds a lock on a file of its own, and the kernel drops it however the process
ends. So several runs can share the work of one experiment, and what a killed run had claimed is
free again at once.

Guarantee: a cell with a result is never computed or overwritten again, and a cell that was stored
is never lost, ``kill -9`` included (SQLite's journal, synchronized at every commit). All runs must
be on one machine: neither these locks nor SQLite's are to be trusted on network file systems.

Cost: two transactions for each chunk of cells, a few milliseconds.
"""

import fcntl
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dpsco_jax._checks import require_instance
from dpsco_jax.sweeps.cells import Cell

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
"""
_WAIT_SECONDS = 60.0
FILE_NAME = "cells.sqlite"
"""What the database is called in the folder of its experiment."""


class Outcome(NamedTuple):
    """How one cell ended: with results, or with the traceback of an error."""

    cell: Cell
    status: str
    results: Mapping[str, Any] | None
    traceback: str | None
    seconds: float | None


class Store:
    """The database of one experiment, ``cells.sqlite`` in a folder; use as a context manager."""

    def __init__(self, folder: Path):
        require_instance("folder", folder, str | Path)
        folder = self._folder = Path(folder)
        self._run = 0
        self._lock: Any = None
        folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(folder / FILE_NAME, timeout=_WAIT_SECONDS, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA synchronous = FULL")
        for statement in _SCHEMA.split(";\n"):
            self._db.execute(statement)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            with self._transaction():
                self._db.execute("DELETE FROM claims WHERE run = ?", (self._run,))
            self._lock_path(self._run).unlink(missing_ok=True)
            self._lock.close()
        self._db.close()

    def open_run(self, config: Mapping[str, Any], versions: Mapping[str, str], device: str) -> None:
        """Begins a run: from now on this process may claim cells."""
        with self._transaction():
            for path in self._folder.glob("run-*.lock"):
                if not _alive(path):
                    path.unlink(missing_ok=True)
            self._run = (
                self._db.execute(
                    "INSERT INTO runs (started, config, versions, device) VALUES (?, ?, ?, ?)",
                    (_now(), json.dumps(config), json.dumps(versions), device),
                ).lastrowid
                or 0
            )
            # Locked before the row is visible: no one can take this run for a dead one.
            self._lock = self._lock_path(self._run).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def pending(self, cells: Iterable[Cell]) -> dict[str, int]:
        """The cells without a result, by identity, with how often each was tried and failed."""
        rows = {
            row["id"]: row for row in self._db.execute("SELECT id, status, attempts FROM cells")
        }
        return {
            cell.id: rows[cell.id]["attempts"] if cell.id in rows else 0
            for cell in cells
            if cell.id not in rows or rows[cell.id]["status"] == "failed"
        }

    def free(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> list[Cell]:
        """The cells that ``claim`` would now give."""
        with self._transaction():
            return self._free(cells, attempts)

    def claim(
        self, cells: Sequence[Cell], attempts: Mapping[str, int], limit: int | None = None
    ) -> list[Cell]:
        """Reserves cells for this run.

        Args:
            cells: candidates, in order of preference.
            attempts: what ``pending`` said; a cell that has been tried since is another run's
                business.
            limit: how many to take at most.

        Returns:
            Those that now belong to this run: at most ``limit``, neither stored nor claimed
            elsewhere.
        """
        with self._transaction():
            claimed = self._free(cells, attempts)[:limit]
            self._db.executemany(
                "INSERT INTO claims (id, run) VALUES (?, ?)", [(c.id, self._run) for c in claimed]
            )
        return claimed

    def finish(self, outcomes: Iterable[Outcome], config_hash: str) -> None:
        """Stores cells that this run had claimed, all or none.

        Raises:
            RuntimeError: if one of them is not claimed by this run or has a result already.
        """
        rows = [
            (
                outcome.cell.id,
                config_hash,
                json.dumps(dict(outcome.cell.settings)),
                outcome.status,
                None if outcome.results is None else json.dumps(outcome.results),
                outcome.traceback,
                outcome.seconds,
                _now(),
                self._run,
            )
            for outcome in outcomes
        ]
        with self._transaction():
            given_up = self._db.executemany(
                "DELETE FROM claims WHERE id = ? AND run = ?", [(row[0], row[-1]) for row in rows]
            ).rowcount
            stored = self._db.executemany(
                "INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET status = excluded.status, "
                "results = excluded.results, traceback = excluded.traceback, "
                "seconds = excluded.seconds, attempts = attempts + 1, "
                "finished = excluded.finished, run = excluded.run WHERE status = 'failed'",
                rows,
            ).rowcount
            if rows and not given_up == stored == len(rows):
                raise RuntimeError(
                    "a cell that is not this run's to store: claimed or done by others"
                )

    def rows(self, cells: Iterable[Cell] | None = None) -> list[dict[str, Any]]:
        """Everything stored about cells.

        Args:
            cells: which, in the order of the result; those that are missing are left out. By default
                all that there are, in the order in which they were stored.
        """
        query = "SELECT * FROM cells JOIN runs USING (run) ORDER BY cells.rowid"
        stored = {row["id"]: dict(row) for row in self._db.execute(query)}
        ids = stored if cells is None else [cell.id for cell in cells]
        rows = [stored[cell] for cell in ids if cell in stored]
        for row in rows:
            for column in ("settings", "results", "config", "versions"):
                row[column] = json.loads(row[column] or "{}")
        return rows

    def _free(self, cells: Sequence[Cell], attempts: Mapping[str, int]) -> list[Cell]:
        self._drop_claims_of_the_dead()
        taken = {row["id"] for row in self._db.execute("SELECT id FROM claims")}
        now = self.pending(cells)
        return [c for c in cells if c.id not in taken and now.get(c.id) == attempts[c.id]]

    def _drop_claims_of_the_dead(self) -> None:
        for (run,) in self._db.execute("SELECT DISTINCT run FROM claims").fetchall():
            if run != self._run and not _alive(self._lock_path(run)):
                self._db.execute("DELETE FROM claims WHERE run = ?", (run,))
                self._lock_path(run).unlink(missing_ok=True)

    def _lock_path(self, run: int) -> Path:
        return self._folder / f"run-{run}.lock"

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Takes the write lock at once, so that what is read inside stays true until the commit."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _alive(lock: Path) -> bool:
    """Whether the run that made this lock file still holds it."""
    try:
        with lock.open("r") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
