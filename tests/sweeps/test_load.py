"""Experiments in files of a user: found, checked, and refused with what there is."""

import sys

import pytest

from dpsco_jax.sweeps.command import main
from dpsco_jax.sweeps.load import experiments_in, load, require_experiment
from tests.sweeps.mean_estimation import MeanEstimation

FILE = '''
"""Mine."""
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import beside_mine
from dpsco_jax.sweeps import Program, axis, product


@dataclasses.dataclass(frozen=True)
class Mine:
    """What I measure.

    Attributes:
        scales: of the numbers.
        seeds: repetitions.
    """

    name: ClassVar[str] = "mine"
    version: ClassVar[int] = 1
    scales: tuple[float, ...] = axis("scale", (1.0, 2.0))
    seeds: int = axis("seed", 2)

    def cells(self):
        return product(self)

    def build(self, static):
        return Program(lambda shared, key, inputs: {"twice": beside_mine.TWO * inputs["scale"]})

    def report(self, frame, folder: Path):
        frame.to_csv(folder / "summary.csv")


class Unrelated:
    pass
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_sweep.py").write_text(FILE)
    (tmp_path / "beside_mine.py").write_text("TWO = 2\n")
    yield tmp_path / "my_sweep.py"
    sys.modules.pop("beside_mine", None)
    sys.modules.pop("dpsco_sweep_my_sweep", None)


def test_a_class_in_a_file_is_found_with_what_lies_beside_it(mine):
    assert set(experiments_in(mine)) == {"Mine"}
    kind = load(f"{mine}:Mine")
    assert kind.name == "mine"
    assert len(kind().cells()) == 4


def test_names_of_the_table_come_first():
    assert load("mean-estimation", {"mean-estimation": MeanEstimation}) is MeanEstimation


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{file}:Yours", "target must be an experiment of .*my_sweep.py: Mine, got"),
        ("{file}", "target must be an experiment of .*my_sweep.py: Mine, got"),
        ("{file}:Unrelated", "target must be an experiment of .*my_sweep.py: Mine, got"),
        ("nowhere.py:Mine", "file must be a Python file that exists, got 'nowhere.py'"),
        ("mean", "target must be one of mean-estimation, or FILE.py:CLASS, got 'mean'"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(mine, target, message):
    with pytest.raises(ValueError, match=message):
        load(target.format(file=mine), {"mean-estimation": MeanEstimation})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a/b"}, "Mine.name must be a name of letters"),
        ({"name": ".."}, "Mine.name must be a name of letters"),
        ({"version": "1"}, "Mine.version must be an integer"),
        ({"__dataclass_params__": None}, "Mine must be a frozen dataclass"),
    ],
)
def test_what_is_no_experiment_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        require_experiment("Mine", type("Mine", (MeanEstimation,), change))
    with pytest.raises(ValueError, match="kind must be a class with name, version"):
        require_experiment("Mine", int)


def test_list_run_and_report_of_a_file(mine, tmp_path, capsys):
    target, results = f"{mine}:Mine", ["--results", str(tmp_path / "out")]
    assert main(["list", str(mine)]) == 0
    printed = capsys.readouterr().out
    assert "my_sweep.py:Mine" in printed
    assert "What I measure." in printed
    assert main(["run", target, "--seeds", "3", *results]) == 0
    assert "6 cells have a result" in capsys.readouterr().out
    assert main(["report", target, "--seeds", "3", *results]) == 0
    assert "6 of 6 cells finished" in capsys.readouterr().out
    assert (tmp_path / "out/mine/summary.csv").read_text().count("\n") == 7
    with pytest.raises(SystemExit) as end:
        main(["run", target, "--help"])
    assert end.value.code == 0
    assert "of the numbers" in capsys.readouterr().out


def test_on_the_command_line_a_refusal_is_one_line(mine, capsys):
    for words in (["run", f"{mine}:Yours"], ["report", "nowhere.py:Mine"], ["list", "nowhere.py"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
