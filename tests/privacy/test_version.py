"""The version in certificates is that of the code that runs, installed or not."""

import importlib.metadata
import pathlib
import tomllib

import pytest
from dp_accounting import NeighboringRelation

import dpsco_jax
from dpsco_jax import privacy
from dpsco_jax.privacy.dp_accounting import events


@pytest.fixture
def not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)


def test_a_source_tree_certifies(not_installed):
    relation = NeighboringRelation.REPLACE_ONE
    certificate = privacy.certificate(events.gaussian(2.0), 1e-5, relation)
    assert certificate.accountant.endswith(f"(dpsco_jax {dpsco_jax.__version__})")


def test_one_version():
    root = pathlib.Path(dpsco_jax.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["version"] == dpsco_jax.__version__


def test_nothing_in_the_library_asks_what_is_installed():
    root = pathlib.Path(dpsco_jax.__file__).parent
    asking = [p for p in root.rglob("*.py") if "importlib.metadata" in p.read_text()]
    assert asking == [root / "sweeps" / "versions.py"], "a sweep records what it ran with"
