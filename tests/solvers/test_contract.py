"""What CONTRIBUTING promises of every private solver, over the rows of ``private_table``.

What a run releases, and what that costs, is in ``test_recorded_releases``; here is what can be said without
running it, or of its plan.
"""

import contextlib
import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

from dpsco_jax import privacy
from dpsco_jax.solvers.work import Speed
from tests.solvers.every_row import EVERY_ROW
from tests.solvers.private_table import DELTA, DIM, ROWS
from tests.support.edited_plans import edited_numbers, edited_sizes
from tests.support.recorder import Recorded
from tests.support.taint import drawn


def _narrow(plan):
    return jax.tree.map(lambda x: np.asarray(x, np.float32), plan)


@functools.cache
def _run(name):
    """A run of a row with the numbers of its plan as arguments: traced once for all tests below."""
    row = next(row for row in ROWS if row.name == name)
    data = row.data()
    return jax.jit(lambda plan: row.solve(jax.random.key(7), plan, data))


def _charge_alone(name, plan):
    """The same run without what its charge does not need, which is most of what there is to compile."""
    traced = _run(name).trace(_narrow(plan))
    names = [path[0].name for path, _ in jax.tree_util.tree_leaves_with_path(traced.out_info)]
    charges = jax.tree.structure(traced.out_info.privacy)
    needed, kept = dce_jaxpr(traced.jaxpr.jaxpr, [name == "privacy" for name in names])

    @jax.jit
    def charged(leaves):
        given = [leaf for leaf, keep in zip(leaves, kept, strict=True) if keep]
        return charges.unflatten(jax.core.eval_jaxpr(needed, traced.jaxpr.consts, *given))

    return lambda plan: charged(jax.tree.leaves(plan))


FIRST = list({id(row.solver): row for row in reversed(ROWS)}.values())
FIRST_ROWS = pytest.mark.parametrize("row", FIRST, ids=[row.name for row in FIRST])


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[pytest.mark.slow] * (place % 3 > 0))
        for place, row in enumerate(FIRST)
    ],
)
def test_numbers_of_the_plan_may_be_traced_and_batched(row):
    wide = jnp.result_type(float)
    stacked = jax.tree.map(lambda x: np.stack([np.asarray(x, wide)] * 2), row.plan())
    result = jax.eval_shape(jax.vmap(_run(row.name)), stacked)
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(result.params))


@pytest.mark.parametrize("name", ["sgd, poisson", "multipass_sgd, tested"])
def test_lanes_are_what_single_runs_are(name):
    """By keys and numbers of their own, in one compilation for all single ones."""
    row = next(row for row in ROWS if row.name == name)
    plan, data = row.plan(), row.data()
    plans = [_narrow(plan), _narrow(plan.replace(step_size=0.5 * plan.step_size))]
    run = jax.jit(lambda seed, plan: row.solve(jax.random.key(seed), plan, data))
    single = [run(seed, each) for seed, each in enumerate(plans)]
    assert run._cache_size() == 1
    lanes = jax.vmap(run)(jnp.arange(2), jax.tree.map(lambda *x: np.stack(x), *plans))
    for place, alone in enumerate(single):
        np.testing.assert_allclose(lanes.params[place], alone.params, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(lanes.privacy.rdp[place], alone.privacy.rdp, rtol=1e-4)


@FIRST_ROWS
def test_lanes_that_would_draw_by_one_key_are_refused(row):
    keys = jnp.stack([jax.random.key(seed, impl="rbg") for seed in (0, 1)])
    plan, data = row.plan(), row.data()
    with pytest.raises(ValueError, match=r"key must be one of threefry2x32 under jax\.vmap"):
        jax.eval_shape(jax.vmap(lambda key: row.solve(key, plan, data).params), keys)


@pytest.mark.slow
@FIRST_ROWS
def test_a_run_by_such_a_key_is_not(row):
    plan, data = row.plan(), row.data()
    for impl in ("rbg", "unsafe_rbg"):
        key = jax.random.key(0, impl=impl)
        jax.eval_shape(lambda key: row.solve(key, plan, data).params, key)


@pytest.mark.slow
@EVERY_ROW
def test_trials_that_a_caller_numbers_share_no_key(row):
    """Of trial 0 and trial 1, parts and steps 0 and 1 would be exchanged: that is what exclusive or does."""
    plan, data, impl = row.plan(), row.data(), "unsafe_rbg"  # whose keys fold by exclusive or

    def solve(words, data, start):
        return row.solve(jax.random.wrap_key_data(words, impl=impl), plan, data, start)

    words = [
        jax.random.key_data(jax.random.fold_in(jax.random.key(7, impl=impl), trial))
        for trial in (0, 1)
    ]
    compiled = Recorded(solve, words[0], data, row.start)
    runs = [compiled(given, data, row.start) for given in words]
    keys = [run.by_key().keys() | {*run.samples, *run.used} for run in runs]
    assert keys[0]
    assert not keys[0] & keys[1]


@EVERY_ROW
def test_the_plan_keeps_to_its_budget_and_prints_what_it_costs(row):
    plan = row.plan()
    certificate = plan.certificate()
    assert certificate.epsilon <= row.settings.get("epsilon", 2.0)
    assert certificate.delta <= row.settings.get("delta", DELTA)
    text = str(plan)
    assert "certificate" in text
    assert "floating_point_operations" in text
    assert plan.work().floating_point_operations > 0
    assert plan.work().seconds(Speed(1e11, 1e10, 1e10, 1e-6)) < 1.0


# One row of a solver, and a second where sampling or a test is charged in another way; the others are slow.
AT_ONCE = {
    *(row.name for row in FIRST),
    *("sgd, fixed", "sgd, full", "element_sgd, poisson users"),
    *("phased_sgd, tested", "multipass_sgd, tested", "erm, restarts"),
}


@pytest.mark.parametrize(
    "row",
    [pytest.param(r, id=r.name, marks=[pytest.mark.slow] * (r.name not in AT_ONCE)) for r in ROWS],
)
def test_the_plan_says_what_a_run_is_charged_whatever_number_was_edited(row):
    """Every number times 10 and 1/10, negated and NaN: ``loss`` is not below what the ledger of a run says.

    Where a run is charged an infinite loss, the certificate is infinite as well, or refused.
    """
    plan = row.plan()
    delta = row.settings.get("delta", DELTA)
    charged = _charge_alone(row.name, plan)

    def epsilon(loss, at=delta):
        return float(privacy.epsilon(jax.tree.map(lambda x: np.asarray(x, np.float64), loss), at))

    assert math.isfinite(epsilon(charged(_narrow(plan))))
    # In float32 the curve of tested means on batches is rounded up more than in float64.
    rounding = 0.03 if row.kind == "tested" else 1e-4
    for name, edited in [("as it is", plan), *edited_numbers(plan)]:
        # The loss of a draw is that of an (ε, δ)-DP release with a δ near the plan's own.
        at = float(edited.delta) if row.kind == "drawn" and 0 < edited.delta < 1 else delta
        ran = epsilon(charged(_narrow(edited)), at)
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


# Directions of an estimate are drawn for no release: a share is clipped however many there are.
OF_NO_RELEASE = {"mean.draws x 2"}
# A pass over the users, who take part once, may have any number of steps: it ends where they do.
OF_ONE_PASS = {"adaptive_spider, buffers": {"mean.releases.num_steps x 2"}}


@FIRST_ROWS
def test_a_size_that_lets_a_run_draw_more_costs_more(row):
    """Every size doubled: a run that draws more often is refused, or its loss is larger."""
    plan = row.plan()

    def draws(plan):
        return drawn(_run(row.name).trace(_narrow(plan)).jaxpr)

    def cost(plan):
        return float(privacy.epsilon(plan.loss(), DELTA))

    before, said = draws(plan), cost(plan)
    for name, make in edited_sizes(plan):
        if not name.endswith("x 2") or name in OF_NO_RELEASE | OF_ONE_PASS.get(row.name, set()):
            continue
        try:
            edited = make()
        except ValueError:
            continue
        try:
            if cost(edited) > 1.01 * said or math.isinf(said):
                continue  # however much it draws
        except ValueError:
            pass  # it has no cost: then it must be refused, or draw no more
        try:
            after = draws(edited)
        except ValueError:
            continue
        assert after <= before, name


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


TYPES = ("bfloat16", "float16", "float64")


@pytest.mark.parametrize(
    "first", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
@EVERY_ROW
def test_a_start_of_another_type_runs_or_is_refused(row, first):
    # One type after the other, so that most solvers meet all of them.
    dtype = TYPES[(ROWS.index(row) + first) % len(TYPES)]
    plan, data = row.plan(), row.data()
    start = jnp.zeros(DIM) if row.params is None else jnp.asarray(row.params)

    def run(start):
        return row.solver.solve(jax.random.key(0), plan, row.objective, data, start)

    try:
        with jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext():
            jax.eval_shape(run, start.astype(dtype))
    except ValueError as refusal:
        assert str(refusal).startswith("params must")  # noqa: PT017
