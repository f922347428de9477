import dataclasses

import numpy as np
import pytest

from dpsco_jax.sweeps.cells import (
    axis,
    cells_of,
    config_hash,
    key_words,
    needs_x64,
    product,
    static_settings,
)
from tests.sweeps.mean_estimation import MeanEstimation


def ids(experiment):
    return [cell.id for cell in cells_of(experiment)]


def test_product_has_every_combination_once_last_axis_fastest():
    settings = product(MeanEstimation(dims=(2, 5), noises=(1.0, 2.0), seeds=2))
    points = [(s["dim"], s["noise"], s["seed"]) for s in settings]
    assert points[:3] == [(2, 1.0, 0), (2, 1.0, 1), (2, 2.0, 0)]
    assert len(set(points)) == len(points) == 8


def test_longer_axes_keep_the_cells_that_are_there():
    assert set(ids(MeanEstimation(seeds=2))) < set(
        ids(MeanEstimation(seeds=3, noises=(0.5, 1, 2, 3)))
    )


def test_a_constant_the_name_and_the_version_make_new_cells():
    base = MeanEstimation()
    renamed = type("Renamed", (MeanEstimation,), {"name": "other"})()
    raised = type("Raised", (MeanEstimation,), {"version": 2})()
    variants = [base, MeanEstimation(work=1), renamed, raised]
    assert len({i for variant in variants for i in ids(variant)}) == 4 * len(ids(base))
    assert len({config_hash(variant) for variant in variants}) == 4
    assert config_hash(base) == config_hash(MeanEstimation(seeds=7))


def test_float64_makes_new_cells_only_where_it_is_declared():
    base = MeanEstimation()
    wide, narrow = (
        type("Declared", (MeanEstimation,), {"x64": declared})() for declared in (True, False)
    )
    assert [needs_x64(each) for each in (wide, narrow, base)] == [True, False, False]
    assert ids(narrow) == ids(base)
    assert config_hash(narrow) == config_hash(base)
    assert not {*ids(wide)} & {*ids(base)}
    assert config_hash(wide) != config_hash(base)
    with pytest.raises(ValueError, match="x64 must be"):
        needs_x64(type("Undecided", (MeanEstimation,), {"x64": "yes"})())


def test_identity_is_stable_across_processes_and_number_types():
    (cell,) = cells_of(MeanEstimation(dims=(2,), noises=(1.0,), seeds=1))
    assert cell.id == "5f09cb569c40d619b9ecf8f48f80642c"
    assert ids(MeanEstimation(noises=(1,))) == ids(MeanEstimation(noises=(1.0,)))


def test_repeated_values_and_strange_settings_are_refused():
    with pytest.raises(ValueError, match="same cell twice"):
        cells_of(MeanEstimation(noises=(1.0, 1.0)))
    for strange in (np.zeros(2), float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a string, a finite number or a boolean"):
            cells_of(MeanEstimation(noises=(strange,)))


def test_static_settings_and_key_words():
    @dataclasses.dataclass(frozen=True)
    class Two:
        colours: tuple[str, ...] = axis("colour", ("red",), static=True)
        sizes: tuple[int, ...] = axis("size", (1,))

    assert static_settings(Two(), {"colour": "red", "size": 1}) == {"colour": "red"}
    words = key_words(["00000001ffffffff" + "0" * 16])
    assert words.dtype == np.uint32
    assert words.tolist() == [[1, 2**32 - 1]]
