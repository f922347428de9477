"""A sweep of element-level runs over ε, clip norms and seeds: one program for each solver."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from dpsco_jax import Budget, Problem
from dpsco_jax.problems import losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.solvers.element_level import federated, sgd
from dpsco_jax.sweeps import cells
from dpsco_jax.sweeps.cells import axis, product
from dpsco_jax.sweeps.engine import Options, run
from dpsco_jax.sweeps.experiment import Program
from dpsco_jax.sweeps.progress import Progress
from dpsco_jax.sweeps.report import frame
from dpsco_jax.sweeps.store import Store
from tests.support.counted import counted_compilations

USERS, SLOTS, ITEMS, DIM = 8, 3, 2, 4
LOSS = losses.logistic(1.0)
SOLVERS = {"sgd": (sgd, {}), "federated": (federated, {"local_steps": 2, "local_step_size": 0.5})}


def _data():
    rows = np.random.default_rng(0).standard_normal((USERS, SLOTS, ITEMS, DIM)) / 4
    mask = np.arange(USERS * SLOTS * ITEMS).reshape(USERS, SLOTS, ITEMS) % 5 > 0
    return ElementData(Example(rows.astype(np.float32), np.ones(mask.shape, np.float32)), mask)


def _plan(solver, epsilon, clip_norm):
    module, own = SOLVERS[solver]
    return module.plan(
        Problem(LOSS, num_users=USERS, dim=DIM),
        Budget(epsilon, 1e-3),
        num_steps=2,
        elements_per_user=SLOTS,
        batch_size=4,
        step_size=0.5,
        clip_norm=clip_norm,
        accountant="rdp",
        **own,
    )


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Where runs end, and what they are charged."""

    name: ClassVar[str] = "element-sweep"
    version: ClassVar[int] = 1
    solvers: tuple[str, ...] = axis("solver", ("sgd", "federated"), static=True)
    epsilons: tuple[float, ...] = axis("epsilon", (0.5, 1.0, 4.0))
    clip_norms: tuple[float, ...] = axis("clip_norm", (0.1, 0.5))
    seeds: int = axis("seed", 3)

    def cells(self):
        return product(self)

    def build(self, static):
        module = SOLVERS[static["solver"]][0]

        def run(shared, key, plan):
            solution = module.solve(key, plan, LOSS, shared, jnp.zeros(DIM))
            return {"first": solution.params[0], "stddev": jnp.asarray(plan.noise_stddev)}

        inputs = lambda cell: _plan(static["solver"], cell["epsilon"], cell["clip_norm"])  # noqa: E731
        return Program(run, shared=_data(), inputs=inputs)

    def report(self, frame, folder):
        raise NotImplementedError


@pytest.mark.slow
def test_epsilons_clip_norms_and_seeds_share_a_program(tmp_path):
    sweep = Sweep()
    with (
        counted_compilations() as counts,
        Store(tmp_path) as store,
        Progress(Console(quiet=True), "test") as progress,
    ):
        run(sweep, store, Options(), progress)
        table = frame(sweep, store)
    assert len(counts) == len(SOLVERS)
    assert len(table) == len(SOLVERS) * 3 * 2 * 3
    assert len(set(table["first"])) == len(table)  # every cell has its own noise
    for cell in table.itertuples():
        own = _plan(cell.solver, cell.epsilon, cell.clip_norm)
        np.testing.assert_allclose(cell.stddev, own.noise_stddev, rtol=1e-6)
    # The last cell is what its own run gives.
    cell = cells.cells_of(sweep)[-1]
    key = jax.random.fold_in(jax.random.key(0), int(cell.id[:8], 16))
    key = jax.random.fold_in(key, int(cell.id[8:16], 16))
    plan = _plan(cell.settings["solver"], cell.settings["epsilon"], cell.settings["clip_norm"])
    module = SOLVERS[cell.settings["solver"]][0]
    alone = jax.jit(lambda key, plan: module.solve(key, plan, LOSS, _data(), jnp.zeros(DIM)))
    expected = alone(key, plan).params[0]
    found = table.set_index("id")["first"][cell.id]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
