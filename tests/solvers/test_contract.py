"""What CONTRIBUTING promises of every private solver, over the rows of ``private_table``.

What a run releases, and what that costs, is in ``test_recorded_releases``; here is what can be said without
running it, or of its plan.
"""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from tests.solvers.private_table import DELTA, DIM, ROWS
from tests.support.edited_plans import edited_numbers, edited_sizes
from tests.support.recorder import recording
from tests.support.taint import dependent, draws

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


@EVERY_ROW
def test_the_plan_says_what_a_run_is_charged_whatever_number_was_edited(row):
    """Every number times 10 and 1/10, negated and NaN: ``loss`` is not below what the ledger of a run says.

    Where a run is charged an infinite loss, the certificate is infinite as well, or refused.
    """
    plan, data = row.plan(), row.data()
    delta = row.settings.get("delta", DELTA)

    @jax.jit
    def charged(plan):
        return row.solve(jax.random.key(7), plan, data).privacy

    def epsilon(loss, at=delta):
        return float(privacy.epsilon(jax.tree.map(lambda x: np.asarray(x, np.float64), loss), at))

    def narrow(plan):
        return jax.tree.map(lambda x: np.asarray(x, np.float32), plan)

    assert math.isfinite(epsilon(charged(narrow(plan))))
    # In float32 the curve of tested means on batches is rounded up more than in float64.
    rounding = 0.03 if row.kind == "tested" else 1e-4
    for name, edited in [("as it is", plan), *edited_numbers(plan)]:
        # The loss of a draw is that of an (ε, δ)-DP release with a δ near the plan's own.
        at = float(edited.delta) if row.kind == "drawn" and 0 < edited.delta < 1 else delta
        ran = epsilon(charged(narrow(edited)), at)
        assert not math.isnan(ran)
        try:
            said = epsilon(edited.loss(), at)
        except ValueError:
            continue
        assert said >= ran * (1 - rounding), f"{name}: loss {said}, charged {ran}"
        # Certificates of private ReSQue are computed anew, for larger numbers as well.
        if math.isinf(ran) and (row.kind != "resque" or name.endswith((" nan", " -1.0"))):
            assert _certified(edited) == math.inf, name


def _certified(plan):
    try:
        return plan.certificate().epsilon
    except ValueError:
        return math.inf


FIRST = {id(row.solver): row for row in reversed(ROWS)}.values()


@pytest.mark.parametrize("row", FIRST, ids=[row.name for row in FIRST])
def test_a_size_that_lets_a_run_draw_more_costs_more(row):
    """Every size doubled: a run that draws more often is refused, or its loss is larger."""
    plan, data = row.plan(), row.data()

    def drawn(plan):
        return draws(lambda data: row.solve(jax.random.key(7), plan, data).params, data)

    def cost(plan):
        return float(privacy.epsilon(plan.loss(), DELTA))

    before, said = drawn(plan), cost(plan)
    for name, make in edited_sizes(plan):
        if not name.endswith("x 2"):
            continue
        try:
            edited = make()
            after = drawn(edited)
        except ValueError:
            continue
        if after > before:
            assert cost(edited) > 1.01 * said or math.isinf(said), name


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
