"""What plans say that a run costs, against what the programs do.

The instrument is ``tests.support.operations``, which reads a traced program with the trips of its loops; it
is itself held against the compiler's count where there are no loops.
"""

import functools
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.mechanisms import _draws
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.oracles import linear, linear_users
from dpsco_jax.problems import losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, means
from dpsco_jax.solvers.convex import ac_sa
from dpsco_jax.solvers.element_level import federated
from dpsco_jax.solvers.element_level import sgd as element_sgd
from dpsco_jax.solvers.item_level import langevin, private_ac_sa, regularized_sgd, staged_ac_sa
from dpsco_jax.solvers.nonconvex import certify, select_sosp
from dpsco_jax.solvers.resque import resque_erm
from dpsco_jax.solvers.user_level import (
    accelerated_phased_erm,
    accelerated_sgd,
    auto,
    finite_class,
    item_group_privacy,
    momentum_sgd,
    multipass_sgd,
    output_perturbation,
    phased_erm,
    phased_sgd,
    preconditioned_sgd,
    sgd,
    whitened_sgd,
    winsorized_erm,
)
from dpsco_jax.solvers.work import Speed, Work, measured_speed
from tests.support.operations import compiled_operations, operations

LOSS = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0))
RIDGED = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0), ridge=0.1)
ABSOLUTE = losses.absolute(1.0, domains.ball(2.0))
BUDGET = Budget(8.0, 1e-4)
PLENTY = Budget(200.0, 1e-2, allow_large_delta=True)


class Sizes(NamedTuple):
    """Users, items of a user, parameters, steps."""

    n: int = 256
    m: int = 4
    d: int = 32
    steps: int = 8


class Case(NamedTuple):
    """A solver: settings, and which sizes may be doubled without the plan taking other steps."""

    solver: Any
    settings: Any
    grows: str = "nmdT"
    loss: Any = LOSS
    budget: Any = BUDGET
    loops: Any = lambda s: 1
    more: Any = ()  # to solve
    x64: bool = False


# A run that is followed takes a program for each phase, whose loops have lengths that are known; turns of one
# program take theirs from the plan's numbers.
FOLLOWED = (lambda params, state, estimate: (),)
CANDIDATES = 16
CASES = {
    "sgd": Case(
        sgd, lambda s: {"num_steps": s.steps, "sampling": "full", "accountant": "rdp"}
    ),
    "sgd, poisson": Case(
        sgd,
        lambda s: {"num_steps": s.steps, "batch_size": s.n // 2, "accountant": "rdp"},
        # A loop over chunks of 64 users, as many as are drawn.
        loops=lambda s: s.n // 128,
    ),
    "sgd, fixed": Case(
        sgd,
        lambda s: {
            "num_steps": s.steps, "batch_size": s.n // 4, "sampling": "fixed", "accountant": "rdp"
        },
    ),
    "momentum_sgd": Case(
        momentum_sgd, lambda s: {"num_steps": s.steps, "sampling": "full", "accountant": "rdp"}
    ),
    "regularized_sgd": Case(
        regularized_sgd, lambda s: {"num_steps": s.steps, "sampling": "full"}
    ),
    "staged_ac_sa": Case(staged_ac_sa, lambda s: {"num_steps": s.steps, "accountant": "rdp"}),
    "private_ac_sa": Case(
        private_ac_sa, lambda s: {"num_steps": s.steps, "batch_size": s.n}
    ),
    "ac_sa": Case(ac_sa, lambda s: {"num_steps": s.steps}),
    "langevin": Case(langevin, lambda s: {"num_steps": s.steps}, loss=RIDGED),
    "multipass, tested": Case(
        multipass_sgd, lambda s: {"num_steps": s.steps, "radius": 0.05}, budget=PLENTY
    ),
    "multipass, clipped": Case(multipass_sgd, lambda s: {"num_steps": s.steps, "radius": 2.0}),
    "accelerated_sgd": Case(accelerated_sgd, lambda s: {"mean": means.Clipped}, "nmd"),
    "accelerated_phased_erm": Case(
        accelerated_phased_erm, lambda s: {"mean": means.Clipped}, "md"
    ),
    "phased_sgd": Case(phased_sgd, lambda s: {"radius": 0.05}, "nmd", budget=PLENTY),
    "winsorized_erm": Case(
        winsorized_erm, lambda s: {"num_steps": s.steps, "radius": 0.05}, "nmT",
        budget=Budget(100.0, 1e-2, allow_large_delta=True),
    ),
    "winsorized_erm, clipped": Case(
        winsorized_erm, lambda s: {"num_steps": s.steps, "form": "clipped"}
    ),
    "phased_erm": Case(phased_erm, lambda s: {}, "nmd", more=FOLLOWED),
    "item_group_privacy": Case(item_group_privacy, lambda s: {"num_steps": s.steps}),
    "output_perturbation": Case(output_perturbation, lambda s: {}, "nmd", RIDGED),
    "preconditioned_sgd": Case(preconditioned_sgd, lambda s: {"num_steps": s.steps}),
    "whitened_sgd": Case(whitened_sgd, lambda s: {"num_steps": s.steps}),
    "element_sgd": Case(
        element_sgd,
        lambda s: {
            "num_steps": s.steps, "elements_per_user": 2, "batch_size": s.n // 2, "accountant": "rdp"
        },
        loops=lambda s: s.n // 64,
    ),
    "federated": Case(
        federated,
        lambda s: {
            "num_steps": s.steps, "elements_per_user": 2, "local_steps": 2, "sampling": "full",
            "local_step_size": 0.1, "step_size": 0.1, "accountant": "rdp",
        },
        "ndT",
    ),
    "resque_erm": Case(
        resque_erm, lambda s: {"ball_radius": 0.1, "num_queries": 64}, "d", ABSOLUTE
    ),
    "finite_class": Case(
        finite_class,
        lambda s: {
            "num_candidates": CANDIDATES, "loss_range": (0.0, 4.0), "stopping_probability": 0.02
        },
        "nmd",
    ),
    "certify": Case(certify, lambda s: {"accountant": "rdp"}, "nmd", x64=True),
    # A loop over candidates, of which the last is the one.
    "select_sosp": Case(
        select_sosp, lambda s: {"num_candidates": s.steps, "stationarity": 0.1}, x64=True,
        loops=lambda s: s.steps,
    ),
    "select_sosp, least": Case(
        select_sosp, lambda s: {"num_candidates": s.steps}, x64=True,
    ),
    # Of which a Hessian is differentiated, and decomposed for every user.
    "certify, any loss": Case(
        certify, lambda s: {"accountant": "rdp"}, "nd", LOSS._replace(linear_model=None), x64=True
    ),
}  # fmt: skip
QUICK = ("sgd", "multipass, tested", "element_sgd", "finite_class", "winsorized_erm, clipped")
BY_CASE = pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)

FIELDS = {"n": "n", "m": "m", "d": "d", "T": "steps"}


@functools.cache
def planned(name: str, sizes: Sizes) -> Any:
    case = CASES[name]
    problem = Problem(
        case.loss, num_users=sizes.n, items_per_user=sizes.m, dim=sizes.d, distance=1.0
    )
    budget = () if case.solver is ac_sa else (case.budget,)
    with jax.enable_x64(case.x64):
        return case.solver.plan(problem, *budget, **case.settings(sizes))


@functools.cache
def counted(name: str, sizes: Sizes) -> float:
    """Operations of a traced run; nothing is compiled."""
    case, plan = CASES[name], planned(name, sizes)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    users = (sizes.n, 2, sizes.m // 2) if "element" in case.solver.__name__ else (sizes.n, sizes.m)
    kind = ElementData if len(users) == 3 else UserData
    data = kind(Example(array(*users, sizes.d), array(*users)))
    count = {finite_class: (CANDIDATES,), select_sosp: (sizes.steps,)}.get(case.solver, ())
    start = array(*count, sizes.d)

    def run(key: Any, data: Any, start: Any) -> Any:
        return case.solver.solve(key, plan, case.loss, data, start, *case.more).params

    with jax.enable_x64(case.x64):
        return operations(run, jax.random.key(0), data, start, loops=case.loops(sizes))


def stated(name: str, sizes: Sizes) -> float:
    return planned(name, sizes).work().floating_point_operations


@BY_CASE
def test_a_plan_states_the_operations_of_its_run(name):
    ratio = stated(name, Sizes()) / counted(name, Sizes())
    assert 1 / 1.7 < ratio < 1.7


@BY_CASE
def test_what_a_plan_states_grows_as_its_run_does(name):
    for size in CASES[name].grows if name in QUICK[:2] or name not in QUICK else "n":
        field = FIELDS[size]
        doubled = Sizes()._replace(**{field: 2 * getattr(Sizes(), field)})
        said = math.log2(stated(name, doubled) / stated(name, Sizes()))
        done = math.log2(counted(name, doubled) / counted(name, Sizes()))
        assert abs(said - done) < 0.1, (size, said, done)


def test_outlier_removal_is_stated_quadratic_in_users_and_clipping_linear():
    grown = Sizes(n=512)
    tested, clipped = "multipass, tested", "multipass, clipped"
    assert math.log2(stated(tested, grown) / stated(tested, Sizes())) > 1.9
    assert math.log2(stated(clipped, grown) / stated(clipped, Sizes())) < 1.05
    # Gradients alone, all that plans had counted before, do not tell the two apart.
    assert planned(tested, grown).item_gradients == planned(clipped, grown).item_gradients


def _rows(users: int, items: int, dim: int) -> Any:
    data = UserData(Example(jnp.ones((users, items, dim)), jnp.ones((users, items))))
    return linear.prepare(LOSS.linear_model, data, dim)


def _oracle(make: Any, users: int, items: int, dim: int) -> Any:
    ask = make(LOSS.linear_model, 1.0, chunk_size=users)
    return lambda w, rows: ask(jax.random.key(0), w, rows).gradient


LOOP_FREE = {
    "normal numbers": (
        lambda key: _draws.normal(key, (4096,), jnp.float32),
        (jax.random.key(0),),
        Work(0.0, 4096.0 * _costs._NOISE),
    ),
    "clipped rows": (
        _oracle(linear_users.per_user_gradients, 64, 4, 128),
        (np.ones(128, np.float32), _rows(64, 4, 128)),
        _costs.rows(64, _costs.Item(4, 128, 512.0)),
    ),
    "pairs of users": (
        lambda rows: concentrated_mean.concentration(rows, 1.0),
        (np.ones((512, 256), np.float32),),
        _costs.near_most(512, 256),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOP_FREE)
def test_parts_cost_what_the_compiler_counts(name):
    function, arguments, work = LOOP_FREE[name]
    compiled = compiled_operations(function, *arguments)
    # The rounds of a block of random words are a loop on a CPU, of which the compiler counts one turn.
    rounds = 0.5 if name == "normal numbers" else 0.35
    assert operations(function, *arguments) == pytest.approx(compiled, rel=rounds)
    assert work.floating_point_operations == pytest.approx(compiled, rel=0.4)


def test_pairs_of_blocks_are_compared_once():
    # 4 blocks of 2048 users make 10 pairs, of 2048² users each.
    products = _costs.near_most(8192, 7).products
    assert products == 10 * 2048**2 * 2 * 7


def test_work_adds_up_and_takes_time():
    one, other = Work(1.0, 2.0, 3.0, 4.0), Work(10.0, 20.0, 30.0, 40.0)
    assert one + other * 2 == Work(21.0, 42.0, 63.0, 84.0)
    assert one.floating_point_operations == 3.0
    assert one.seconds(Speed(2.0, 4.0, 6.0, 0.25)) == 0.5 + 0.5 + 0.5 + 1.0
    with pytest.raises(ValueError, match="others_per_second"):
        Speed(1.0, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="speed"):
        one.seconds(1.0)


def test_the_caller_may_know_items_and_gradients_better_than_the_plan():
    plan = planned("sgd", Sizes())
    usual = plan.work()
    assert plan.work(items_per_user=4) == usual
    assert plan.work(items_per_user=8).products == 2 * usual.products
    assert plan.work(item_operations=400.0).products == usual.products * 400 / (4 * 32)
    with pytest.raises(ValueError, match="items_per_user"):
        plan.work(items_per_user=0)
    with pytest.raises(ValueError, match="item_operations"):
        plan.work(item_operations=-1.0)
    part = plan.replace(made_for=None)
    assert part.floating_point_operations is None
    assert "floating_point_operations" not in str(part)
    with pytest.raises(ValueError, match="made_for"):
        part.work()


def test_speed_is_measured_in_a_second_of_a_processor():
    before = time.process_time()
    speed = measured_speed(time.process_time)
    assert time.process_time() - before < 2.0  # cheap compilation is no faster here
    assert speed.products_per_second > 1e8
    with pytest.raises(ValueError, match="clock"):
        measured_speed(1.0)


def _candidate(steps: int, prediction: float) -> auto.Candidate:
    settings = {"num_steps": steps, "sampling": "full", "accountant": "rdp"}
    return auto.Candidate(f"{steps} steps", sgd, lambda p: settings, lambda p, plan: prediction)


def test_auto_takes_the_fastest_of_those_that_predictions_do_not_tell_apart():
    some = (_candidate(1, 2.0), _candidate(4, 1.2), _candidate(8, 1.0), _candidate(6, 1.1))
    problem = Problem(LOSS, num_users=50, items_per_user=2, dim=3, distance=1.0)
    speed = Speed(1e11, 1e10, 1e10, 1e-6)
    by_risk = auto.plan(problem, BUDGET, candidates=some, speed=speed)
    by_time = auto.plan(problem, BUDGET, candidates=some, rank_by="seconds", speed=speed)
    assert (by_risk.choice, by_time.choice) == ("8 steps", "4 steps")
    for row, candidate in zip(by_time.rows, some, strict=True):
        made = sgd.plan(problem, BUDGET, **candidate.settings(None))
        assert row.operations == made.floating_point_operations
        assert row.seconds == made.work().seconds(speed)
    assert by_time.work() == by_time.chosen.work()
    with pytest.raises(ValueError, match="speed"):
        auto.plan(problem, BUDGET, candidates=some, rank_by="seconds")
    with pytest.raises(ValueError, match="speed"):
        auto.plan(problem, BUDGET, candidates=some, speed=1e9)
