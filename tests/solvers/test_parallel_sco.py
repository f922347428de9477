"""Parallel stochastic convex optimization: accuracy, exact counts, plans."""

import math
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.problems.regression_instances import absolute_regression
from dpsco_jax.solvers.ball import parallel_sco
from dpsco_jax.solvers.ball.ball_oracles import BallAnswer, BallOracles, OracleCalls

DIM, CONDITION = 5, 5
INSTANCE = absolute_regression(jax.random.key(0), 60, DIM, DIM)
EXCESS = INSTANCE.lipschitz * INSTANCE.distance / CONDITION
NUMBERS = {
    "lipschitz": INSTANCE.lipschitz,
    "distance": INSTANCE.distance,
    "dim": DIM,
    "excess": EXCESS,
}


def mapped_run(plan):
    """Runs over keys, with f moved by an offset, stopped at a multiple of the excess."""

    def run(key, offset, target):
        def gradient(keys, points):
            return INSTANCE.gradient(keys, points - offset)

        def stop(point):
            return INSTANCE.value(point - offset) - INSTANCE.optimum <= target * EXCESS

        return parallel_sco.solve(key, plan, gradient, offset * jnp.ones(DIM), stop=stop)

    return jax.jit(jax.vmap(run))


def at(result, index):
    return jax.tree.map(lambda leaf: leaf[index], result)


@pytest.mark.slow
def test_counts_without_a_search_are_known_beforehand():
    plan = parallel_sco.plan(**NUMBERS, oracle="ac_sa", search="fixed", num_iterations=3)
    ends = mapped_run(plan)(jax.random.split(jax.random.key(2), 1), jnp.zeros(1), jnp.full(1, -1.0))
    cost = parallel_sco.query_cost(plan, at(ends, 0))
    # λ = L/r in all three iterations: the last bucket but one of ball and prox each.
    edges = np.asarray(plan.inner.edges)
    buckets = len(edges) + 1
    bucket = int(np.sum(float(plan.outer.regularization) >= edges))
    kinds = [buckets + bucket, 2 * buckets + bucket]
    assert cost.rounds == 3
    assert cost.queries == 3 * sum(plan.inner.queries[kind] for kind in kinds)
    assert cost.depth == 3 * sum(plan.inner.depths[kind] for kind in kinds)


def test_sharing_of_the_excess():
    plan = parallel_sco.plan(lipschitz=2.0, distance=3.0, dim=100, excess=0.6, constants="paper")
    assert plan.smoothing_radius == pytest.approx(0.6 / (3 * 2 * 10))
    assert plan.outer.ball_radius == plan.smoothing_radius
    assert plan.outer.excess == pytest.approx(0.2)
    tight = parallel_sco.plan(lipschitz=2.0, distance=3.0, dim=100, excess=0.6, constants="tight")
    # E‖N(0, I)‖ < √d.
    assert 1 < tight.smoothing_radius / plan.smoothing_radius < 1.003
    searches = plan.outer.num_iterations * plan.outer.max_searches
    assert plan.search_runs == math.ceil(20 * math.log(searches * 6 * 2 * 3 / 0.6))
    assert "rounds at most" in str(plan)


@pytest.mark.parametrize("constants", ["paper", "tight"])
@pytest.mark.parametrize("oracle", parallel_sco.ORACLES)
def test_sizes_fit_the_accuracies(constants, oracle):
    plan = parallel_sco.plan(**NUMBERS, constants=constants, oracle=oracle, prox="plain")
    least = float(plan.outer.regularization)
    search, _, prox = plan.inner.accuracies
    # The bias of a plain prox is at most its root mean square.
    bias = math.sqrt(2 * prox) * plan.outer.ball_radius
    assert bias <= float(plan.outer.excess) / (12 * INSTANCE.distance * least) * (1 + 1e-9)
    if constants == "paper" and oracle == "epoch_sgd":
        samples = 48 * INSTANCE.lipschitz**2 / (least**2 * plan.outer.ball_radius**2 * search)
        most = plan.inner.queries[plan.inner.epochs_by_accuracy[0]]
        assert samples / 2.1 <= most <= samples + 1


def test_rounds_and_depth_of_a_run_by_hand():
    # Two line searches of 3 runs, 2 iterations; a prox of one problem, then of three.
    problems = [[0, 3, 3], [1, 1, 0], [1, 2, 1]]
    end = types.SimpleNamespace(oracle_calls=OracleCalls(2, 2, 2), calls=problems)
    inner = types.SimpleNamespace(queries=(0, 10, 10**18), depths=(1, 2, 5))
    plan = types.SimpleNamespace(inner=inner, search_runs=3, dim=7)
    cost = parallel_sco.query_cost(plan, types.SimpleNamespace(trajectory=end))
    assert cost.rounds == 2 + 2
    assert cost.queries == 6 * 10 + 4 * 10**18
    assert cost.depth == (2 + 5) + (1 + 2) + (1 + 4 + 5)
    assert cost.work == 7 * cost.queries


def test_robust_line_searches_and_levels_are_counted_by_role():
    def oracle(kind):
        def answer(key, center, regularization):
            calls = jax.nn.one_hot(kind, 3, dtype=jnp.int32)
            return BallAnswer(center, jnp.asarray(regularization), calls)

        return answer

    oracles = parallel_sco._by_role([oracle(0), oracle(1), oracle(2)], search_runs=4)
    assert isinstance(oracles, BallOracles)
    tables = [
        f(jax.random.key(0), jnp.zeros(2), jnp.float32(1)).calls.reshape(3, 3) for f in oracles
    ]
    assert [table.tolist() for table in tables] == [
        [[4, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 1]],
    ]


def test_the_start_has_the_planned_dimension():
    plan = parallel_sco.plan(**NUMBERS)
    with pytest.raises(ValueError, match="start"):
        parallel_sco.solve(jax.random.key(0), plan, INSTANCE.gradient, jnp.zeros(DIM + 1))


_TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from dpsco_jax.problems.regression_instances import absolute_regression
from dpsco_jax.solvers.ball import parallel_sco

made = absolute_regression(jax.random.key(0), 60, 5, 5)
plan = parallel_sco.plan(
    lipschitz=1.01, distance=made.distance, dim=5, excess=made.distance / 4, num_iterations=4
)
mesh = jax.make_mesh((2,), ("queries",))
programs = [
    jax.jit(lambda key, m=m: parallel_sco.solve(key, plan, made.gradient, jnp.zeros(5), mesh=m))
    for m in (None, mesh)
]
ends = [program(jax.random.key(1)) for program in programs]
np.testing.assert_allclose(ends[0].params, ends[1].params, atol=1e-4)
assert parallel_sco.query_cost(plan, ends[0]) == parallel_sco.query_cost(plan, ends[1])
assert float(jnp.linalg.norm(ends[0].params)) > 0.01
text = programs[1].lower(jax.random.key(1)).compile().as_text()
assert "f32[64,5]" in text and "all-gather" in text  # half of each block of 128 queries
print("divided")
"""


@pytest.mark.slow
def test_queries_are_divided_over_devices():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", _TWO_DEVICES], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "divided", done.stderr


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"excess": 10.0}, "excess"),
        ({"constants": "tight", "search": "doubling"}, "search"),
        ({"constants": "paper", "prox": "reuse"}, "prox"),
        ({"search": "fixed", "prox": "reuse"}, "prox"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, name):
    with pytest.raises(ValueError, match=name):
        parallel_sco.plan(**(NUMBERS | change))
