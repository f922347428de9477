"""Merging stores: nothing lost, nothing twice, conflicts named."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dpsco_jax.sweeps import merging
from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.command import main
from dpsco_jax.sweeps.merging import ConflictError, Merged, merge
from dpsco_jax.sweeps.store import Outcome, Store
from tests.sweeps.mean_estimation import MeanEstimation

ROOT = Path(__file__).parents[2]
CELLS = cells_of(MeanEstimation(dims=(2,), noises=(1.0,), seeds=8))
NAN = float("nan")


def filled(folder, results, config="hash", name="mean-estimation", jax="1"):
    """A store with these results; ``None`` stands for a failure."""
    with Store(folder) as store:
        store.open_run({"name": name}, {"jax": jax}, "1 x cpu")
        cells = [CELLS[position] for position in results]
        outcomes = [
            Outcome(cell, "failed", None, f"why in {folder.name}", None)
            if value is None
            else Outcome(cell, "ok", {"error": value, "steps": 2}, None, 0.1)
            for cell, value in zip(cells, results.values(), strict=True)
        ]
        store.claim(cells, store.pending(cells))
        store.finish(outcomes, config)
    return folder


def found(folder):
    with Store(folder) as store:
        rows = store.rows(CELLS)
    return {CELLS[[c.id for c in CELLS].index(row["id"])].settings["seed"]: row for row in rows}


def errors(folder):
    return {seed: row["results"].get("error") for seed, row in found(folder).items()}


def test_what_two_stores_have_is_in_one(tmp_path):
    a = filled(tmp_path / "a", {0: 0.1, 1: 0.2}, jax="1")
    b = filled(tmp_path / "b", {2: 0.3, 3: 0.1 + 0.2}, jax="2")
    before = {seed: row for folder in (a, b) for seed, row in found(folder).items()}
    assert merge([a, b], tmp_path / "c") == Merged(added=4, replaced=0, present=0)
    after = found(tmp_path / "c")
    assert errors(tmp_path / "c") == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.1 + 0.2}
    for seed, row in before.items():  # all of the record, and the run that it came from
        assert after[seed] | {"run": 0} == row | {"run": 0}
    assert [after[seed]["versions"]["jax"] for seed in range(4)] == ["1", "1", "2", "2"]


def test_merging_again_changes_nothing_and_new_cells_are_added(tmp_path):
    a = filled(tmp_path / "a", {0: 0.1, 1: None})
    merge([a], tmp_path / "c")
    once = found(tmp_path / "c")
    assert merge([str(a), a / "cells.sqlite"], tmp_path / "c") == Merged(0, 0, 4)
    assert found(tmp_path / "c") == once
    filled(a, {2: 0.5})
    assert merge([a], tmp_path / "c" / "cells.sqlite") == Merged(1, 0, 2)
    assert errors(tmp_path / "c") == {0: 0.1, 1: None, 2: 0.5}


def test_a_result_takes_the_place_of_a_failure_and_no_failure_that_of_a_result(tmp_path):
    failed, done = filled(tmp_path / "failed", {0: None}), filled(tmp_path / "done", {0: 0.5})
    assert merge([failed, done], tmp_path / "one") == Merged(1, 1, 0)
    assert merge([done, failed], tmp_path / "other") == Merged(1, 0, 1)
    for target in ("one", "other"):
        row = found(tmp_path / target)[0]
        assert (row["status"], row["results"]["error"], row["traceback"]) == ("ok", 0.5, None)
    again = filled(tmp_path / "again", {0: None})
    merge([failed, again], tmp_path / "both")
    assert found(tmp_path / "both")[0]["traceback"] == "why in failed"


@pytest.mark.parametrize("value", [0.5, NAN, float("inf")])
def test_equal_results_are_no_conflict(tmp_path, value):
    a, b = filled(tmp_path / "a", {0: value}), filled(tmp_path / "b", {0: value}, jax="2")
    assert merge([a, b], tmp_path / "c") == Merged(1, 0, 1)
    assert found(tmp_path / "c")[0]["versions"] == {"jax": "1"}


@pytest.mark.parametrize(("one", "other"), [(0.5, 0.5 + 2**-53), (0.5, NAN), (0.0, -0.0), (2, 3)])
def test_different_results_are_a_conflict_that_names_the_cell(tmp_path, capsys, one, other):
    a = filled(tmp_path / "a", {0: 0.1, 1: one})
    b = filled(tmp_path / "b", {1: other, 2: 0.3})
    c = filled(tmp_path / "c", {5: 0.7})
    with pytest.raises(ConflictError, match=CELLS[1].id) as conflict:
        merge([a, b], c)
    assert conflict.value.cells == (CELLS[1].id,)
    text = str(conflict.value)
    assert "1 cells have different results, nothing was merged" in text
    assert "seed 1" in text
    assert f"error {one!r} and {other!r}" in text
    assert errors(c) == {5: 0.7}
    assert main(["merge", str(a), str(b), "--into", str(c)]) == 2
    said = capsys.readouterr().err
    assert CELLS[1].id in said
    assert "Traceback" not in said
    with pytest.raises(ConflictError):  # in the target, too
        merge([b], filled(tmp_path / "d", {1: one}))


def test_many_conflicts_are_counted_and_ten_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_CELLS_NAMED", 3)
    a = filled(tmp_path / "a", dict.fromkeys(range(8), 0.1))
    b = filled(tmp_path / "b", dict.fromkeys(range(8), 0.2))
    with pytest.raises(ConflictError, match="and 5 more") as conflict:
        merge([a, b], tmp_path / "c")
    assert len(conflict.value.cells) == 8


def test_a_tampered_configuration_is_a_conflict(tmp_path):
    a, b = filled(tmp_path / "a", {0: 0.1}), filled(tmp_path / "b", {0: 0.1}, config="other")
    with pytest.raises(ConflictError, match="records differ"):
        merge([a, b], tmp_path / "c")


def test_stores_of_two_experiments_are_refused(tmp_path):
    a, b = filled(tmp_path / "a", {0: 0.1}), filled(tmp_path / "b", {1: 0.1}, name="another")
    with pytest.raises(
        ValueError, match="sources must be stores of one experiment, got another in"
    ):
        merge([a, b], tmp_path / "c")
    with pytest.raises(ValueError, match="of one experiment"):
        merge([a], b)
    assert errors(b) == {1: 0.1}


def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path):
    a = filled(tmp_path / "a", {0: 0.1})
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "cells.sqlite").write_text("no database" * 100)
    for sources in ([], "ab", [7], [tmp_path / "nowhere"], [a, a / "other"], [tmp_path / "text"]):
        with pytest.raises(ValueError, match="sources"):
            merge(sources, tmp_path / "c")
    assert not (tmp_path / "nowhere").exists()
    for source in (a, a / "cells.sqlite", a / ".." / "a"):
        with pytest.raises(ValueError, match="other stores than the target"):
            merge([source], a)
    with pytest.raises(ValueError, match="into must be"):
        merge([a], 7)


def test_cells_that_a_living_run_computes_in_the_target_are_refused(tmp_path):
    a = filled(tmp_path / "a", {0: 0.1})
    with Store(tmp_path / "c") as target:
        target.open_run({"name": "mean-estimation"}, {}, "1 x cpu")
        target.claim(CELLS, target.pending(CELLS), 1)
        with pytest.raises(RuntimeError, match="a run is at work on these cells"):
            merge([a], tmp_path / "c")
    assert merge([a], tmp_path / "c").added == 1


@pytest.mark.parametrize("words", [[], ["a"], ["a", "--into"], ["--into", "c"], ["a", "--on", "c"]])
def test_the_command_says_what_it_takes(words, capsys):
    assert main(["merge", *words]) == 2
    said = capsys.readouterr().err
    assert "--into" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_merge_that_is_killed_has_brought_in_nothing_and_loses_nothing(tmp_path):
    """The process is killed before the commit, after records were written."""
    a, b = filled(tmp_path / "a", {0: 0.1, 1: 0.2}), filled(tmp_path / "b", {2: 0.3, 3: None})
    c = filled(tmp_path / "c", {3: 0.4, 5: None})
    code = (
        "import os, signal, sys\n"
        "from dpsco_jax.sweeps import merging\n"
        "def die(work):\n"
        "    assert work._db.execute('SELECT count(*) FROM cells').fetchone()[0] == 5\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "merging._Work.refuse_conflicts = die\n"
        "merging.merge(sys.argv[1:3], sys.argv[3])\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(a), str(b), str(c)], cwd=ROOT, timeout=120, env=os.environ
    )
    assert killed.returncode == -signal.SIGKILL
    assert errors(c) == {3: 0.4, 5: None}
    assert merge([a, b], c) == Merged(added=3, replaced=0, present=1)
    assert errors(c) == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 5: None}
    assert errors(a) == {0: 0.1, 1: 0.2}
