"""Results of several codes of one experiment: noticed, shown, computed again where that is asked for."""

import json
import sqlite3
import sys

import pytest

from dpsco_jax import sweeps
from dpsco_jax.sweeps import _code
from dpsco_jax.sweeps.command import main
from dpsco_jax.sweeps.load import experiments_in
from tests.sweeps.mean_estimation import MeanEstimation
from tests.sweeps.test_load import FILE


def _forget():
    for name in ("beside_mine", "farther", "dpsco_sweep_my_sweep"):
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within a second are edits
    (tmp_path / "my_sweep.py").write_text(FILE)
    (tmp_path / "beside_mine.py").write_text("from farther import TWO\n")
    (tmp_path / "farther.py").write_text("TWO = 2\n")
    (tmp_path / "unrelated.py").write_text("import farther\n")
    yield tmp_path
    _forget()


def _on(folder, *words):
    """The command in a process that has not yet read the files."""
    _forget()
    command, *options = words
    target = f"{folder / 'my_sweep.py'}:Mine"
    return main([command, target, "--results", str(folder / "results"), *options])


def _twice(folder):
    table = sweeps.results(folder / "results" / "mine")
    return dict(zip(zip(table["scale"], table["seed"], strict=True), table["twice"], strict=True))


def _edit(folder, three=3):
    (folder / "farther.py").write_text(f"TWO = {three}\n")


def test_a_run_says_that_results_are_by_another_code_and_computes_them_again_if_asked(
    folder, capsys
):
    assert _on(folder, "run") == 0
    assert "WARNING" not in capsys.readouterr().out
    _edit(folder)
    assert _on(folder, "run", "--seeds", "3") == 0
    said = capsys.readouterr()
    assert "6 cells have a result; WARNING: 4 are by another code" in said.out
    assert "--rerun-changed" in said.out
    assert "UserWarning" not in said.err
    # Old cells are as they were, new ones by the new code.
    assert _twice(folder) == {
        (s, i): s * (3 if i == 2 else 2) for s in (1.0, 2.0) for i in range(3)
    }
    assert _on(folder, "run", "--seeds", "3", "--rerun-changed") == 0
    assert capsys.readouterr().out.rstrip().endswith("6 cells have a result")
    assert _twice(folder) == {(s, i): 3 * s for s in (1.0, 2.0) for i in range(3)}
    table = sweeps.results(folder / "results" / "mine")
    assert table["experiment code"].nunique() == 1
    assert set(table["attempts"]) == {1, 2}
    assert _on(folder, "report", "--seeds", "3") == 0
    assert "WARNING" not in capsys.readouterr().out


def test_a_report_shows_the_mixture_on_its_page_too(folder, capsys):
    assert _on(folder, "run") == 0
    _edit(folder)
    assert _on(folder, "run", "--seeds", "3") == 0
    capsys.readouterr()
    assert _on(folder, "report", "--seeds", "3", "--html") == 0
    said = capsys.readouterr().out
    assert "WARNING: results are not all by the code of the experiment as it is now" in said
    (now,) = [line for line in said.splitlines() if "that of now" in line]
    assert " 2 " in now
    assert "different sets of library versions" not in said
    page = (folder / "results" / "mine" / "report.html").read_text()
    assert "not all by the code of the experiment" in page
    # As the file was at first, the others are the changed ones.
    _edit(folder, 2)
    assert _on(folder, "run", "--seeds", "3") == 0
    assert "WARNING: 2 are by another code" in capsys.readouterr().out


def test_results_without_a_hash_stay_and_are_called_unknown(folder, capsys):
    assert _on(folder, "run") == 0
    file = folder / "results" / "mine" / "cells.sqlite"
    with sqlite3.connect(file) as db:
        ((versions,),) = db.execute("SELECT versions FROM runs").fetchall()
        old = {name: of for name, of in json.loads(versions).items() if name != "experiment code"}
        db.execute("UPDATE runs SET versions = ?", [json.dumps(old)])
    db.close()
    _edit(folder)
    capsys.readouterr()
    assert _on(folder, "run", "--rerun-changed") == 0
    said = capsys.readouterr().out
    assert "4 cells have a result; 4 are by a code that is unknown" in said
    assert "WARNING" not in said
    assert set(_twice(folder).values()) == {2.0, 4.0}
    assert sweeps.results(file)["experiment code"].isna().all()
    assert _on(folder, "report") == 0
    said = capsys.readouterr().out
    assert "unknown: noted by no run" in said
    assert "--rerun-changed" not in said


def test_in_python_a_run_warns(folder):
    with sweeps.Store(folder / "results") as store:
        kind = experiments_in(folder / "my_sweep.py")["Mine"]
        assert sweeps.run(kind(), store) == (4, 0, 0, 0)
    _edit(folder)
    _forget()
    with sweeps.Store(folder / "results") as store:
        kind = experiments_in(folder / "my_sweep.py")["Mine"]
        with pytest.warns(UserWarning, match="4 of 4 results of mine are by another code"):
            assert sweeps.run(kind(), store) == (4, 0, 0, 0)
        assert sweeps.run(kind(), store, rerun_changed=True) == (4, 0, 0, 0)
        with pytest.raises(ValueError, match="rerun_changed"):
            sweeps.run(kind(), store, rerun_changed="yes")


def test_a_result_that_was_dropped_is_not_taken_for_one_if_the_run_is_killed(folder, monkeypatch):
    with sweeps.Store(folder / "results") as store:
        sweeps.run(experiments_in(folder / "my_sweep.py")["Mine"](), store)
    _edit(folder)
    _forget()
    experiment = experiments_in(folder / "my_sweep.py")["Mine"]()
    monkeypatch.setattr(
        type(experiment), "build", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with sweeps.Store(folder / "results") as store:
        with pytest.raises(KeyboardInterrupt):
            sweeps.run(experiment, store, rerun_changed=True)
        assert store.statuses([*map(_cell, store.rows())]) == ["failed"] * 4
        assert all(not row["results"] for row in store.rows())


def _cell(row):
    return sweeps.cells.Cell(row["id"], row["settings"])


class TestWhatIsHashed:
    def _hash(self, folder):
        _forget()
        return _code.own(experiments_in(folder / "my_sweep.py")["Mine"])

    def test_the_file_and_what_it_imports_through_others_and_nothing_else(self, folder):
        first = self._hash(folder)
        assert len(first) == 12
        for name, changes in (
            ("my_sweep.py", True),
            ("beside_mine.py", True),
            ("farther.py", True),
            ("unrelated.py", False),
            ("__init__.py", False),
        ):
            path = folder / name
            before = path.read_text() if path.exists() else ""
            path.write_text(before + "# more\n")
            assert (self._hash(folder) != first) is changes, name
            path.write_text(before)
        assert self._hash(folder) == first

    def test_imports_inside_of_functions_and_of_packages(self, folder):
        (folder / "inner").mkdir()
        (folder / "inner" / "__init__.py").write_text("")
        (folder / "inner" / "deep.py").write_text("from . import deeper\n")
        (folder / "inner" / "deeper.py").write_text("")
        text = FILE.replace("def cells(self):", "def cells(self):\n        import inner.deep")
        (folder / "my_sweep.py").write_text(text)
        seen = {self._hash(folder)}
        for name in ("__init__", "deep", "deeper"):
            path = folder / "inner" / f"{name}.py"
            path.write_text(path.read_text() + "# more\n")
            seen.add(self._hash(folder))
        assert len(seen) == 4

    def test_a_copy_of_the_folder_has_the_same(self, folder, tmp_path_factory):
        there = tmp_path_factory.mktemp("copy")
        for path in folder.glob("*.py"):
            (there / path.name).write_text(path.read_text())
        assert self._hash(there) == self._hash(folder)

    def test_modules_of_a_package_are_looked_up_from_its_root(self):
        found = _code.own(MeanEstimation)
        assert found is not None
        assert found == _code.own(MeanEstimation)

    def test_a_class_without_a_file_has_none(self):
        kind = type("Typed", (), {"__module__": "no.such.module"})
        assert _code.own(kind) is None
