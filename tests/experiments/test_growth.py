"""The growth table: fits of known powers, a square that is caught, and a small run of the whole."""

import json
import math
import sys

import jax.numpy as jnp
import pytest

from experiments.benchmarks import growth, growth_figure, tables
from experiments.benchmarks.growth_cases import CASES, Case, Sizes

SIZES = (100, 400, 1_600)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(power):
    found, one = growth.exponent(SIZES, [3.0 * size**power for size in SIZES])
    assert found == pytest.approx(power, abs=1e-9)
    assert one == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("power", "missed"), [(1.0, False), (1.29, False), (1.31, True), (2.0, True)]
)
def test_a_ratio_is_below_its_target_where_the_exponent_is_above_its_limit(power, missed):
    row = growth.fitted("work", "users", SIZES, [1e-3 * size**power for size in SIZES], 1.3)
    assert row.missed == missed
    assert row.ratio == pytest.approx(16**-power)
    assert [size for size, _ in row.points] == [*SIZES]


def test_costs_below_the_floor_do_not_grow():
    row = growth.fitted("work", "users", SIZES, [1e-6, 1e-5, 1e-4], 0.1, floor=1e-4)
    assert not row.missed
    assert row.ratio == pytest.approx(1.0)


def _case(function):
    def program(made, sizes):
        del made
        return function, (jnp.ones(sizes.n),)

    return Case(
        "toy", lambda sizes: None, program, {"n": (256, 512, 1_024)}, base=Sizes(), plans=False
    )


@pytest.mark.parametrize("square", [True, False])
def test_memory_that_grows_as_a_square_is_caught(square):
    def pairs(x):
        rows = jnp.stack([x] * 8, axis=1)
        return jnp.tanh(rows @ rows.T) @ rows if square else 2 * rows

    rows = {row.work: row for row in growth.case_rows(_case(pairs))}
    assert {*rows} == {"toy: compile", "toy: run", "toy: memory"}
    assert rows["toy: memory"].missed == square
    if square:
        assert math.log(rows["toy: memory"].ratio, 1 / 4) > 1.8


def test_every_case_has_limits_for_what_grows():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for case in CASES:
        assert {*case.axes} <= {*growth.AXES}
        assert "n" in case.axes
        assert {axis for axis, _ in case.limits} <= {*case.axes}
        for values in case.axes.values():
            assert len(values) == 3
            assert [*values] == sorted(values)


@pytest.mark.slow
def test_a_small_run_of_the_whole_makes_a_table_and_a_figure(tmp_path):
    found = list(growth.rows(small=True))
    works = {row.work for row in found}
    assert {f"sgd, all users: {column}" for column in growth.COLUMNS} <= works
    assert "store of a sweep, one chunk: instructions" in works
    assert all(math.isfinite(row.ratio) and row.ratio > 0 for row in found)
    path = tmp_path / "growth.json"
    tables.write(path, {"device": "cpu"}, {"growth": found}, {})
    kept = json.loads(path.read_text())["suites"]["growth"]
    assert [row["missed"] for row in kept] == [row.missed for row in found]
    growth_figure.draw(path, tmp_path / "figure")
    assert (tmp_path / "figure.svg").stat().st_size > 1_000
    tables.write(path, {}, {}, {})
    with pytest.raises(ValueError, match="growth"):
        growth_figure.draw(path, tmp_path / "figure")


@pytest.mark.parametrize(("power", "status"), [(1.0, 0), (2.0, 1)])
def test_a_release_is_stopped_by_an_exponent_above_its_limit(monkeypatch, tmp_path, power, status):
    from experiments.benchmarks import __main__ as command

    row = growth.fitted("work", "users", SIZES, [size**power for size in SIZES], 1.3)
    monkeypatch.setattr(growth, "rows", lambda small=False: [row])
    path = tmp_path / "growth.json"
    for given, expected in (([], 0), (["--check"], status)):
        monkeypatch.setattr(sys, "argv", ["benchmarks", "growth", "--output", str(path), *given])
        assert command.main() == expected
    assert json.loads(path.read_text())["suites"]["growth"][0]["missed"] == bool(status)
