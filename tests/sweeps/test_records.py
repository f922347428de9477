"""All that a store holds, as one table."""

import pytest

from dpsco_jax import sweeps
from dpsco_jax.sweeps.cells import config_hash
from dpsco_jax.sweeps.store import Store
from tests.sweeps.mean_estimation import MeanEstimation

FIRST = MeanEstimation(dims=(2,), noises=(1.0, -1.0), seeds=2)
OTHER = MeanEstimation(dims=(2,), noises=(3.0,), seeds=1, work=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for experiment in (FIRST, OTHER):
        with Store(folder) as store:
            sweeps.run(experiment, store)
    return folder


def test_every_record_is_a_row_whatever_its_configuration(folder):
    table = sweeps.results(folder)
    assert len(table) == 5
    assert table["status"].value_counts().to_dict() == {"ok": 3, "failed": 2}
    assert sorted(table["noise"]) == [-1.0, -1.0, 1.0, 1.0, 3.0]
    other = table[table["constant.work"] == 5]
    assert other["noise"].tolist() == [3.0]
    assert other["configuration"].tolist() == [config_hash(OTHER)]
    assert set(table["configuration"]) == {config_hash(FIRST), config_hash(OTHER)}
    assert table[table["status"] == "failed"]["error"].isna().all()
    assert (table[table["status"] == "ok"]["error"] > 0).all()
    assert table["id"].is_unique
    assert (table["attempts"] == 1).all()


def test_the_file_and_texts_are_paths_too(folder):
    table = sweeps.results(folder)
    assert sweeps.results(str(folder)).equals(table)
    assert sweeps.results(folder / "cells.sqlite").equals(table)


def test_what_is_no_store_is_refused_by_name_and_left_as_it_is(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", str(tmp_path / "cells.sqlite")):
        with pytest.raises(ValueError, match=r"path must be the folder .* cells\.sqlite in it"):
            sweeps.results(path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "cells.sqlite").write_text("no database" * 100)
    with pytest.raises(ValueError, match="path must be the store of an experiment"):
        sweeps.results(tmp_path)
