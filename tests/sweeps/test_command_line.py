"""The command line in processes of its own: killed, started twice, interrupted."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.command import main
from dpsco_jax.sweeps.store import Store
from tests.sweeps.mean_estimation import MeanEstimation

ROOT = Path(__file__).parents[2]
WORK = 2_000_000
EXPERIMENTS = {MeanEstimation.name: MeanEstimation}


def start(results, *more, work=WORK):
    command = [sys.executable, "-m", "tests.sweeps.mean_estimation", "run", "mean-estimation"]
    command += ["--results", str(results), "--work", str(work), "--seeds", "10", *more]
    return subprocess.Popen(
        [*command, "--cells-per-chunk", "2"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # Of a test run in the background the children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def stored(results, work=WORK):
    cells = cells_of(MeanEstimation(work=work, seeds=10))
    with Store(results / "mean-estimation") as store:
        return {row["id"]: row for row in store.rows(cells)}


def wait_for_cells(process, results, count, work=WORK):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if len(stored(results, work)) >= count:
                return
        except sqlite3.OperationalError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"no progress: {process.communicate()}")


def results_of(rows):
    return {i: (row["status"], row["results"]) for i, row in rows.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The results of one run that nobody disturbs."""
    results = tmp_path_factory.mktemp("undisturbed")
    output, _ = (process := start(results)).communicate(timeout=120)
    assert process.returncode == 0, output
    assert "60 cells have a result" in output
    return results_of(stored(results))


@pytest.mark.slow
def test_killed_again_and_again_nothing_is_lost_or_done_twice(tmp_path, undisturbed):
    seen = {}
    for count in (2, 24):
        process = start(tmp_path)
        wait_for_cells(process, tmp_path, max(count, len(seen) + 2))
        process.kill()
        process.communicate()
        now = stored(tmp_path)
        assert seen.items() <= now.items()  # the same rows, time and run number included
        assert len(now) < 60, "the process was not killed in the middle"
        seen = now
    output, _ = (process := start(tmp_path)).communicate(timeout=120)
    assert process.returncode == 0, output
    final = stored(tmp_path)
    assert seen.items() <= final.items()
    assert {row["attempts"] for row in final.values()} == {1}
    assert results_of(final) == undisturbed


@pytest.mark.slow
def test_two_processes_share_the_work(tmp_path, undisturbed):
    processes = [start(tmp_path), start(tmp_path)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert not any("Traceback" in output for output in outputs), outputs
    rows = stored(tmp_path)
    assert {row["attempts"] for row in rows.values()} == {1}
    assert len({row["run"] for row in rows.values()}) == 2
    assert results_of(rows) == undisturbed


@pytest.mark.slow
def test_an_interrupt_stops_cleanly(tmp_path):
    work = 10 * WORK  # so that it is not over before a busy machine sends the signal
    process = start(tmp_path, work=work)
    wait_for_cells(process, tmp_path, 2, work)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted: finished cells are stored" in output
    assert "Traceback" not in output
    assert 2 <= len(stored(tmp_path, work)) < 60


def test_list_run_and_report(tmp_path, capsys):
    assert main(["list"], EXPERIMENTS) == 0
    assert "Error of a noisy mean." in capsys.readouterr().out
    arguments = [
        "mean-estimation",
        "--results",
        str(tmp_path),
        "--dims",
        "2",
        "--noises",
        "1",
        "-1",
    ]
    assert main(["report", *arguments], EXPERIMENTS) == 0
    assert "none of 8 cells has been run" in capsys.readouterr().out
    assert main(["run", *arguments], EXPERIMENTS) == 1
    printed = capsys.readouterr().out
    assert "4 cells have a result, 4 failed" in printed
    assert "4 cells: ValueError: noise must not be negative" in printed
    assert main(["report", *arguments], EXPERIMENTS) == 0
    printed = capsys.readouterr().out
    assert "4 of 8 cells finished" in printed
    assert "4 cells: ValueError: noise must not be negative" in printed
    folder = tmp_path / "mean-estimation"
    assert len((folder / "cells.csv").read_text().splitlines()) > 8
    assert (
        (folder / "summary.csv").read_text().startswith("dim,noise,count,error,error_se,error_ci")
    )


def test_a_store_that_cannot_be_used_is_no_fault_of_the_program(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "mean-estimation"
    folder.mkdir()
    (folder / "cells.sqlite").write_text("no database" * 100)
    for command in ("run", "report"):
        assert main([command, "mean-estimation", "--results", str(tmp_path)], EXPERIMENTS) == 2
        said = capsys.readouterr().err
        assert f"error: the store in {folder} cannot be used: file is not a database" in said
        assert "Traceback" not in said
    (tmp_path / "file").write_text("no folder")
    words = ["run", "mean-estimation", "--results", str(tmp_path / "file")]
    assert main(words, EXPERIMENTS) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_an_unknown_name_is_refused(capsys):
    assert main(["run", "no-such-experiment"], EXPERIMENTS) == 2
    said = capsys.readouterr().err
    assert "target must be one of mean-estimation, or FILE.py:CLASS" in said
    assert "Traceback" not in said


def test_help_is_there_and_what_is_no_command_is_refused(capsys):
    for words in (["--help"], [], ["run", "--help"]):
        assert main(words, EXPERIMENTS) == 0
        assert "mean-estimation" in capsys.readouterr().out
    for words in (["walk", "mean-estimation"], ["run"], ["report", "--seeds", "3"]):
        assert main(words, EXPERIMENTS) == 2
        assert "usage: dpsco-sweep list" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["run", "mean-estimation", "--help"], EXPERIMENTS)
    assert end.value.code == 0
    assert "--broken-dim" in capsys.readouterr().out
