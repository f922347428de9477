"""What CONTRIBUTING promises of every private solver, over the rows of ``private_table``.

What a run releases, and what that costs, is in ``test_recorded_releases``; here is what can be said without
running it, or of its plan.
"""

import inspect

import jax
import jax.numpy as jnp
import pytest

from tests.solvers.private_table import DELTA, DIM, ROWS
from tests.support.recorder import recording
from tests.support.taint import dependent

EVERY_ROW = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])


@EVERY_ROW
def test_nothing_public_is_computed_from_the_data_but_by_releases(row):
    """By the structure of the program: with the data left out of all releases, no result depends on them."""
    plan, data = row.plan(), row.data()
    with recording(freeze=True) as tape:

        def run(data):
            tape.forced = jnp.int32(-1)
            return row.solve(jax.random.key(7), plan, data)._replace(unprivate=None)

        reached = dependent(run, data)
        tape.forced = None
    assert not reached


@EVERY_ROW
def test_numbers_of_the_plan_may_be_traced_and_batched(row):
    plan, data = row.plan(), row.data()
    stacked = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), plan)
    result = jax.eval_shape(
        jax.vmap(lambda plan: row.solve(jax.random.key(7), plan, data)), stacked
    )
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(result.params))


@EVERY_ROW
def test_the_plan_keeps_to_its_budget_and_prints_what_it_costs(row):
    plan = row.plan()
    certificate = plan.certificate()
    assert certificate.epsilon <= row.settings.get("epsilon", 2.0)
    assert certificate.delta <= row.settings.get("delta", DELTA)
    assert "certificate" in str(plan)


TRACED = [row for row in ROWS if "trace" in inspect.signature(row.solver.solve).parameters]


@pytest.mark.parametrize("row", TRACED, ids=[row.name for row in TRACED])
def test_a_trace_is_kept_for_every_step(row):
    def run():
        start, trace = jnp.zeros(DIM), lambda *_: jnp.float32(3.0)
        solve, objective = row.solver.solve, row.objective
        return solve(jax.random.key(3), row.plan(), objective, row.data(), start, trace=trace)

    kept = jax.eval_shape(run).unprivate["trace"]
    assert all(leaf.ndim >= 1 for leaf in jax.tree.leaves(kept))
    assert jax.tree.leaves(kept)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@EVERY_ROW
def test_a_start_in_half_precision_runs_or_is_refused(row, dtype):
    plan, data = row.plan(), row.data()
    start = jnp.zeros(DIM) if row.params is None else jnp.asarray(row.params)

    def run(start):
        return row.solver.solve(jax.random.key(0), plan, row.objective, data, start)

    try:
        jax.eval_shape(run, start.astype(dtype))
    except ValueError as refusal:
        assert str(refusal).startswith("params must")  # noqa: PT017
