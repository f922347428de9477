"""Shares: each cell in exactly one, on every machine."""

from pathlib import Path

import pytest

from dpsco_jax import sweeps
from dpsco_jax.sweeps.cells import Cell, cells_of
from dpsco_jax.sweeps.command import main
from dpsco_jax.sweeps.shares import Share, parse
from tests.sweeps.mean_estimation import MeanEstimation

EXPERIMENTS = {MeanEstimation.name: MeanEstimation}
CELLS = cells_of(MeanEstimation(seeds=100))


@pytest.mark.parametrize("total", [1, 2, 7, 8])
def test_every_cell_is_in_exactly_one_share(total):
    shares = [Share(number, total) for number in range(1, total + 1)]
    assert all(sum(share.has(cell) for share in shares) == 1 for cell in CELLS)
    sizes = [sum(map(share.has, CELLS)) for share in shares]
    expected = len(CELLS) / total
    assert all(abs(size - expected) <= 5 * expected**0.5 for size in sizes)  # of a binomial law


def test_up_to_fifty_shares_part_the_cells_and_more_shares_than_cells_do(tmp_path):
    few = CELLS[:50]
    for total in [*range(1, 51), 1000]:
        parts = [[c.id for c in few if Share(i, total).has(c)] for i in range(1, total + 1)]
        assert sorted(cell for part in parts for cell in part) == sorted(c.id for c in few)


def test_a_share_is_the_identity_modulo_the_number_of_shares():
    by_hand = [cell for cell in CELLS if int(cell.id[-1], 16) % 8 == 2]  # 8 divides 16
    assert [cell for cell in CELLS if parse("3/8").has(cell)] == by_hand


def test_a_share_does_not_depend_on_the_process_or_on_other_cells():
    """This cell has this name in every process (``test_cells``), whose remainders are found by hand."""
    cell = Cell("5f09cb569c40d619b9ecf8f48f80642c", {"seed": 0})
    by_three = sum(int(digit, 16) for digit in cell.id) % 3  # 16 is 1 modulo 3
    by_seventeen = sum((-1) ** i * int(digit, 16) for i, digit in enumerate(cell.id[::-1])) % 17
    assert parse("5/8").has(cell)  # c is 12, and 4 modulo 8
    assert Share(by_three + 1, 3).has(cell)
    assert Share(by_seventeen + 1, 17).has(cell)


@pytest.mark.parametrize(
    "text",
    [
        "0/8",
        "9/8",
        "3",
        "3/0",
        "0/0",
        "-1/8",
        "3/8/1",
        "a/b",
        "",
        "3 / 8",
        "٣/8",
        "1.0/2",
        "+1/8",
        "1/" + "9" * 5000,
    ],
)
def test_what_is_no_share_is_refused_by_name(text, tmp_path, capsys):
    with pytest.raises(ValueError, match="share must be I/N with 1 <= I <= N"):
        parse(text)
    words = ["run", "mean-estimation", f"--share={text}", "--results", str(tmp_path)]
    assert main(words, EXPERIMENTS) == 2
    assert "share must be I/N" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_shares_that_are_merged_are_the_whole(tmp_path, capsys):
    place = ["--results", str(tmp_path), "--dims", "2"]
    folder = tmp_path / "mean-estimation"
    for share in ("1/3", "2/3", "3/3"):
        assert main(["run", "mean-estimation", *place, "--share", share], EXPERIMENTS) == 0
    stores = [str(folder / f"share-{number}-of-3") for number in (1, 2, 3)]
    assert all((Path(store) / "cells.sqlite").is_file() for store in stores)
    assert not (folder / "cells.sqlite").exists()
    assert main(["merge", *stores, "--into", str(folder)], EXPERIMENTS) == 0
    assert f"12 cells added to {folder}" in capsys.readouterr().out
    with sweeps.Store(tmp_path / "whole") as store:
        sweeps.run(MeanEstimation(dims=(2,)), store)
        whole = {row["id"]: row["results"] for row in store.rows()}
    with sweeps.Store(folder) as store:
        assert {row["id"]: row["results"] for row in store.rows()} == whole
    assert main(["run", "mean-estimation", *place], EXPERIMENTS) == 0  # nothing is missing
    assert "12 cells have a result" in capsys.readouterr().out
    # Shares of another number do not compute what has been merged.
    longer = ["run", "mean-estimation", *place, "--seeds", "6", "--share", "1/2"]
    assert main(longer, EXPERIMENTS) == 0
    new = [c for c in cells_of(MeanEstimation(dims=(2,), seeds=6)) if c.settings["seed"] >= 4]
    with sweeps.Store(folder / "share-1-of-2") as store:
        ids = {row["id"] for row in store.rows()}
    assert ids == {cell.id for cell in new if Share(1, 2).has(cell)}
    assert ids
