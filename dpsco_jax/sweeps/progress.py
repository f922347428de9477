"""Progress of a sweep: a bar in a terminal, plain lines elsewhere.

Cost: a line every few seconds at most, where there is no terminal.
"""

import time

from dpsco_jax._checks import require_instance
from dpsco_jax._extra import needs

with needs("sweeps"):
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Reports what a run is doing; use as a context manager."""

    def __init__(self, console: Console, name: str):
        require_instance("console", console, Console)
        require_instance("name", name, str)
        self._console = console
        self._name = name
        self._failed = 0
        self._done = self._total = 0
        self._phase = ""
        self._began = time.monotonic()
        self._last_line = -float("inf")
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cells"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._line(force=True)
        self._bar.stop()

    def start(self, total: int, done: int) -> None:
        """Says how many cells there are, and how many were finished by earlier runs."""
        self._total, self._done = total, done
        self._show(force=True)

    def phase(self, text: str) -> None:
        """Says what is being worked on."""
        self._phase = text
        self._show(force=True)

    def advance(self, cells: int, failed: int = 0) -> None:
        """Counts cells as stored, some of them as failed."""
        self._done += cells
        self._failed += failed
        self._show(force=False)

    def _show(self, force: bool) -> None:
        text = f"{self._name}  {self._phase}" + (f"  {self._failed} failed" if self._failed else "")
        self._bar.update(self._task, description=text, completed=self._done, total=self._total)
        self._line(force)

    def _line(self, force: bool) -> None:
        now = time.monotonic()
        if self._console.is_terminal or not (
            force or now - self._last_line > _SECONDS_BETWEEN_LINES
        ):
            return
        self._last_line = now
        failed = f", {self._failed} failed" if self._failed else ""
        self._console.print(
            f"{now - self._began:7.1f} s  {self._done}/{self._total} cells{failed}  {self._phase}",
            highlight=False,
        )
