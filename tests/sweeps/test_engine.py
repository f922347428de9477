import dataclasses
import threading
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

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
    [({"error": jnp.zeros(2)}, "dict of scalars"), ({"noise": jnp.zeros(())}, "names of settings")],
)
def test_results_that_cannot_be_stored_are_refused(tmp_path, monkeypatch, output, message):
    build = lambda self, static: Program(lambda shared, key, inputs: output)  # noqa: E731
    monkeypatch.setattr(MeanEstimation, "build", build)
    tally, table = sweep(MeanEstimation(), tmp_path)
    assert tally.failed == 24
    assert all(message in text for text in table["traceback"])


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


@pytest.mark.parametrize("bad", [{"cells_per_chunk": 0}, {"memory_gb": 0.0}])
def test_options_are_checked(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        Options(**bad)
