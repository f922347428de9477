"""What holds for every study, and what is in the wheel."""

import dataclasses
import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.command import main
from dpsco_jax.sweeps.load import _MEMBERS, require_experiment
from experiments import studies
from experiments.studies import user_level_solvers
from experiments.studies.table import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def words():
    """Every axis of every study whose values are words."""
    for name, kind in EXPERIMENTS.items():
        for field in dataclasses.fields(kind):
            values = getattr(kind(), field.name)
            if (
                "axis" in field.metadata
                and isinstance(values, tuple)
                and isinstance(values[0], str)
            ):
                yield pytest.param(kind, field, id=f"{name}.{field.name}")


def test_every_study_is_in_the_table_by_its_name():
    kinds = set()
    for found in pkgutil.iter_modules(studies.__path__, "experiments.studies."):
        for value in vars(importlib.import_module(found.name)).values():
            if isinstance(value, type) and value.__module__ == found.name:
                kinds |= {value} if all(hasattr(value, name) for name in _MEMBERS) else set()
    assert kinds == set(EXPERIMENTS.values())
    assert all(name == kind.name for name, kind in EXPERIMENTS.items())


@pytest.mark.parametrize("kind", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_every_study_is_an_experiment_with_cells(kind):
    require_experiment(kind.__name__, kind)
    assert cells_of(kind())


@pytest.mark.parametrize(("kind", "field"), [*words()])
def test_a_name_that_nobody_knows_is_refused_with_those_that_are_known(kind, field):
    known = getattr(kind(), field.name)[0]
    with pytest.raises(ValueError, match=rf"{field.metadata['axis']} must be one of .*{known}"):
        cells_of(kind(**{field.name: (known, "nonsense")}))


def test_on_the_command_line_nothing_is_recorded_of_a_name_that_nobody_knows(tmp_path, capsys):
    words = ["run", "user-level-robustness", "--estimators", "nonsense", "--results", str(tmp_path)]
    assert main(words, EXPERIMENTS) == 2
    said = capsys.readouterr().err
    assert "error: estimator must be one of 'clipping at the bound', " in said
    assert "got 'nonsense'" in said
    assert not list(tmp_path.iterdir())


def test_the_tuned_baseline_does_not_vanish_with_its_file(monkeypatch, tmp_path):
    user_level_solvers.tuned_configs.cache_clear()
    monkeypatch.setattr(user_level_solvers, "TUNED_FILE", tmp_path / "tuned_dp_sgd.csv")
    with pytest.raises(FileNotFoundError, match=r"tuned_dp_sgd\.csv is missing"):
        user_level_solvers.UserLevelSolvers().cells()


def test_studies_and_benchmarks_are_not_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == ["dpsco_jax*"]
