"""What an experiment is: the protocol that the engine runs.

An experiment is one file with one frozen dataclass. Its fields are the configuration and the
command line; ``build`` gives the program of a group of cells; ``report`` turns finished cells into
tables and figures. It holds no algorithm: solvers do the work, the engine does the looping.

    @dataclass(frozen=True)
    class MeanEstimation:
        "Error of a noisy mean."
        name: ClassVar[str] = "mean-estimation"
        version: ClassVar[int] = 1
        dims: tuple[int, ...] = axis("dim", (2, 8), static=True)
        noises: tuple[float, ...] = axis("noise", (0.5, 1.0))
        seeds: int = axis("seed", 10)

        def cells(self):
            return product(self)

        def build(self, static):
            def run(shared, key, inputs):
                draws = inputs["noise"] * jax.random.normal(key, (static["dim"],))
                return {"error": jnp.linalg.norm(draws)}
            return Program(run)

        def report(self, frame, folder):
            summarize(frame, by=("dim", "noise"), values=("error",)).to_csv(folder / "summary.csv")

An experiment whose cells need float64 says so beside its name, ``x64: ClassVar[bool] = True``: the engine
then builds, compiles and runs them under ``jax_enable_x64``, and no others. Cells of the same class
without that line are other cells.

Guarantee: whatever ``run`` returns is stored, so it must be public: measurements on held-out data
for a study, never something to be handed to the users of a private system.

Cost: one compilation for each static combination (more only if ``inputs`` differ in shape).
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from dpsco_jax._checks import require
from dpsco_jax.sweeps.cells import Setting, Settings

if TYPE_CHECKING:
    import jax
    import pandas as pd


BOOKKEEPING = ("status", "seconds", "device", "traceback", "id")
"""Columns that every frame of a report has."""
CODE = "experiment code"
"""Under which of its versions a run notes the hash of the experiment's file and of those that it imports."""
RESERVED = (*BOOKKEEPING, "attempts", "started", "finished", "configuration", CODE)
"""Columns that ``results`` has besides; no setting and no result may be called like one of them."""


def _no_numbers(settings: Settings) -> dict[str, float]:
    """Nothing is known on the host."""
    return {}


class Program(NamedTuple):
    """What runs the cells of one group.

    Attributes:
        run: ``run(shared, key, inputs) -> {name: scalar}``, pure JAX, for one cell. The engine jits
            and vmaps it over cells. ``key`` belongs to the cell alone.
        shared: arrays that every cell reads (the data); passed to the compiled program as an
            argument, so they are not copied into it.
        inputs: host function from a cell's settings to the pytree that ``run`` receives, by default
            the numbers among the settings. It may do slow host work, such as a solver's plan: cache
            what several cells share. Cells whose pytrees have the same structure (static fields
            included), shapes and dtypes share one compilation.
        known: host function from a cell's settings to numbers that are stored beside the results as
            they are, in float64 (a certified ε, a noise multiplier, a cost).
    """

    run: "Callable[[Any, jax.Array, Any], dict[str, jax.Array]]"
    shared: Any = ()
    inputs: Callable[[Settings], Any] | None = None
    known: Callable[[Settings], Mapping[str, float]] = _no_numbers


def check_names(settings: Iterable[str], results: Iterable[str]) -> None:
    """Refuses names that would be one column of a frame.

    Raises:
        ValueError: if a result is called like a setting, or either like a column in ``RESERVED`` or one
            of the constants, ``constant.NAME``.
    """
    for name, given in (("settings", settings), ("results", results)):
        words = isinstance(given, Iterable) and not isinstance(given, str)
        require(words and all(isinstance(x, str) for x in given), name, given, "a list of names")
    named, found = {*settings}, {*results}
    reserved = {x for x in named | found if x in RESERVED or x.startswith("constant.")}
    twice = named & found | reserved
    if twice:
        raise ValueError(
            f"names of settings and results must differ, also from {', '.join(RESERVED)} and constant.*: "
            f"these do not: {sorted(twice)}"
        )


@runtime_checkable
class Experiment(Protocol):
    """A frozen dataclass with these members. The first line of its docstring is its description."""

    name: ClassVar[str]
    """What the command line and the results folder call it."""
    version: ClassVar[int]
    """Raised by hand when a change of the code makes old results wrong: all cells are then new."""

    def cells(self) -> Iterable[dict[str, Setting]]:
        """The settings of every cell, usually ``product(self)``."""

    def build(self, static: Settings) -> Program:
        """The program for one combination of the static settings. Loads data, may be slow."""

    def report(self, frame: "pd.DataFrame", folder: Path) -> None:
        """Prints tables and writes files.

        Args:
            frame: one row for each finished cell, with its settings and its results as columns.
            folder: where files go.
        """
