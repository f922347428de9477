"""A small experiment for the tests of the engine: the error of a noisy mean.

Run as a script it is a command line like ``python -m experiments``, with this experiment
only.
"""

import dataclasses
import sys
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import pandas as pd

from dpsco_jax.sweeps.cells import axis, product
from dpsco_jax.sweeps.command import main, use_all_cores
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.report import summarize
from dpsco_jax.sweeps.store import Outcome, Store


@dataclasses.dataclass(frozen=True)
class MeanEstimation:
    """Error of a noisy mean.

    Attributes:
        dims: numbers of coordinates.
        noises: standard deviations of the noise; -1 is refused by the host, 0 gives a NaN.
        seeds: number of repetitions.
        work: iterations of an idle loop, to make cells slow.
        broken_dim: the dimension whose program does not build; 0 for none.
    """

    name: ClassVar[str] = "mean-estimation"
    version: ClassVar[int] = 1
    dims: tuple[int, ...] = axis("dim", (2, 5), static=True)
    noises: tuple[float, ...] = axis("noise", (0.5, 1.0, 2.0))
    seeds: int = axis("seed", 4)
    work: int = 0
    broken_dim: int = 0

    def cells(self):
        return product(self)

    def build(self, static):
        dim = static["dim"]
        if dim == self.broken_dim:
            raise ValueError(f"no program for dim={dim}")

        def run(shared, key, inputs):
            draws = inputs["noise"] * jax.random.normal(key, (dim,)) + 0.0 / inputs["noise"]
            spun = jax.lax.fori_loop(0, self.work, lambda i, x: jnp.sin(x + i), draws[0])
            error = jnp.linalg.norm(draws + shared) + 0.0 * spun
            return {"error": error, "steps": jnp.asarray(dim, jnp.int32)}

        return Program(
            run,
            shared=jnp.zeros(dim),
            inputs=self.inputs,
            known=lambda s: {"third": s["noise"] / 3},
        )

    def inputs(self, settings):
        if settings["noise"] < 0:
            raise ValueError(f"noise must not be negative, got {settings['noise']}")
        return {"noise": settings["noise"]}

    def report(self, frame: pd.DataFrame, folder: Path):
        summary = summarize(frame, ("dim", "noise"), ("error",))
        summary.to_csv(folder / "summary.csv", index=False)


def opened(folder):
    """A store in the middle of a run."""
    store = Store(folder)
    store.open_run({"seeds": 4}, {"jax": "1"}, "1 x cpu")
    return store


def done(cells):
    return [Outcome(cell, "ok", {"error": 1.5}, None, 0.1) for cell in cells]


if __name__ == "__main__":
    use_all_cores()
    sys.exit(main(experiments={MeanEstimation.name: MeanEstimation}))
