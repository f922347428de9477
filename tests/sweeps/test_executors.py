"""Workers that die: whatever happens to them, every cell is stored once, with the result of a run here."""

import functools
import threading
import time
from collections import Counter

import pytest

from dpsco_jax.sweeps import _work
from dpsco_jax.sweeps._work import Bench
from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.executors import Here, NoWorkersError, WorkerLostError
from dpsco_jax.sweeps.store import Store
from tests.sweeps.mean_estimation import MeanEstimation

EXPERIMENT = MeanEstimation(dims=(2, 5), noises=(1.0, 0.0, -1.0), seeds=6)
CHUNKS = Options(cells_per_chunk=2)


class Crew:
    """Threads with a bench each. ``fate(worker, call, number, cells)`` may raise ``WorkerLostError``.

    It is asked before a call, and with ``"after"`` added to the name of the call after it, when the result is
    there but does not arrive. Workers beyond ``most`` cannot be had. A new worker takes over the bench of a
    lost one, which saves compilations.
    """

    def __init__(self, size, fate=None, most=1000, experiment=EXPERIMENT):
        self.size, self.device = size, "fake"
        self.calls, self.closed = [], False
        self._fate, self._most, self._experiment = fate or (lambda *_: None), most, experiment
        self._made, self._lock, self.benches = 0, threading.Lock(), []

    def start(self, experiment, memory_gb):
        return self

    def worker(self, wanted):
        with self._lock:
            self._made += 1
            number = self._made
            bench = self.benches.pop() if self.benches else Bench(self._experiment, 1.0)
        while wanted() and number > self._most:
            time.sleep(0.01)
        return _Fake(self, number, bench) if wanted() else None

    def close(self):
        self.closed = True

    def meet(self, worker, call, cells):
        with self._lock:
            self.calls.append((worker, call, tuple(cell.id for cell in cells)))
            self._fate(worker, call, len(self.calls), cells)


class _Fake:
    def __init__(self, crew, number, bench):
        self._crew, self._number, self._bench, self._dead = crew, number, bench, False

    def __getattr__(self, name):
        return functools.partial(self._call, name)

    def _call(self, name, static, cells, *size):
        assert not self._dead, "a worker that was lost is asked again"
        listed = cells if isinstance(cells, list) else [cells]
        try:
            self._crew.meet(self._number, name, listed)
            answer = getattr(self._bench, name)(static, cells, *size)
            self._crew.meet(self._number, f"{name} after", listed)
        except WorkerLostError:
            self._dead = True
            self._crew.benches.append(self._bench)
            raise
        return answer


def stored(folder):
    with Store(folder) as store:
        return {row["id"]: row for row in store.rows()}


def results(rows):
    """What a cell has, NaN in words; of a traceback the last line."""
    return {
        cell: (row["status"], str(row["results"]), (row["traceback"] or "").strip()[-60:])
        for cell, row in rows.items()
    }


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The cells as a run in this process stores them."""
    folder = tmp_path_factory.mktemp("here")
    with Store(folder) as store:
        assert run(EXPERIMENT, store, CHUNKS, executor=Here()) == (24, 12, 12, 0)
    return results(stored(folder))


def sweep(crew, folder, experiment=EXPERIMENT):
    with Store(folder) as store:
        tally = run(experiment, store, CHUNKS, executor=crew)
    assert crew.closed
    return tally, stored(folder)


@pytest.mark.parametrize("size", [1, 3])
def test_a_crew_gives_what_this_process_gives(tmp_path, here, size):
    tally, rows = sweep(Crew(size), tmp_path)
    assert tally == (24, 12, 12, 0)
    assert results(rows) == here
    assert {row["device"] for row in rows.values()} == {"fake"}
    assert {row["attempts"] for row in rows.values()} == {1}


def test_each_worker_compiles_once_for_each_program_that_it_runs(tmp_path, monkeypatch):
    compiled = Counter()
    compile_chunk = _work.compile_chunk

    def counted(*arguments):
        compiled[threading.get_ident()] += 1
        return compile_chunk(*arguments)

    monkeypatch.setattr(_work, "compile_chunk", counted)
    crew = Crew(3)
    sweep(crew, tmp_path)
    used = {(worker, call) for worker, call, _ in crew.calls if call in ("fit", "compute")}
    assert used
    assert max(compiled.values()) <= 2  # two groups
    surveys = [call for _, call, _ in crew.calls if call == "survey"]
    fits = [call for _, call, _ in crew.calls if call == "fit"]
    assert len(surveys) == len(fits) == 2


@pytest.mark.parametrize(("every", "size"), [(3, 1), (2, 3), (7, 2)])
def test_workers_that_die_again_and_again_lose_and_double_nothing(tmp_path, here, every, size):
    """Calls are cut off before or after they were done, surveys and compilations included."""
    struck = Counter()

    def fate(worker, call, number, cells):
        key = call.split()[0], tuple(cell.id for cell in cells)
        if number % every == 0 and struck[key] < 2:  # not so often that they are given up
            struck[key] += 1
            raise WorkerLostError("killed")

    crew = Crew(size, fate)
    tally, rows = sweep(crew, tmp_path)
    assert sum(struck.values()) >= 3
    assert tally == (24, 12, 12, 0)
    assert results(rows) == here
    assert {row["attempts"] for row in rows.values()} == {1}


def test_what_a_lost_worker_had_is_done_by_the_others(tmp_path, here):
    """The second worker is lost with its first chunk, when others may have nothing left; none replaces it."""
    lost = []

    def fate(worker, call, number, cells):
        if worker == 2 and call == "compute after":
            lost.append({cell.id for cell in cells})
            raise WorkerLostError("killed")

    crew = Crew(3, fate, most=3)
    tally, rows = sweep(crew, tmp_path)
    assert tally.missing == 0
    assert results(rows) == here
    for ids in lost:
        assert {
            worker
            for worker, call, done in crew.calls
            if {*done} >= ids and call == "compute after"
        } > {2}


def test_a_cell_that_takes_its_workers_along_fails_alone(tmp_path):
    bad = []

    def fate(worker, call, number, cells):
        if call == "compute" and any(
            c.settings["seed"] == 3 and c.settings["noise"] for c in cells
        ):
            bad.append(len(cells))
            raise WorkerLostError("out of memory")

    experiment = MeanEstimation(dims=(2,), noises=(1.0,), seeds=6)
    tally, rows = sweep(Crew(2, fate, experiment=experiment), tmp_path, experiment)
    assert tally == (5, 0, 1, 0)
    assert bad == [2, 2, 2, 1, 1, 1]
    (failed,) = [row for row in rows.values() if row["status"] == "failed"]
    assert failed["settings"]["seed"] == 3
    assert failed["traceback"] == "WorkerLostError: 3 workers were lost while they worked on this"
    again, _ = sweep(Crew(2, experiment=experiment), tmp_path, experiment)
    assert again == (6, 0, 0, 0)


@pytest.mark.parametrize("call", ["survey", "fit"])
def test_a_program_that_takes_its_workers_along_fails_its_cells(tmp_path, call):
    def fate(worker, name, number, cells):
        if name == call and cells[0].settings["dim"] == 5:
            raise WorkerLostError("killed")

    experiment = MeanEstimation(seeds=2)
    tally, rows = sweep(Crew(2, fate, experiment=experiment), tmp_path, experiment)
    assert tally == (6, 0, 6, 0)
    assert all(row["settings"]["dim"] == 5 for row in rows.values() if row["status"] == "failed")


def test_a_crew_that_ends_ends_the_run_and_the_next_one_goes_on(tmp_path, here):
    class Ending(Crew):
        def worker(self, wanted):
            if self._made >= 5:
                raise NoWorkersError("nobody is left")
            return super().worker(wanted)

    def fate(worker, call, number, cells):
        if number % 5 == 4:
            raise WorkerLostError("killed")

    crew = Ending(2, fate)
    with Store(tmp_path) as store, pytest.raises(NoWorkersError, match="nobody is left"):
        run(EXPERIMENT, store, CHUNKS, executor=crew)
    assert crew.closed
    before = stored(tmp_path)
    assert 0 < len(before) < 36
    tally, rows = sweep(Crew(2), tmp_path)
    assert results(rows) == here
    assert tally == (24, 12, 12, 0)
    assert {i: r for i, r in before.items() if r["status"] != "failed"}.items() <= rows.items()


def test_an_error_in_a_thread_is_the_error_of_the_run(tmp_path):
    class Listener:
        start = phase = lambda *_, **__: None

        def advance(self, *_):
            raise KeyboardInterrupt

    crew = Crew(3)
    with Store(tmp_path) as store, pytest.raises(KeyboardInterrupt):
        run(EXPERIMENT, store, CHUNKS, Listener(), executor=crew)
    assert crew.closed
    assert threading.active_count() < 20


def test_what_is_no_executor_is_refused(tmp_path):
    for bad in (7, "ray", object()):
        with Store(tmp_path) as store, pytest.raises(ValueError, match="executor must be"):
            run(EXPERIMENT, store, executor=bad)
