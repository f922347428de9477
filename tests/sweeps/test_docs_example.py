"""The example of docs/sweeps.md, word for word: run by the command, interrupted, resumed, reported."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from dpsco_jax import sweeps
from dpsco_jax.sweeps import command
from dpsco_jax.sweeps.progress import Progress

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/sweeps.md").read_text(), flags=re.DOTALL)
CELLS = 3 * 4 * 2


def dpsco_sweep(*words):
    """The console command, as pyproject.toml declares it, without the choice of devices."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["dpsco-sweep"].split(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dpsco-sweep", *words])
        patch.setattr(command, "use_all_cores", lambda: None)
        return getattr(importlib.import_module(module), function)()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with ``mine.py`` as the page has it, to be run in."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(BLOCKS[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        yield folder
    sys.modules.pop("mine", None)
    sys.modules.pop("dpsco_sweep_mine", None)


@pytest.fixture(scope="module")
def resumed(place):
    """Interrupted after the first chunk, then run to the end: how many cells each time."""
    words = ("run", "mine.py:Mine", "--seeds", "2", "--cells-per-chunk", "4")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "advance", interrupt)
        assert dpsco_sweep(*words) == 130
    first = sweeps.results("results/mine")
    assert dpsco_sweep(*words) == 0
    return first, sweeps.results("results/mine")


def test_what_was_finished_before_the_interrupt_is_kept(resumed):
    first, table = resumed
    assert len(first) == 4
    assert len(table) == CELLS
    pd.testing.assert_frame_equal(table.head(4), first)
    assert (table["attempts"] == 1).all()


def test_every_cell_has_a_certified_result(resumed):
    _, table = resumed
    assert set(table["status"]) == {"ok"}, table["traceback"].dropna().unique()
    assert (table["certified_epsilon"] <= table["epsilon"]).all()
    assert (table["excess_risk"] > 0).all()
    assert (table["constant.num_steps"] == 50).all()
    means = table.groupby("epsilon")["excess_risk"].mean()
    assert means[4.0] < means[0.5]


def test_more_seeds_run_only_what_is_new(resumed, capsys):
    _, table = resumed
    assert dpsco_sweep("run", "mine.py:Mine", "--seeds", "3", "--averagings", "last") == 0
    assert "12 cells have a result" in capsys.readouterr().out
    more = sweeps.results("results/mine")
    assert len(more) == CELLS + 4
    pd.testing.assert_frame_equal(more.head(CELLS), table)


def test_the_report_has_table_figure_and_page(resumed, place, capsys):
    assert dpsco_sweep("report", "mine.py:Mine", "--seeds", "2", "--html") == 0
    printed = capsys.readouterr().out
    assert f"{CELLS} of {CELLS} cells finished" in printed
    assert "Excess risk, mean over seeds" in printed
    files = {path.name for path in (place / "results/mine").iterdir()}
    figure = {"excess_risk.png", "excess_risk.svg"}
    assert files == {"cells.sqlite", "cells.csv", "summary.csv", "report.html"} | figure


def test_a_misspelt_name_is_refused_before_anything_runs(place, capsys):
    assert dpsco_sweep("run", "mine.py:Mine", "--averagings", "first") == 2
    said = capsys.readouterr().err
    assert "averaging must be one of 'last', 'uniform', 'polynomial', got 'first'" in said


def test_the_lines_of_python_run_as_printed(resumed, place, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        exec(compile(BLOCKS[1], "docs/sweeps.md, in Python", "exec"), {})
    printed = capsys.readouterr().out
    assert f"Tally(done={CELLS}, nonfinite=0, failed=0, missing=0)" in printed
    assert "polynomial" in printed
