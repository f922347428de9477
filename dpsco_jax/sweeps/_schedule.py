"""What is to be done next: the groups, batches and chunks of a run, handed out one task at a time.

A group is surveyed by one worker, each of its batches is fitted by one, and chunks go to whoever is free. A
worker keeps to the group that it knows; then it opens a new one; then it helps with what others have opened.
A task whose worker was lost goes to another. A chunk that was lost with three workers is broken up into its
cells, and a cell that was is stored as failed.

Guarantee: only the schedule claims and stores, under one lock, in one process. A chunk stays claimed until it
is stored, whichever worker computes it, so nothing is stored twice, and nothing is lost but what was being
computed. For how many cells a program is compiled is noted in the store, and what is lost is lost by whole
chunks: a run that is killed and goes on makes the chunks that an undisturbed one would have made.

Cost: two transactions of the store for each chunk. One lock: at chunks of one second, hundreds of workers.
"""

import dataclasses
import json
import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dpsco_jax.sweeps._work import Fit, Survey, failure
from dpsco_jax.sweeps.cells import Cell, Settings
from dpsco_jax.sweeps.executors import Crew, Worker, WorkerLostError
from dpsco_jax.sweeps.store import Outcome, Store

_LOSSES = 3
_LOST = "WorkerLostError: {} workers were lost while they worked on this"


@runtime_checkable
class Listener(Protocol):
    """Who is told how a run goes on, as ``progress.Progress`` is."""

    def start(self, total: int, done: int) -> None:
        """There are so many cells, and so many were finished by earlier runs."""

    def phase(self, text: str) -> None:
        """This is being worked on."""

    def advance(self, cells: int, failed: int = 0) -> None:
        """So many cells have been stored, some of them as failed."""


@dataclasses.dataclass(eq=False)
class _Batch:
    """Cells of one shape: fitted once, then claimed chunk by chunk."""

    cells: list[Cell]
    wanted: int
    losses: int = 0
    fitting: bool = False
    told: bool = False
    chunks: Iterator[list[Cell]] | None = None
    again: deque[tuple[list[Cell], int]] = dataclasses.field(default_factory=deque)


@dataclasses.dataclass(eq=False)
class _Group:
    """Cells of equal static settings. ``batches`` is ``None`` until it has been surveyed.

    ``total`` counts those that had a result when the run began, too.
    """

    static: Settings
    cells: list[Cell]
    total: int
    batches: list[_Batch] | None = None
    losses: int = 0
    at_work: int = 0

    @property
    def label(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.static.items())


@dataclasses.dataclass(frozen=True, eq=False)
class _Task:
    """One call of a worker. Without a batch it surveys, without cells it fits, else it computes."""

    group: _Group
    batch: _Batch | None = None
    cells: list[Cell] | None = None
    losses: int = 0

    def on(self, worker: Worker) -> Any:
        static = self.group.static
        if self.batch is None:
            return worker.survey(static, self.group.cells)
        if self.cells is None:
            return worker.fit(static, self.batch.cells[0], self.batch.wanted)
        return worker.compute(static, self.cells, self.batch.wanted)


class Schedule:
    """Hands out the tasks of one run, and stores what comes back."""

    def __init__(
        self,
        store: Store,
        config: str,
        tried: Mapping[str, int],
        groups: Sequence[tuple[Settings, list[Cell], int]],
        cells_per_chunk: int,
        progress: Listener,
    ):
        self._store, self._config, self._tried = store, config, tried
        self._cells_per_chunk, self._progress = cells_per_chunk, progress
        self._new = deque(_Group(*group) for group in groups)
        self._open: list[_Group] = []
        self._at_work = 0
        self._over = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def run(self, crew: Crew) -> None:
        """Does all tasks with the workers of a crew; returns when nothing is left to be claimed."""
        if crew.size == 1:
            self._serve(crew)
            return
        threads = [
            threading.Thread(target=self._serve_or_stop, args=(crew,), daemon=True)
            for _ in range(crew.size)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._stop()
        if self._error is not None:
            raise self._error

    def _serve(self, crew: Crew) -> None:
        task = None
        worker = crew.worker(self._wanted)
        while worker is not None and (task := self._next(task)) is not None:
            try:
                answer = task.on(worker)
            except WorkerLostError:
                self._lost(task)
                worker = crew.worker(self._wanted)
            else:
                self._accept(task, answer)

    def _serve_or_stop(self, crew: Crew) -> None:
        try:
            self._serve(crew)
        except BaseException as error:
            self._stop(error)

    def _stop(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._error = self._error or error
            self._over = True
            self._changed.notify_all()

    def _wanted(self) -> bool:
        return not self._over

    def _next(self, last: _Task | None) -> _Task | None:
        """The next task; waits while others may give one back. ``None`` when all is over."""
        with self._changed:
            while not self._over:
                task = self._find(last.group if last else None)
                if task is not None:
                    task.group.at_work += 1
                    self._at_work += 1
                    self._tell(task)
                    return task
                if self._at_work == 0:
                    self._over = True
                    self._changed.notify_all()
                else:
                    self._changed.wait()
            return None

    def _find(self, known: _Group | None) -> _Task | None:
        if known in self._open and (task := self._task_of(known)):
            return task
        while self._new:
            group = self._new.popleft()
            if self._store.free(group.cells, self._tried, 1):
                self._open.append(group)
                return _Task(group)
        return next((task for group in [*self._open] if (task := self._task_of(group))), None)

    def _task_of(self, group: _Group) -> _Task | None:
        for batch in group.batches or ():
            if batch.again:
                cells, losses = batch.again.popleft()
                return _Task(group, batch, cells, losses)
            if batch.chunks is not None and (chunk := next(batch.chunks, None)):
                return _Task(group, batch, chunk)
            if batch.chunks is None and not batch.fitting:
                batch.fitting = True
                return _Task(group, batch)
        if group.at_work == 0:
            if group.batches is None:
                return _Task(group)
            self._open.remove(group)
        return None

    def _accept(self, task: _Task, answer: Any) -> None:
        with self._changed:
            if self._over:
                return
            self._settle(task, answer)
            self._back(task)

    def _settle(self, task: _Task, answer: Survey | Fit | list[Outcome] | None) -> None:
        batch = task.batch
        if isinstance(answer, Survey):
            self._surveyed(task.group, answer)
        elif isinstance(answer, Fit) and batch is not None:
            if answer.broken is not None:
                self._fail(batch.cells, answer.broken)
                batch.chunks = iter(())
            else:
                batch.chunks = self._store.claims(batch.cells, self._tried, answer.size)
        elif isinstance(answer, list):
            self._keep(answer)
        elif batch is not None and task.cells is not None:  # they failed together
            batch.again.extend(([cell], 0) for cell in task.cells)

    def _surveyed(self, group: _Group, survey: Survey) -> None:
        group.batches = []
        if survey.broken is not None:
            self._fail(group.cells, survey.broken)
        for position, text in survey.refused:
            self._fail([group.cells[position]], text)
        for shape, positions in survey.batches:
            cells = [group.cells[position] for position in positions]
            chunks = math.ceil(len(cells) / self._cells_per_chunk)
            about_as_full = math.ceil(len(cells) / chunks)
            name = json.dumps(
                [self._config, group.static, group.total, self._cells_per_chunk, shape]
            )
            group.batches.append(_Batch(cells, self._store.first_said(name, about_as_full)))

    def _lost(self, task: _Task) -> None:
        with self._changed:
            if self._over:
                return
            batch, cells, losses = task.batch, task.cells, task.losses + 1
            if batch is None:
                task.group.losses += 1
                if task.group.losses >= _LOSSES:
                    self._settle(task, Survey([], [], _LOST.format(_LOSSES)))
            elif cells is None:
                batch.losses += 1
                batch.fitting = False
                if batch.losses >= _LOSSES:
                    self._settle(task, Fit(0, _LOST.format(_LOSSES)))
            elif losses < _LOSSES:
                batch.again.append((cells, losses))
            elif len(cells) > 1:
                batch.again.extend(([cell], 0) for cell in cells)
            else:
                self._keep([failure(cells[0], _LOST.format(_LOSSES))])
            self._back(task)

    def _back(self, task: _Task) -> None:
        task.group.at_work -= 1
        self._at_work -= 1
        self._changed.notify_all()

    def _fail(self, cells: Sequence[Cell], text: str) -> None:
        """Records a traceback for all of these cells that are free."""
        self._keep([failure(cell, text) for cell in self._store.claim(cells, self._tried)])

    def _keep(self, outcomes: Sequence[Outcome]) -> None:
        self._store.finish(outcomes, self._config)
        self._progress.advance(len(outcomes), sum(o.status == "failed" for o in outcomes))

    def _tell(self, task: _Task) -> None:
        if task.batch is None:
            self._progress.phase(f"{task.group.label}: preparing")
        elif task.cells is None:
            self._progress.phase(f"{task.group.label}: compiling")
        elif not task.batch.told:
            task.batch.told = True
            self._progress.phase(task.group.label)
