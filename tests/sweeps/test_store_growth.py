"""What a chunk costs does not depend on what the store holds, and stores of earlier versions go on."""

import json
import sqlite3

import pytest

from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.store import FILE_NAME, Store
from tests.sweeps.mean_estimation import MeanEstimation, done, opened

MANY = cells_of(MeanEstimation(dims=(2,), noises=(1.0,), seeds=4000))

# The tables as the first version made them.
FIRST_SCHEMA = """
CREATE TABLE runs (run INTEGER PRIMARY KEY AUTOINCREMENT, started TEXT NOT NULL, config TEXT NOT NULL,
    versions TEXT NOT NULL, device TEXT NOT NULL);
CREATE TABLE cells (id TEXT PRIMARY KEY, config_hash TEXT NOT NULL, settings TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('ok', 'nonfinite', 'failed')), results TEXT, traceback TEXT,
    seconds REAL, attempts INTEGER NOT NULL, finished TEXT NOT NULL,
    run INTEGER NOT NULL REFERENCES runs (run));
CREATE TABLE claims (id TEXT PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs (run));
INSERT INTO runs VALUES (7, '2026-01-01T00:00:00Z', '{"name": "mean-estimation"}', '{"jax": "0"}', '1 x cpu');
"""


def instructions(store, call):
    """How many instructions SQLite's machine carries out: one for each row that a scan or look-up visits."""
    count = 0

    def one():
        nonlocal count
        count += 1

    store._db.set_progress_handler(one, 1)
    try:
        call()
    finally:
        store._db.set_progress_handler(None, 0)
    return count


def cost_of_a_chunk(folder, stored, pending):
    """Instructions of one claim and one finish of ten cells, in a store of so many cells."""
    with opened(folder) as store:
        cells = MANY[: stored + pending]
        tried = store.pending(cells)
        store.finish(done(store.claim(cells[:stored], tried)), "hash")
        chunks = store.claims(cells[stored:], tried, 10)
        next(chunks)  # statements are prepared
        claimed = []
        claim = instructions(store, lambda: claimed.extend(next(chunks)))
        finish = instructions(store, lambda: store.finish(done(claimed), "hash"))
        assert claimed == cells[stored + 10 : stored + 20]
    return claim, finish


def test_a_claim_reads_as_much_in_a_large_store_as_in_a_small_one(tmp_path):
    small = cost_of_a_chunk(tmp_path / "small", 100, 100)
    large = cost_of_a_chunk(tmp_path / "large", 2000, 2000)
    assert min(small) > 100
    assert max(small) < 1000
    for few, many in zip(small, large, strict=True):
        assert many <= 1.1 * few


def test_no_statement_of_a_chunk_scans_a_table(tmp_path):
    with opened(tmp_path) as store:
        statements = []
        tried = store.pending(MANY[:50])
        store._db.set_trace_callback(statements.append)
        store.finish(done(store.claim(MANY[:50], tried, 10)), "hash")
        store._db.set_trace_callback(None)
        asked = [s for s in statements if s.split()[0] in ("SELECT", "DELETE", "INSERT")]
        assert len(asked) >= 4
        for statement in asked:
            plan = store._db.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            assert not any(step["detail"].startswith("SCAN") for step in plan), statement


def test_each_cell_is_looked_at_once_and_what_others_had_once_more(tmp_path, monkeypatch):
    looked_at = []
    look = Store._claimed_by_the_living
    monkeypatch.setattr(
        Store,
        "_claimed_by_the_living",
        lambda self, ids: looked_at.extend(ids) or look(self, ids),
    )
    cells = MANY[:100]
    with opened(tmp_path) as other, opened(tmp_path) as store:
        tried = store.pending(cells)
        theirs = other.claim(cells[20:25], tried)
        looked_at.clear()
        chunks = store.claims(cells, tried, 10)
        first = [cell for _ in range(9) for cell in next(chunks)]
        assert first == [*cells[:20], *cells[25:95]]
        other._lock.close()  # it is killed
        rest = [cell for chunk in chunks for cell in chunk]
        assert rest == [*cells[95:], *theirs]
        ids = [cell.id for cell in cells]
        assert sorted(looked_at) == sorted(ids + [cell.id for cell in theirs])


def test_claims_end_while_others_are_at_work(tmp_path):
    with opened(tmp_path) as other, opened(tmp_path) as store:
        tried = store.pending(MANY[:20])
        theirs = other.claim(MANY[:5], tried)
        chunks = [*store.claims(MANY[:20], tried, 10)]
        assert [cell for chunk in chunks for cell in chunk] == MANY[5:20]
        assert [len(chunk) for chunk in chunks] == [10, 5]
        other.finish(done(theirs), "hash")
        assert [*store.claims(MANY[:20], tried, 10)] == []


def test_a_store_of_the_first_version_goes_on(tmp_path):
    db = sqlite3.connect(tmp_path / FILE_NAME)
    db.executescript(FIRST_SCHEMA)
    record = ("hash", json.dumps(dict(MANY[0].settings)), "ok", '{"error": NaN}', None, 0.5, 1)
    db.execute(
        "INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, '2026-01-01T00:00:00Z', 7)",
        (MANY[0].id, *record),
    )
    db.execute("INSERT INTO claims VALUES (?, 7)", (MANY[1].id,))  # by a run that was killed
    db.commit()
    db.close()
    with opened(tmp_path) as store:
        (row,) = store.rows()
        assert (row["id"], row["run"], row["versions"]) == (MANY[0].id, 7, {"jax": "0"})
        assert str(row["results"]["error"]) == "nan"
        tried = store.pending(MANY[:3])
        assert [*tried] == [cell.id for cell in MANY[1:3]]
        assert store.claim(MANY[1:3], tried) == MANY[1:3]
        store.finish(done(MANY[1:3]), "hash")
        assert [row["run"] for row in store.rows(MANY[:3])] == [7, 8, 8]
        assert store.statuses(MANY[:4]) == ["ok"] * 3


def test_the_whole_configuration_is_read_once_for_each_run(tmp_path, monkeypatch):
    """It holds all axes: read for every cell, a report on a million cells would be quadratic."""
    with opened(tmp_path) as store:
        store.finish(done(store.claim(MANY[:30], store.pending(MANY[:30]))), "hash")
        read = []
        monkeypatch.setattr(
            json, "loads", lambda text, loads=json.loads: read.append(text) or loads(text)
        )
        assert len(store.rows()) == 30
        assert read.count('{"seeds": 4}') == 1


@pytest.mark.parametrize("limit", [1, 3, None])
def test_what_is_free_is_what_a_claim_gives(tmp_path, limit):
    with opened(tmp_path) as store:
        tried = store.pending(MANY[:1200])
        store.finish(done(store.claim(MANY[:700], tried)), "hash")
        free = store.free(MANY[:1200], tried, limit)
        assert free == MANY[700:1200][:limit]
        assert store.claim(MANY[:1200], tried, limit) == free
