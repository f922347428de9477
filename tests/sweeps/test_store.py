import sqlite3

import pytest

from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.store import Outcome, Store
from tests.sweeps.mean_estimation import MeanEstimation, done, opened

CELLS = cells_of(MeanEstimation(dims=(2,), noises=(1.0,), seeds=4))


def die(store):
    """What a killed process leaves behind: its claims, and a lock file that nobody holds."""
    store._lock.close()


def test_claims_are_exclusive_and_end_with_the_result(tmp_path):
    with opened(tmp_path) as one, opened(tmp_path) as two:
        tried = one.pending(CELLS)
        assert tried == {cell.id: 0 for cell in CELLS}
        mine = one.claim(CELLS, tried, 3)
        assert mine == CELLS[:3]
        assert two.claim(CELLS, tried) == CELLS[3:]
        one.finish(done(mine), "hash")
        assert two.claim(CELLS, tried) == []
        assert one.free(CELLS, tried) == []


def test_what_the_dead_had_claimed_is_free_again(tmp_path):
    dead = opened(tmp_path)
    tried = dead.pending(CELLS)
    dead.claim(CELLS, tried, 3)
    with opened(tmp_path) as other:
        assert other.claim(CELLS, tried, 1) == CELLS[3:]
        die(dead)
        assert other.claim(CELLS, tried) == CELLS[:3]
    with opened(tmp_path):
        assert [path.name for path in tmp_path.glob("*.lock")] == ["run-3.lock"]


def test_a_run_that_starts_after_a_death_clears_up(tmp_path):
    dead = opened(tmp_path)
    tried = dead.pending(CELLS)
    dead.claim(CELLS, tried)
    die(dead)
    with opened(tmp_path) as later:
        assert [path.name for path in tmp_path.glob("*.lock")] == ["run-2.lock"]
        assert later.claim(CELLS, tried) == CELLS


def test_claims_of_a_closed_run_are_free_again(tmp_path):
    with opened(tmp_path) as one:
        tried = one.pending(CELLS)
        one.claim(CELLS, tried)
    with opened(tmp_path) as two:
        assert two.free(CELLS, tried) == CELLS


def test_a_result_is_never_replaced_and_never_stored_without_a_claim(tmp_path):
    with opened(tmp_path) as store:
        with pytest.raises(RuntimeError, match="not this run's to store"):
            store.finish(done(CELLS), "hash")
        tried = store.pending(CELLS)
        store.finish(done(store.claim(CELLS, tried)), "hash")
        with pytest.raises(RuntimeError, match="not this run's to store"):
            store.finish(done(CELLS[:1]), "hash")
        store._db.execute("INSERT INTO claims VALUES (?, ?)", (CELLS[0].id, store._run))
        with pytest.raises(RuntimeError, match="not this run's to store"):
            store.finish(done(CELLS[:1]), "hash")


def test_a_chunk_is_stored_whole_or_not_at_all(tmp_path):
    with opened(tmp_path) as store:
        claimed = store.claim(CELLS, store.pending(CELLS), 2)
        with pytest.raises(RuntimeError):
            store.finish(done([*claimed, CELLS[2]]), "hash")
        assert store.rows(CELLS) == []


def test_a_failed_cell_is_tried_once_by_each_run(tmp_path):
    with opened(tmp_path) as one, opened(tmp_path) as two:
        tried = one.pending(CELLS)
        failures = [Outcome(c, "failed", None, "why", None) for c in one.claim(CELLS, tried)]
        one.finish(failures, "hash")
        assert one.free(CELLS, tried) == []
        assert two.free(CELLS, tried) == []  # it began at the same time: also not now
        assert two.pending(CELLS) == {cell.id: 1 for cell in CELLS}
        two.finish(done(two.claim(CELLS, two.pending(CELLS))), "hash")
        assert two.pending(CELLS) == {}


def test_claims_that_cannot_be_given_back_are_free_all_the_same(tmp_path):
    """The disk is full, or not to be written any more, and the process lives on, as a notebook does."""
    one = opened(tmp_path)
    one.claim(CELLS, one.pending(CELLS))
    one._db.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        one.__exit__()
    with opened(tmp_path) as two:
        assert two.claim(CELLS, two.pending(CELLS)) == CELLS


def test_a_full_disk_stores_a_chunk_whole_or_not_at_all(tmp_path):
    many = cells_of(MeanEstimation(dims=(2,), noises=(1.0,), seeds=800))
    with opened(tmp_path) as store:
        tried = store.pending(many)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        claimed = store.claim(many, tried)
        store.finish(done(claimed[:10]), "hash")
        store._db.execute(f"PRAGMA max_page_count = {pages + 20}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            store.finish(done(claimed[10:]), "hash")
        assert not store._db.in_transaction
        store._db.execute("PRAGMA max_page_count = 1000000")
        assert len(store.rows()) == 10
        store.finish(done(claimed[10:]), "hash")
        assert len(store.rows()) == 800


def test_the_first_to_say_a_size_has_said_it(tmp_path):
    with opened(tmp_path) as one, Store(tmp_path) as two:
        assert one.first_said("a", 3) == 3
        assert two.first_said("a", 5) == 3
        assert two.first_said("b", 5) == 5
    with Store(tmp_path) as later:
        assert later.first_said("a", 7) == 3


def test_everything_about_a_cell_is_kept(tmp_path):
    with opened(tmp_path) as store:
        (cell,) = store.claim(CELLS, store.pending(CELLS), 1)
        numbers = {"a": float("nan"), "b": float("inf"), "c": 0.1, "d": 3}
        store.finish([Outcome(cell, "nonfinite", numbers, None, 0.25)], "hash")
        (row,) = store.rows(CELLS)
    assert row["id"] == cell.id
    assert row["settings"] == cell.settings
    assert str(row["results"]) == str(numbers)
    assert (row["versions"], row["device"], row["config"]) == (
        {"jax": "1"},
        "1 x cpu",
        {"seeds": 4},
    )
    assert (row["seconds"], row["config_hash"], row["attempts"]) == (0.25, "hash", 1)
