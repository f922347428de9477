import dataclasses
import json
import sys
import threading
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from dpsco_jax.sweeps import _work
from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.compile import compile_chunk
from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.progress import Progress
from dpsco_jax.sweeps.report import frame
from dpsco_jax.sweeps.store import Store
from tests.support.counted import counted_compilations
from tests.sweeps.mean_estimation import MeanEstimation


def sweep(experiment, folder, **options):
    """Runs an experiment to the end; the tally and the frame."""
    with Store(folder) as store, Progress(Console(quiet=True), "test") as progress:
        tally = run(experiment, store, Options(**options), progress)
        return tally, frame(experiment, store)


def test_results_do_not_depend_on_chunks_order_or_other_cells(tmp_path):
    _, whole = sweep(MeanEstimation(), tmp_path / "whole")
    _, chunked = sweep(MeanEstimation(), tmp_path / "chunked", cells_per_chunk=5)
    turned = MeanEstimation(dims=(5, 2), noises=(2.0, 0.5), seeds=3)
    _, reordered = sweep(turned, tmp_path / "turned", cells_per_chunk=1)
    assert len(whole) == 24
    assert whole["error"].tolist() == chunked["error"].tolist()
    assert len(set(whole["error"])) == 24  # every cell has a key of its own
    by_id = whole.set_index("id")["error"]
    assert reordered["error"].tolist() == by_id[reordered["id"]].tolist()


def test_cells_are_what_a_direct_call_gives(tmp_path):
    experiment = MeanEstimation(dims=(3,), noises=(1.5,), seeds=1)
    _, table = sweep(experiment, tmp_path)
    (cell,) = cells_of(experiment)
    key = jax.random.fold_in(jax.random.key(0), int(cell.id[:8], 16))
    key = jax.random.fold_in(key, int(cell.id[8:16], 16))
    direct = 1.5 * jnp.linalg.norm(jax.random.normal(key, (3,)))
    assert table["error"][0] == pytest.approx(float(direct), rel=1e-6)
    assert table["steps"][0] == 3
    assert table["third"][0] == 0.5  # float64, from the host


@dataclasses.dataclass(frozen=True)
class Wide(MeanEstimation):
    """A result that float32 does not have: 1e-12 above one, and what everything else was computed in."""

    name: ClassVar[str] = "wide"
    x64: ClassVar[bool] = True

    def build(self, static):
        built_in = jnp.zeros(()).dtype

        def run(shared, key, inputs):
            small = inputs["noise"] * shared
            width = jnp.asarray(jnp.finfo(jax.random.normal(key).dtype).bits)
            return {"above": small - 1.0, "width": width, "built": jnp.finfo(built_in).bits + 0.0}

        return Program(run, shared=np.float64(1.0 + 1e-12), inputs=self.inputs)


def test_an_experiment_that_declares_float64_runs_in_it_and_no_other_does(tmp_path):
    wide = Wide(dims=(2,), noises=(1.0,), seeds=3)
    plain = MeanEstimation(dims=(2,), noises=(1.0,), seeds=3)
    _, table = sweep(wide, tmp_path / "wide")
    assert table["above"].tolist() == pytest.approx([1e-12] * 3, rel=1e-3)
    assert set(table["width"]) == set(table["built"]) == {64}
    assert jnp.zeros(()).dtype == jnp.float32  # only while the engine was at work
    _, before = sweep(plain, tmp_path / "plain")
    with jax.enable_x64(True):
        _, again = sweep(wide, tmp_path / "on")
        assert again["above"].tolist() == table["above"].tolist()
        with (
            Store(tmp_path / "refused") as store,
            pytest.raises(ValueError, match="jax_enable_x64 must be False"),
        ):
            run(plain, store, Options())
        with Store(tmp_path / "refused") as store:
            assert store.rows() == []
    _, after = sweep(plain, tmp_path / "again")
    assert before["error"].tolist() == after["error"].tolist()


def test_a_run_that_goes_on_makes_the_chunks_of_an_undisturbed_one(tmp_path, monkeypatch):
    """Programs for other numbers of cells may round otherwise: matrix products do."""
    made = []
    run_chunk, compiled = _work._run, _work.compile_chunk

    def noted(chunked, chunk):
        made.append((chunked.size, tuple(prepared.cell.id for prepared in chunk)))
        return run_chunk(chunked, chunk)

    kept = {}  # of equal programs, to compile each once

    def compile_once(program, example, size, *more):
        if size not in kept:
            kept[size] = compiled(program, example, size, *more)
        return kept[size]

    monkeypatch.setattr(_work, "_run", noted)
    monkeypatch.setattr(_work, "compile_chunk", compile_once)
    experiment = MeanEstimation(dims=(2,), noises=(1.0,), seeds=7)
    sweep(experiment, tmp_path / "whole", cells_per_chunk=3)
    whole = [*made]
    assert [size for size, _ in whole] == [3, 3, 3]

    class Interrupting:
        start = phase = lambda *_, **__: None

        def advance(self, cells, failed=0):
            raise KeyboardInterrupt

    made.clear()
    for _ in range(3):
        with Store(tmp_path / "killed") as store, pytest.raises(KeyboardInterrupt):
            run(experiment, store, Options(cells_per_chunk=3), Interrupting())
    assert made == whole
    made.clear()
    longer = MeanEstimation(dims=(2,), noises=(1.0,), seeds=9)  # other cells: a size of their own
    sweep(longer, tmp_path / "killed", cells_per_chunk=3)
    assert [size for size, _ in made] == [2]


@pytest.mark.parametrize(
    ("number", "plain"),
    [(np.float32(0.1), float(np.float32(0.1))), (np.float64(0.1), 0.1), (np.int64(3), 3),
     (np.array(0.5), 0.5), (True, True), (np.True_, True), (2, 2)],
)  # fmt: skip
def test_numbers_of_the_host_are_stored_as_python_has_them(number, plain):
    found = _work._number("k", number)
    assert found == plain
    assert type(found) is type(plain)
    assert json.loads(json.dumps(found)) == plain


@pytest.mark.parametrize("bad", ["x", None, 1j, np.ones(2), object()])
def test_what_is_no_number_of_the_host_fails_its_cell_alone(bad, monkeypatch):
    def build(self, static):
        known = lambda s: {"k": bad if s["seed"] == 1 else 0.5}  # noqa: E731
        return Program(lambda shared, key, inputs: {}, known=known)

    survey = surveyed(build, monkeypatch)
    assert [cells for _, cells in survey.batches] == [[0, 2]]
    ((position, text),) = survey.refused
    assert position == 1
    assert "known must give real numbers, got k=" in text.splitlines()[-1]


def test_an_integer_that_float32_programs_do_not_have_fails_its_cell_alone(monkeypatch):
    def build(self, static):
        return Program(None, inputs=lambda s: {"n": 2**31 - 2 + s["seed"]})

    survey = surveyed(build, monkeypatch)
    assert [cells for _, cells in survey.batches] == [[0, 1]]
    assert (
        "inputs must be integers from -2147483648 to 2147483647, got 2147483648"
        in (survey.refused[0][1])
    )


def test_a_cell_that_calls_exit_fails_alone(monkeypatch):
    def build(self, static):
        return Program(None, inputs=lambda s: sys.exit(7) if s["seed"] == 2 else s["seed"])

    survey = surveyed(build, monkeypatch)
    assert [cells for _, cells in survey.batches] == [[0, 1]]
    assert survey.refused[0][1].splitlines()[-1] == "SystemExit: 7"


def surveyed(build, monkeypatch):
    """What a bench says of three cells of one group, whose program is never compiled."""
    monkeypatch.setattr(MeanEstimation, "build", build)
    experiment = MeanEstimation(dims=(2,), noises=(1.0,), seeds=3)
    return _work.Bench(experiment, 1.0).survey({"dim": 2}, cells_of(experiment))


def test_one_compilation_for_each_static_group(tmp_path):
    with counted_compilations() as counts:
        sweep(MeanEstimation(seeds=7), tmp_path, cells_per_chunk=4)
    assert len(counts) == 2


def test_only_what_is_missing_is_computed(tmp_path):
    sweep(MeanEstimation(seeds=2), tmp_path)
    tally, first = sweep(MeanEstimation(), tmp_path)
    assert tally == (24, 0, 0, 0)
    with counted_compilations() as counts:
        tally, second = sweep(MeanEstimation(), tmp_path)
    assert not counts
    assert first.equals(second)


def test_failures_are_recorded_and_the_others_go_on(tmp_path):
    experiment = MeanEstimation(dims=(2, 3), noises=(1.0, -1.0, 0.0), seeds=2, broken_dim=3)
    tally, table = sweep(experiment, tmp_path)
    assert tally == (4, 2, 8, 0)
    broken, sound = table[table["dim"] == 3], table[table["dim"] == 2]
    assert all("no program for dim=3" in text for text in broken["traceback"])
    refused = sound[sound["noise"] == -1]
    assert set(refused["status"]) == {"failed"}
    assert all("Traceback" in t and "noise must not be negative" in t for t in refused["traceback"])
    assert set(sound[sound["noise"] == 1]["status"]) == {"ok"}
    assert set(sound[sound["noise"] == 0]["status"]) == {"nonfinite"}
    assert sound[sound["noise"] == 0]["error"].isna().all()


def test_failed_cells_are_tried_again_and_keep_their_identity(tmp_path, monkeypatch):
    experiment = MeanEstimation(dims=(2,), noises=(-1.0, 1.0), seeds=2)
    sweep(experiment, tmp_path)
    monkeypatch.setattr(MeanEstimation, "inputs", lambda self, s: {"noise": abs(s["noise"])})
    tally, table = sweep(experiment, tmp_path)
    assert tally == (4, 0, 0, 0)
    with Store(tmp_path) as store:
        assert [row["attempts"] for row in store.rows(cells_of(experiment))] == [2, 2, 1, 1]
    assert table["traceback"].isna().all()


def test_one_bad_cell_does_not_take_its_chunk_along(tmp_path, monkeypatch):
    """A chunk that fails while running is run again cell by cell."""

    def build(self, static):
        def checked(noise):
            if noise == 2.0:
                raise RuntimeError("too noisy")
            return noise

        def program(shared, key, inputs):
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            noise = jax.pure_callback(checked, shape, inputs["noise"], vmap_method="sequential")
            return {"error": noise}

        return Program(program)

    monkeypatch.setattr(MeanEstimation, "build", build)
    tally, table = sweep(MeanEstimation(dims=(2,), noises=(1.0, 2.0), seeds=2), tmp_path)
    assert tally == (2, 0, 2, 0)
    failed = table[table["status"] == "failed"]
    assert failed["noise"].tolist() == [2.0, 2.0]
    assert all("too noisy" in text for text in failed["traceback"])


def test_inputs_of_another_shape_get_a_program_of_their_own(tmp_path, monkeypatch):
    def build(self, static):
        def inputs(settings):
            return {"plan": jnp.ones(2 if settings["noise"] < 1 else 3)}

        return Program(lambda shared, key, i: {"error": i["plan"].sum()}, inputs=inputs)

    monkeypatch.setattr(MeanEstimation, "build", build)
    with counted_compilations() as counts:
        _, table = sweep(MeanEstimation(dims=(2,), seeds=2), tmp_path)
    assert len(counts) == 2, table["traceback"][0]
    assert table["error"].tolist() == [2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"error": jnp.zeros(2)}, "dict of scalars"),
        ({"error": jnp.zeros((), jnp.complex64)}, "dict of scalars, real ones"),
        ({"error": jax.random.key(0)}, "dict of scalars, real ones"),
        ({"noise": jnp.zeros(())}, "names of settings"),
    ],
)
def test_results_that_cannot_be_stored_are_refused(tmp_path, monkeypatch, output, message):
    build = lambda self, static: Program(lambda shared, key, inputs: output)  # noqa: E731
    monkeypatch.setattr(MeanEstimation, "build", build)
    tally, table = sweep(MeanEstimation(), tmp_path)
    assert tally.failed == 24
    ends = [" ".join(text.strip().splitlines()[-2:]) for text in table["traceback"]]
    assert all(message in end and "JAX has removed" not in end for end in ends)


@pytest.mark.parametrize("name", ["status", "attempts", "configuration", "constant.work"])
def test_a_setting_called_like_a_column_is_refused_before_anything_runs(tmp_path, name):
    cells = lambda self: [{name: 1.0}]  # noqa: E731
    experiment = type("Renamed", (MeanEstimation,), {"cells": cells})()
    with pytest.raises(ValueError, match="names of settings and results must differ"):
        sweep(experiment, tmp_path)
    with Store(tmp_path) as store:
        assert not store.rows()


def test_chunks_shrink_until_they_fit():
    def program(shared, key, inputs):
        draws = jax.random.normal(key, (200, 200)) * inputs
        return {"trace": jnp.trace(draws @ draws)}

    devices = jax.devices()[:1]
    roomy = compile_chunk(Program(program), 1.0, 8, 1e9, devices)
    tight = compile_chunk(Program(program), 1.0, 8, 1e6, devices)
    assert roomy.size == 8
    assert 1 <= tight.size < 8
    with pytest.raises(MemoryError, match="one cell needs"):
        compile_chunk(Program(program), 1.0, 8, 1e4, devices)


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    with Store(tmp_path) as store, Progress(Console(quiet=True), "test") as progress:

        def interrupt(cells, failed=0):
            raise KeyboardInterrupt

        progress.advance = interrupt
        with pytest.raises(KeyboardInterrupt):
            run(MeanEstimation(), store, Options(cells_per_chunk=3), progress)
        assert len(store.rows(cells_of(MeanEstimation()))) == 3
    tally, _ = sweep(MeanEstimation(), tmp_path)
    assert tally == (24, 0, 0, 0)


def test_two_runs_share_the_work(tmp_path):
    experiment = MeanEstimation(work=300_000, seeds=8)
    errors = []

    def work():
        try:
            sweep(experiment, tmp_path, cells_per_chunk=2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with Store(tmp_path) as store:
        rows = store.rows(cells_of(experiment))
    assert len(rows) == 48
    assert {row["attempts"] for row in rows} == {1}
    assert {row["run"] for row in rows} == {1, 2}
