"""Stores of one experiment brought together: what runs on several machines have stored becomes one store.

    dpsco-sweep merge results/mine/share-* --into results/mine

Cells have the same name in every store, so a record is either new, there already, or in conflict. A result is
in conflict with another result of the same cell, unless they are equal to the last bit (NaN is equal to NaN).
A failed cell has no result: a result takes its place, another failure does not. When and by which versions a
record was made does not count for conflicts, and goes with it. A raised version of the experiment makes other
cells, and they stand beside each other.

Guarantee: the sources are only read. All that they have is brought in by one transaction or, after a conflict
or if the process is killed, nothing; the same call does it again, and once more changes nothing.

Cost: reads every record of the sources, and looks each up in the target; memory of a few hundred records.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from dpsco_jax._checks import require, require_instance
from dpsco_jax.sweeps import _database
from dpsco_jax.sweeps.store import FILE_NAME

_CELLS_NAMED = 10
_RUN = ("started", "config", "versions", "device")
_RECORD = (
    *("id", "config_hash", "settings", "status", "results", "traceback"),
    *("seconds", "attempts", "finished", "run"),
)


class Merged(NamedTuple):
    """What a merge has done with the records of the sources.

    Attributes:
        added: cells that the target did not have.
        replaced: failed cells of the target that now have a result.
        present: records of which the target had the like, or better.
    """

    added: int
    replaced: int
    present: int


class ConflictError(ValueError):
    """Cells with different results in the stores to be merged.

    Attributes:
        cells: their identities.
    """

    def __init__(self, message: str, cells: Sequence[str]):
        super().__init__(message)
        self.cells = tuple(cells)


def merge(sources: Sequence[str | Path], into: str | Path) -> Merged:
    """Brings the records of several stores into one.

    Args:
        sources: folders of the experiment, such as ``results/mine``, or files ``cells.sqlite`` in them.
        into: the folder of the target, which is made if it is missing.

    Raises:
        ConflictError: if a cell has different results. It is a ``ValueError``, names cells, settings and
            where they are, and nothing is changed.
        ValueError: if ``sources`` has no store or one that is the target, if one is no store or of another
            experiment, or ``into`` is not a path.
        RuntimeError: if a run is at work in the target at this moment on one of the cells.
    """
    listed = isinstance(sources, Sequence) and not isinstance(sources, str) and len(sources) > 0
    require(listed and all(isinstance(s, str | Path) for s in sources), "sources", sources, "paths")
    require_instance("into", into, str | Path)
    files = [_file(source) for source in sources]
    target = Path(into)
    target = target.parent if target.name == FILE_NAME else target
    for file in files:
        known = file.is_file()
        require(known, "sources", str(file), f"folders of an experiment, with {FILE_NAME} in them")
        other = file.resolve() != (target / FILE_NAME).resolve()
        require(other, "sources", str(file), "other stores than the target")
    target.mkdir(parents=True, exist_ok=True)
    try:
        with closing(_database.connect(target / FILE_NAME)) as db:
            return _merge(files, db, target)
    except sqlite3.DatabaseError as error:
        raise ValueError(
            f"sources and into must be stores of an experiment, to be read and written: {error}"
        ) from error


def _merge(files: Sequence[Path], db: sqlite3.Connection, target: Path) -> Merged:
    work = _Work(db, target)
    with _database.transaction(db):
        for file in files:
            # Opened to write: what a killed run has left half-written is rolled back by the first reader.
            with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True)) as source:
                source.row_factory = sqlite3.Row
                source.execute("BEGIN")
                work.bring_in(source, file.parent)
        work.refuse_conflicts()
    return Merged(work.added, work.replaced, work.present)


class _Work:
    """A merge under way, inside the transaction of the target."""

    def __init__(self, db: sqlite3.Connection, target: Path):
        self._db, self._target = db, target
        self._runs = {tuple(row[name] for name in _RUN): row["run"] for row in _runs(db)}
        self._names = {(_name(row), str(target)) for row in _runs(db)}
        self._conflicts: list[tuple[str, str]] = []
        self.added = self.replaced = self.present = 0

    def bring_in(self, source: sqlite3.Connection, folder: Path) -> None:
        """Adds what one source has, and notes what is in conflict with what is there."""
        numbers = {}
        for run in _runs(source):
            self._names.add((_name(run), str(folder)))
            numbers[run["run"]] = self._number_of(run)
        self._refuse_other_experiments()
        records = source.execute(f"SELECT {', '.join(_RECORD)} FROM cells ORDER BY rowid")
        for block in _many(records):
            ids = [record["id"] for record in block]
            there = dict(_database.look_up(self._db, "*", ids))
            new, better = [], []
            for record in block:
                old = there[record["id"]]
                values = (*tuple(record)[:-1], numbers[record["run"]])
                if old is None:
                    new.append(values)
                elif old["status"] == "failed" != record["status"]:
                    better.append(values)
                else:
                    self.present += 1
                    if record["status"] != "failed" and not _equal(old, record):
                        self._conflicts.append((record["id"], _conflict(old, record, folder)))
            self._refuse_claimed([values[0] for values in new + better])
            self._write(new, better)

    def refuse_conflicts(self) -> None:
        """Raises if a cell has different results, which undoes the transaction."""
        if self._conflicts:
            shown = "".join(f"\n  {text}" for _, text in self._conflicts[:_CELLS_NAMED])
            more = len(self._conflicts) - _CELLS_NAMED
            shown += f"\n  and {more} more" if more > 0 else ""
            raise ConflictError(
                f"{len(self._conflicts)} cells have different results, nothing was merged:{shown}",
                [cell for cell, _ in self._conflicts],
            )

    def _write(self, new: list[tuple], better: list[tuple]) -> None:
        marks = ", ".join("?" * len(_RECORD))
        query = f"INTO cells ({', '.join(_RECORD)}) VALUES ({marks})"
        self._db.executemany(f"INSERT {query}", new)
        self._db.executemany(f"REPLACE {query}", better)
        self.added += len(new)
        self.replaced += len(better)

    def _number_of(self, run: sqlite3.Row) -> int:
        """The number that a run of a source has in the target: equal runs are one."""
        key = tuple(run[name] for name in _RUN)
        if key not in self._runs:
            query = f"INSERT INTO runs ({', '.join(_RUN)}) VALUES (?, ?, ?, ?)"
            self._runs[key] = self._db.execute(query, key).lastrowid
        return self._runs[key]

    def _refuse_other_experiments(self) -> None:
        if len({name for name, _ in self._names}) > 1:
            texts = ", ".join(sorted(f"{name} in {folder}" for name, folder in self._names))
            raise ValueError(f"sources must be stores of one experiment, got {texts}")

    def _refuse_claimed(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        query = f"SELECT DISTINCT run FROM claims WHERE id IN ({_database.marks(ids)})"
        for (run,) in self._db.execute(query, ids).fetchall():
            if _database.alive(self._target / f"run-{run}.lock"):
                raise RuntimeError(
                    f"a run is at work on these cells in {self._target}: merge when it has ended"
                )


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.name == FILE_NAME else path / FILE_NAME


def _runs(db: sqlite3.Connection) -> list[sqlite3.Row]:
    return db.execute("SELECT * FROM runs ORDER BY run").fetchall()


def _name(run: sqlite3.Row) -> str:
    return str(json.loads(run["config"]).get("name"))


def _many(records: sqlite3.Cursor) -> Iterator[list[sqlite3.Row]]:
    while block := records.fetchmany(_database.BLOCK):
        yield block


def _equal(one: sqlite3.Row, other: sqlite3.Row) -> bool:
    """Whether two records of a cell say the same: status, configuration, settings, results."""
    plain = one["status"] == other["status"] and one["config_hash"] == other["config_hash"]
    return plain and all(
        one[name] == other[name] or _sorted(one[name]) == _sorted(other[name])
        for name in ("settings", "results")
    )


def _sorted(text: str | None) -> str:
    """The text of equal JSON values is equal: names in order, numbers as Python writes them."""
    return json.dumps(json.loads(text or "{}"), sort_keys=True)


def _conflict(old: sqlite3.Row, new: sqlite3.Row, folder: Path) -> str:
    settings: dict[str, Any] = json.loads(new["settings"])
    point = ", ".join(f"{name} {value}" for name, value in settings.items())
    was, now = ({**json.loads(row["results"] or "{}")} for row in (old, new))
    differ = [name for name in now if name not in was or str(was[name]) != str(now[name])]
    values = "; ".join(f"{name} {was.get(name)!r} and {now[name]!r}" for name in differ)
    return f"{new['id']} ({point}) in {folder}: {values or 'records differ'}"
