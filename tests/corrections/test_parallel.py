"""Section V of docs/corrections.md: the printed claim fails, ours holds."""

import math
import types

import numpy as np
import pytest

from dpsco_jax.solvers.ball import parallel_sco
from dpsco_jax.solvers.ball.ball_oracles import OracleCalls


def most_rounds(oracle, dim, condition):
    plan = parallel_sco.plan(
        lipschitz=1.0,
        distance=1.0,
        dim=dim,
        excess=1 / condition,
        oracle=oracle,
        constants="tight",
    )
    return plan.most_rounds, plan.outer.ratio ** (2 / 3)


def printed(oracle, dim, condition):
    """The orders of Theorems 2.3.2 and 2.3.3 with their logarithms and without their constants.

    log³(dκ) stands where the query depth of the second prints log κ.
    """
    log = math.log(dim * condition)
    rounds = dim ** (1 / 3) * condition ** (2 / 3) * log**3
    samples = condition**2 * log**4
    smooth = dim ** (1 / 4) * condition * log**4 if oracle == "ac_sa" else 0.0
    queries = rounds + samples + smooth
    return parallel_sco.QueryCost(rounds, queries, rounds + (smooth or samples), queries * dim)


def test_v1_the_query_depth_has_more_than_one_logarithm():
    conditions = np.array([1e2, 1e3, 1e4, 1e5])
    found = [most_rounds("ac_sa", 100, condition) for condition in conditions]
    per_ball = np.array([rounds / balls for rounds, balls in found])
    # Printed: a constant times log κ. The line searches alone are log(dκ) rounds each.
    assert np.all(np.diff(per_ball / np.log(conditions)) > 0)
    assert (per_ball / np.log(conditions))[-1] > 1.2 * (per_ball / np.log(conditions))[0]
    # With both logarithms it is one, because runs and levels share a round.
    both = per_ball / (np.log(3 * conditions) * np.log(100 * conditions))
    assert np.all(both < 40)
    assert np.all(np.diff(both) < 0)
    # And it is the same for both oracles: each makes one round of queries.
    assert most_rounds("epoch_sgd", 100, 1e2) == found[0]
    theorems = [printed(oracle, 100, 1e3).rounds for oracle in parallel_sco.ORACLES]
    assert theorems[0] == theorems[1]


def test_v2_work_has_the_dimension():
    # The theorems multiply by d; Propositions 2.3.4 and 2.3.5 do not.
    end = types.SimpleNamespace(oracle_calls=OracleCalls(2, 0, 0), calls=np.array([2, 0, 0]))
    inner = types.SimpleNamespace(queries=(1000,), depths=(50,))
    small, large = (
        parallel_sco.query_cost(
            types.SimpleNamespace(inner=inner, search_runs=1, dim=dim),
            types.SimpleNamespace(trajectory=end),
        ).work
        for dim in (10, 100)
    )
    assert (small, large) == (20_000, 200_000)


def test_v3_the_convolution_costs_less_than_the_root_of_the_dimension():
    # Both sides of ε/3 = L·ρ·E‖N(0, I)‖ at dimension 1: the norm is attained at its kink.
    tight, printed = (
        parallel_sco.plan(lipschitz=1.0, distance=1.0, dim=1, excess=0.3, constants=name)
        for name in ("tight", "paper")
    )
    bias = math.sqrt(2 / math.pi)  # E|N|: what convolution adds to |x| at 0, per ρ
    assert bias * tight.smoothing_radius == pytest.approx(0.1)
    assert bias * printed.smoothing_radius < 0.08
    # The balls are larger by as much, hence fewer.
    assert tight.outer.ratio == pytest.approx(bias * printed.outer.ratio)
