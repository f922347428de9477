"""What every solver promises, over a table of solvers and samplings."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import Status
from dpsco_jax.solvers.item_level import private_ac_sa
from dpsco_jax.solvers.user_level import sgd
from tests.support.planned import planned
from tests.support.replay import assert_no_leak

USERS, ITEMS, DIM, STEPS = 12, 3, 4, 5
LINEAR = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0), ridge=0.1)
GENERAL = LINEAR._replace(linear_model=None)
SIZES = {"num_users": USERS, "dim": DIM, "delta": 1e-5, "num_steps": STEPS, "chunk_size": 5}


class Case(NamedTuple):
    name: str
    solver: Any
    objective: Any
    settings: dict[str, Any]


CASES = [
    Case("sgd, poisson", sgd, GENERAL, {"sampling": "poisson", "batch_size": 6}),
    Case("sgd, fixed", sgd, LINEAR, {"sampling": "fixed", "batch_size": 7}),
    Case("sgd, full", sgd, LINEAR, {"sampling": "full", "averaging": "last"}),
    Case("ac-sa, sampled", private_ac_sa, LINEAR, {"batch_size": 7}),
    Case(
        "ac-sa, smoothed",
        private_ac_sa,
        LINEAR._replace(smoothness=None),
        {"batch_size": 12},
    ),
]
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def _plan(case, epsilon=8.0, accountant="pld"):
    return _planned(case.name, epsilon, accountant)


@functools.cache
def _planned(name, epsilon, accountant):
    """The plans of a case, which take longer than its runs, once for all of its tests."""
    case = next(case for case in CASES if case.name == name)
    given = SIZES | case.settings | {"epsilon": epsilon, "accountant": accountant}
    return planned(case.solver.plan, case.objective, **given)


def _data(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    features = scale * rng.normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
    labels = rng.integers(0, 2, (USERS, ITEMS)).astype(np.float32)
    counts = rng.integers(0, ITEMS + 1, USERS)
    mask = np.arange(ITEMS) < counts[:, None]
    return UserData(Example(jnp.asarray(features), jnp.asarray(labels)), jnp.asarray(mask))


def _solver(case):
    def run(key, plan, data, params):
        return case.solver.solve(key, plan, case.objective, data, params)

    return run


@functools.cache
def _counted(name):
    """One program for all tests of a case, and how often it was traced."""
    run, traces = _solver(next(case for case in CASES if case.name == name)), []

    @jax.jit
    def counted(*given):
        traces.append(1)
        return run(*given)

    return counted, traces


def _compiled(case):
    return _counted(case.name)[0]


def _single_runs(case):
    """A run of each of two plans, with a key of its own."""
    plans = [_plan(case, epsilon) for epsilon in (0.5, 8.0)]
    keys = jax.random.split(jax.random.key(0), 2)
    data, start, run = _data(), jnp.zeros(DIM), _compiled(case)
    return plans, [run(key, plan, data, start) for key, plan in zip(keys, plans, strict=True)]


# Samples are as in "sgd, poisson", and stages those of "ac-sa, smoothed".
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            c,
            id=c.name,
            marks=[pytest.mark.slow] * (c.name in ("sgd, full", "sgd, fixed", "ac-sa, sampled")),
        )
        for c in CASES
    ],
)
def test_batches_agree_with_single_runs(case):
    plans, single = _single_runs(case)
    run, data, start = _solver(case), _data(), jnp.zeros(DIM)
    again = jax.random.split(jax.random.key(0), 2)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plans)
    batch = jax.jit(jax.vmap(run, in_axes=(0, 0, None, None)))(again, stacked, data, start)
    for i, solution in enumerate(single):
        np.testing.assert_allclose(batch.params[i], solution.params, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(batch.privacy.rdp[i], solution.privacy.rdp, rtol=1e-4)
        assert batch.status[i] == Status.OK


@EVERY_CASE
def test_one_compilation_serves_all_numbers_and_its_ledger_is_that_of_the_plan(case):
    traces = _counted(case.name)[1]
    before = len(traces)
    plans, single = _single_runs(case)
    assert len(traces) <= before + 1, "a new number compiled again"
    data = _data()
    # The ledger is that of the plan, on the host in float64, and never below it.
    for plan, solution in zip(plans, single, strict=True):
        spent = privacy.epsilon(solution.privacy, 1e-5)
        ledger = plan.releases.steps.ledger_epsilon(plan.noise_multiplier, 1e-5)
        assert ledger * (1 - 1e-5) <= spent <= ledger * (1 + 1e-3)
    slots = STEPS * plans[0].batch_size * ITEMS
    assert single[0].gradients == slots
    if "poisson" not in case.name:
        assert single[0].unprivate["gradients"] <= slots
    if plans[0].batch_size == USERS:
        assert single[0].unprivate["gradients"] == STEPS * int(np.sum(data.mask))


@EVERY_CASE
def test_data_reach_the_result_through_releases_only(case):
    plan = _plan(case)

    @jax.jit
    def run(data):
        solution = _solver(case)(jax.random.key(0), plan, data, jnp.ones(DIM))
        return solution._replace(unprivate=None)

    other = _data(seed=1, scale=100.0)
    assert_no_leak(run, _data(), other)


@EVERY_CASE
def test_a_user_without_a_number_spoils_nothing(case):
    data = _data()
    data = data._replace(
        items=data.items._replace(label=data.items.label.at[3].set(jnp.nan)),
        mask=data.mask.at[3].set(True),
    )
    solution = _compiled(case)(jax.random.key(0), _plan(case), data, jnp.zeros(DIM))
    assert solution.status == Status.OK
    assert np.all(np.isfinite(solution.params))


@EVERY_CASE
def test_the_calibrated_noise_meets_the_budget(case):
    for epsilon in (0.5, 8.0):
        plan = _plan(case, epsilon)
        certificate = plan.certificate()
        assert 0.999 * epsilon < certificate.epsilon <= epsilon
        assert certificate.relation is plan.releases.relation
        ledger = _plan(case, epsilon, accountant="rdp")
        spent = ledger.releases.steps.ledger_epsilon(ledger.noise_multiplier, 1e-5)
        assert 0.999 * epsilon < spent <= epsilon
        assert ledger.noise_multiplier >= plan.noise_multiplier


def test_the_ledger_of_a_run_meets_the_budget_too():
    case = CASES[2]
    plan = _plan(case, 1.0, accountant="rdp")
    solution = _compiled(case)(jax.random.key(0), plan, _data(), jnp.zeros(DIM))
    assert privacy.epsilon(solution.privacy, 1e-5) <= 1.0


def test_divergence_is_a_status():
    case = CASES[2]
    plan = _plan(case).replace(step_size=float("nan"))
    assert (
        _compiled(case)(jax.random.key(0), plan, _data(), jnp.zeros(DIM)).status == Status.DIVERGED
    )


def test_other_numbers_of_users_are_refused():
    for case in CASES[:4:3]:
        fewer = jax.tree.map(lambda x: x[:-1], _data())
        with pytest.raises(ValueError, match=r"data must have plan\.num_users = 12 users, got 11"):
            case.solver.solve(jax.random.key(0), _plan(case), case.objective, fewer, jnp.zeros(DIM))
