"""Finished cells in SQLite: each stored once, by runs that may be killed at any moment.

Before a run computes cells it claims them; storing a cell and giving up its claim are one transaction. A
claim counts for as long as the run that made it lives, which the operating system answers: every run holds a
lock on a file of its own, and the kernel drops it however the process ends. So several runs can share the
work of one experiment, and what a killed run had claimed is free again at once.

Guarantee: a cell with a result is never computed or overwritten again, and a cell that was stored
is never lost, ``kill -9`` included (SQLite's journal, synchronized at every commit). All runs must
be on one machine: neither these locks nor SQLite's are to be trusted on network file systems.

Cost: two transactions for each chunk of cells, a few milliseconds whatever the store holds: cells and
claims are looked up by name, and a run looks at each of its cells once. What reads many cells
(``pending``, ``rows``) is linear in their number.
"""

import fcntl
import itertools
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from dpsco_jax._checks import require_instance
from dpsco_jax.sweeps import _database
from dpsco_jax.sweeps.cells import Cell
from dpsco_jax.sweeps.experiment import CODE

FILE_NAME = "cells.sqlite"
"""What the database is called in the folder of its experiment."""

_REOPENED = "The code of the experiment has changed since: to be computed again."


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
        self._db = _database.connect(folder / FILE_NAME)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._lock is not None:
                with self._transaction():
                    self._db.execute("DELETE FROM claims WHERE run = ?", (self._run,))
                self._lock_path(self._run).unlink(missing_ok=True)
        finally:  # claims without a lock are free
            if self._lock is not None:
                self._lock.close()
            self._db.close()

    def open_run(self, config: Mapping[str, Any], versions: Mapping[str, str], device: str) -> None:
        """Begins a run: from now on this process may claim cells."""
        with self._transaction():
            for path in self._folder.glob("run-*.lock"):
                if not _database.alive(path):
                    path.unlink(missing_ok=True)
            claimed = self._db.execute("SELECT DISTINCT run FROM claims").fetchall()
            self._drop_claims(
                [run for (run,) in claimed if not _database.alive(self._lock_path(run))]
            )
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
        ids = [cell.id for cell in cells]
        return {
            cell: row["attempts"] if row else 0
            for cell, row in _database.look_up(self._db, "id, status, attempts", ids)
            if row is None or row["status"] == "failed"
        }

    def statuses(self, cells: Iterable[Cell]) -> list[str]:
        """How the stored ones among these cells ended: ``ok``, ``nonfinite`` or ``failed``."""
        found = _database.look_up(self._db, "id, status", [cell.id for cell in cells])
        return [row["status"] for _, row in found if row]

    def codes(self, cells: Iterable[Cell]) -> dict[str, str | None]:
        """By which code of the experiment those of the cells that have a result were computed.

        Returns:
            By identity the hash that their run has noted, or ``None``: none did before there were hashes.
        """
        runs: dict[int, str | None] = {}
        found = {}
        for cell, row in _database.look_up(self._db, "id, status, run", [c.id for c in cells]):
            if row is None or row["status"] == "failed":
                continue
            if row["run"] not in runs:
                runs[row["run"]] = self._run_of(row["run"])["versions"].get(CODE)
            found[cell] = runs[row["run"]]
        return found

    def reopen(self, ids: Iterable[str]) -> None:
        """Takes the results of these cells away: they have failed, for another code, and are pending.

        Should the run that computes them again be killed, nobody takes the old results for new ones.
        """
        with self._transaction():
            self._db.executemany(
                "UPDATE cells SET status = 'failed', results = NULL, traceback = ? WHERE id = ?",
                [(_REOPENED, cell) for cell in ids],
            )

    def free(
        self, cells: Iterable[Cell], attempts: Mapping[str, int], limit: int | None = None
    ) -> list[Cell]:
        """The cells that ``claim`` would now give, or the first ``limit`` of them."""
        found: list[Cell] = []
        left = iter(cells)
        with self._transaction():
            while block := list(itertools.islice(left, _database.BLOCK)):
                found += self._take(iter(block), attempts, None, [])
                if limit is not None and len(found) >= limit:
                    break
        return found[:limit]

    def claim(
        self,
        cells: Iterable[Cell],
        attempts: Mapping[str, int],
        limit: int | None = None,
        elsewhere: list[Cell] | None = None,
    ) -> list[Cell]:
        """Reserves cells for this run.

        Args:
            cells: candidates, in order of preference. Of an iterator no more are taken than are looked at,
                so that it can be given again.
            attempts: what ``pending`` said; a cell that has been tried since is another run's business.
            limit: how many to take at most.
            elsewhere: gets the cells that were looked at and are claimed at this moment.

        Returns:
            Those that now belong to this run: at most ``limit``, neither stored nor claimed elsewhere.
        """
        busy = [] if elsewhere is None else elsewhere
        with self._transaction():
            claimed = self._take(iter(cells), attempts, limit, busy)
            self._db.executemany(
                "INSERT INTO claims (id, run) VALUES (?, ?)", [(c.id, self._run) for c in claimed]
            )
        return claimed

    def claims(
        self, cells: Sequence[Cell], attempts: Mapping[str, int], limit: int
    ) -> Iterator[list[Cell]]:
        """Claims up to ``limit`` of the cells, then more, until none is free.

        Each cell is looked at once. Those that another run has claimed are looked at again in the end: if
        it has died, they are free.
        """
        while cells:
            queue, busy, found = iter(cells), list[Cell](), False
            while claimed := self.claim(queue, attempts, limit, busy):
                found = True
                yield claimed
            if not found:
                return
            cells = busy

    def first_said(self, name: str, size: int) -> int:
        """The size that is stored under this name: the given one, if none is."""
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO sizes (name, size) VALUES (?, ?)", (name, size))
            (row,) = self._db.execute("SELECT size FROM sizes WHERE name = ?", (name,))
        return int(row["size"])

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
                "INSERT INTO cells (id, config_hash, settings, status, results, traceback, "
                "seconds, attempts, finished, run) VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?) "
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
        runs: dict[int, dict[str, Any]] = {}
        stored: Iterable[sqlite3.Row]
        if cells is None:
            stored = self._db.execute("SELECT * FROM cells ORDER BY rowid")
        else:
            look_up = _database.look_up(self._db, "*", [cell.id for cell in cells])
            stored = (row for _, row in look_up if row)
        rows = []
        for row in stored:
            texts = {name: json.loads(row[name] or "{}") for name in ("settings", "results")}
            if row["run"] not in runs:
                runs[row["run"]] = self._run_of(row["run"])
            rows.append(dict(row) | texts | runs[row["run"]])
        return rows

    def _run_of(self, run: int) -> dict[str, Any]:
        (row,) = self._db.execute("SELECT * FROM runs WHERE run = ?", (run,))
        return dict(row) | {name: json.loads(row[name]) for name in ("config", "versions")}

    def _take(
        self,
        cells: Iterator[Cell],
        attempts: Mapping[str, int],
        limit: int | None,
        busy: list[Cell],
    ) -> list[Cell]:
        """The next free cells of an iterator; those that are claimed are added to ``busy``."""
        free: list[Cell] = []
        while limit is None or len(free) < limit:
            wanted = _database.BLOCK if limit is None else min(_database.BLOCK, limit - len(free))
            block = list(itertools.islice(cells, wanted))
            if not block:
                break
            claimed = self._claimed_by_the_living([cell.id for cell in block])
            now = self.pending(block)
            busy += [cell for cell in block if cell.id in claimed]
            free += [c for c in block if c.id not in claimed and now.get(c.id) == attempts[c.id]]
        return free

    def _claimed_by_the_living(self, ids: Sequence[str]) -> set[str]:
        """Which of these names are claimed; claims of the dead that are met are dropped."""
        query = f"SELECT id, run FROM claims WHERE id IN ({_database.marks(ids)})"
        claims = {row["id"]: row["run"] for row in self._db.execute(query, ids)}
        dead = {run for run in {*claims.values()} if not self._lives(run)}
        self._drop_claims(dead)
        return {cell for cell, run in claims.items() if run not in dead}

    def _lives(self, run: int) -> bool:
        return run == self._run or _database.alive(self._lock_path(run))

    def _drop_claims(self, runs: Iterable[int]) -> None:
        for run in runs:
            self._db.execute("DELETE FROM claims WHERE run = ?", (run,))
            self._lock_path(run).unlink(missing_ok=True)

    def _lock_path(self, run: int) -> Path:
        return self._folder / f"run-{run}.lock"

    def _transaction(self) -> AbstractContextManager[None]:
        return _database.transaction(self._db)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
