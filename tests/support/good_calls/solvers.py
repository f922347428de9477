"""Calls of ``dpsco_jax.solvers`` that work, where the common vocabulary does not say it."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses, nonconvex_losses
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers import means, methods
from dpsco_jax.solvers.ball import ball_oracles
from dpsco_jax.solvers.convex import ac_sa_stages
from dpsco_jax.solvers.item_level import ball_accelerated_erm, private_ac_sa
from dpsco_jax.solvers.means import Clipped
from dpsco_jax.solvers.user_level import auto
from dpsco_jax.solvers.work import Speed
from tests.support import kinds
from tests.support.good_calls import privacy as privacy_calls
from tests.support.kinds import Kind
from tests.support.objects import BUDGET, DATA, OBJECTIVE, PROBLEM, USERS, VECTOR

_ELEMENTS = ElementData(
    jax.tree.map(lambda leaf: leaf[:, None], DATA.items), np.ones((USERS, 1, 3), bool)
)
_DECAYING = {
    "initial_step": kinds.POSITIVE(0.5),
    "decay": Kind("in (1/2, 1)", (0.5, 1.0, *kinds.OPEN_PROBABILITY.bad))(0.6),
}
_MEAN = means.clipped(PROBLEM, BUDGET, num_steps=5, batch_size=2, accountant="rdp")
_LINEAR = losses.absolute(1.0, domains.ball(1.0))
_WHOLE = losses.huber(1.0)
_NO_RIDGE = OBJECTIVE._replace(ridge=0.0)
_PURE = Kind("budget", (*kinds.OBJECT.bad, OBJECTIVE, 1.0, (1.0, 1e-5)))
_BUDGET = Kind("budget with a positive delta", (*_PURE.bad, Budget(1.0)))
_PROBLEM = Kind("problem", (*kinds.OBJECT.bad, OBJECTIVE, DATA))
_USERS_FROM_TWO = _PROBLEM.also(dataclasses.replace(PROBLEM, num_users=1))


def _asked(objective: Any = OBJECTIVE, num_users: int = USERS, **budget: float) -> dict[str, Any]:
    """What every private plan is asked for: a problem of two users or more, and a budget."""
    problem = dataclasses.replace(PROBLEM, objective=objective, num_users=num_users)
    spent = Budget(**{"epsilon": 1.0, "delta": 1e-5} | budget)
    return {"problem": _USERS_FROM_TWO(problem), "budget": _BUDGET(spent)}


_WELSCH = nonconvex_losses.welsch(1.0)
_INNER = {
    "inner": private_ac_sa.plan,
    **_asked(num_users=2000),
}
_BALL = {
    "smoothing_radius": 1.0,
    "accuracies": Kind("positive numbers", ((), (0.0,), (np.nan,), ("1",), 7, None))((0.1,)),
}
_RESQUE = {
    **_asked(_LINEAR, 200, epsilon=2.0, delta=1e-3),
    "ball_radius": 0.1,
    "regularization": 5.0,
    "num_queries": Kind("integer >= 4", (1, *kinds.COUNT.bad))(16),
}
_BALL_ERM = {
    **_asked(_LINEAR, 8000, epsilon=4.0, delta=1e-4),
    "calls": kinds.OBJECT(ball_accelerated_erm.Calls(num_queries=16)),
    "largest_error": kinds.POSITIVE_OR_INF(1e9),
}
_CLIPPED = {
    **_asked(num_users=300),
    "mean": kinds.CHOICE.but(None)(Clipped),
}
_INTERCEPT = Kind("integer in [0, dim - 1]", (-1, 10**6, *kinds.INTEGER.bad))(0)
_UNITS = {
    "problem": _PROBLEM(PROBLEM),
    "budget": _BUDGET(BUDGET),
    "batch_size": 5,
    "sampling": kinds.CHOICE("user"),
    "relation": kinds.CHOICE("replace"),
    "cap": Kind("a number from 1 to infinity", (0.5, -1.0, np.nan, "2", 1j, True))(2.0),
}
_RANGE = {
    "problem": _PROBLEM(dataclasses.replace(PROBLEM, objective=_NO_RIDGE)),
    "budget": _PURE(BUDGET),
    "loss_range": Kind("low and high", ((1.0, 0.0), (np.nan, 1.0), ("0", "1"), 7, None, (1j, 2.0)))(
        (0.0, 2.0)
    ),
}
_STAGES = ac_sa_stages.one_stage(ac_sa_stages.Setting(1.0, 0.0, 1.0, 1.0), "convex", 5)
_AGGREGATED = {"search_runs": kinds.COUNT, "oracle": kinds.FUNCTION(lambda *_: None)}

_HEAVY = {
    "moments": kinds.OBJECT(Moments(3.0, 2.0, 1.0)),
    "regularization": kinds.POSITIVE(0.5),
    "radius": kinds.POSITIVE.but(None)(1.0),
    "failure": kinds.OPEN_PROBABILITY,
    "strength": kinds.POSITIVE.but(None)(0.5),
    "num_copies": kinds.COUNT.but(None)(1),
    "second_moment": kinds.POSITIVE.but(None)(0.5),
    "num_phases": kinds.COUNT.but(None)(1),
}

GOOD: dict[str, dict[str, Any]] = {
    "solvers.heavy_tailed.localized_clipped_sgd.plan": {
        **_HEAVY,
        **_asked(_NO_RIDGE),
        "step_size": kinds.POSITIVE(1e-6),
    },
    "solvers.heavy_tailed.onepass_clipped_sgd.bound": {
        **_HEAVY,
        "distance": kinds.POSITIVE(1.0),
        "diameter": kinds.POSITIVE(2.0),
    },
    "solvers.heavy_tailed.onepass_clipped_sgd.run": {
        "step": kinds.FUNCTION(lambda state, user, point: (point, True, state)),
        "project": kinds.FUNCTION(lambda point: point),
        "start": kinds.TREE(np.zeros(3, np.float32)),
        "first": kinds.WHOLE(0),
        "count": kinds.WHOLE(2),
        "step_size": kinds.POSITIVE(0.1),
        "state": kinds.ANY(()),
    },
    "solvers.heavy_tailed.phased_clipped_glm.plan": {
        **_HEAVY,
        **_asked(),
        "problem": _USERS_FROM_TWO(
            dataclasses.replace(PROBLEM, objective=_NO_RIDGE, items_per_user=1)
        ),
    },
    **{
        f"solvers.heavy_tailed.{name}.plan": _HEAVY
        for name in (
            "aggregate_erm",
            "clipped_gd",
            "known_lipschitz",
            "localized_erm",
            "population_localize",
        )
    },
    **{
        f"solvers.nonconvex.{name}.plan": {
            **_asked(_WHOLE),
            "smoothing_radius": kinds.POSITIVE(0.1),
            "draws": kinds.COUNT(2),
            "period": kinds.COUNT(2),
            "relation": kinds.RELATION(NeighboringRelation.REPLACE_ONE),
        }
        for name in ("o2nc_multi_pass", "o2nc_single_pass")
    },
    **{
        f"solvers.nonconvex.goldstein.{name}": {
            "radius": kinds.NONNEGATIVE(0.1),
            "num_points": kinds.COUNT(3),
            "num_iterations": kinds.COUNT(3),
        }
        for name in ("component_goldstein_norm", "goldstein_norm")
    },
    "solvers.nonconvex.goldstein.generalization_bound": {"reach": kinds.NONNEGATIVE(1.0)},
    "solvers.work.Speed": dict.fromkeys(
        ("products_per_second", "others_per_second", "bytes_per_second", "seconds_per_step"),
        kinds.POSITIVE(1.0),
    ),
    "solvers.work.measured_speed": {"clock": kinds.FUNCTION(time.process_time)},
    "solvers.means.clipped": {"batch_size": 5},
    "solvers.first_order.plan": {
        "mean": kinds.OBJECT(_MEAN),
        "method": kinds.OBJECT(methods.ProjectedSgd(0.1)),
        "title": kinds.WORDS("mine"),
        "remarks": Kind("pairs", ("nonsense", 7, None, ("a",)))(()),
    },
    "solvers.convex.ac_sa.plan": {"problem": _PROBLEM(PROBLEM), "num_steps": 5},
    "solvers.convex.sgd.plan": {"problem": _PROBLEM(PROBLEM), "num_steps": 5},
    "solvers.convex.ac_sa.optimizer": {"stages": kinds.OBJECT(_STAGES)},
    "solvers.ball.ball_ac_sa.plan": _BALL,
    "solvers.ball.epoch_sgd.plan": _BALL,
    "solvers.ball.ball_acceleration.run": {
        "oracles": kinds.OBJECT(ball_oracles.BallOracles(None, None, None)),
        "project": kinds.FUNCTION(None),
    },
    "solvers.ball.ball_oracles.aggregated": _AGGREGATED,
    "solvers.ball.ball_oracles.debiased": {
        "levels": Kind("functions", ("nonsense", 7, None, ()))([lambda *_: None] * 2),
        "drawn": kinds.ANY(None),
    },
    "solvers.ball.ball_oracles.from_ball_oracle": {
        "line_search": kinds.FUNCTION(lambda *_: None),
        "ball": kinds.FUNCTION(lambda *_: None),
        "levels": Kind("functions", ("nonsense", 7, None, ()))([lambda *_: None] * 2),
    },
    "solvers.ball.exact_ball_oracles.quadratic": {},
    "solvers.combinators.localization.plan": _INNER,
    "solvers.combinators.regularization.plan": _INNER,
    "solvers.combinators.restarts.plan": _INNER,
    "solvers.ball.newton_ball_oracles.monteiro_svaiter": {"accuracy": kinds.POSITIVE(0.5)},
    "solvers.ball.krylov_ball_oracles.monteiro_svaiter": {"accuracy": kinds.POSITIVE(0.5)},
    "solvers.means.tested_stddev": {
        "releases": kinds.OBJECT(privacy_calls.CONCENTRATED),
        "score_radius": kinds.POSITIVE(1.0),
    },
    "solvers.ball.newton_ball_oracles.newton": {"radius": kinds.POSITIVE_OR_INF(1.0)},
    "solvers.ball.parallel_sco.query_cost": {"result": kinds.OBJECT(None)},
    "solvers.resque.ball_accelerated_erm.plan": _BALL_ERM,
    "solvers.resque.ball_accelerated_regularized_erm.plan": {
        **_BALL_ERM,
        "regularization": 1.0,
    },
    "solvers.resque.ball_accelerated_sco.plan": {**_BALL_ERM, "num_blocks": 1},
    "solvers.item_level.private_ac_sa.plan": _asked(),
    "solvers.sampling.proximal_oracle.proximal_oracle": {
        "objective": kinds.OBJECT(_WHOLE),
        "center": Kind("float64 array [dim]", ("nonsense", 7, None, VECTOR, np.ones((2, 2))))(
            VECTOR.astype(np.float64)
        ),
        "inverse_temperature": kinds.POSITIVE(30.0),
        "convexity": kinds.POSITIVE(0.5),
        "relative_step": kinds.POSITIVE(2.0),
        "num_steps": kinds.COUNT(5),
        "all_gradients": kinds.FLAG.but(None)(False),
    },
    "solvers.sampling.exponential_mechanism.plan": {
        "problem": _USERS_FROM_TWO(
            Problem(losses.logistic(1.0, domain=domains.ball(1.0)), num_users=USERS, dim=2)
        ),
        "budget": _PURE(BUDGET),
        "cells": kinds.COUNT_FROM_TWO.but(None)(4),
    },
    "solvers.nonconvex.net_exponential_mechanism.plan": {
        "problem": _USERS_FROM_TWO(
            Problem(losses.logistic(1.0, domain=domains.ball(1.0)), num_users=USERS, dim=3)
        ),
        "budget": _PURE(BUDGET),
        "cells": kinds.COUNT_FROM_TWO.but(None)(4),
        "most_points": kinds.COUNT_FROM_TWO(1000),
    },
    "solvers.nonconvex.gibbs.plan": {
        "problem": _USERS_FROM_TWO(
            Problem(losses.logistic(1.0, domain=domains.ball(1.0)), num_users=USERS, dim=2)
        ),
        "budget": _PURE(BUDGET),
        "most_proposals": kinds.COUNT_FROM_TWO(10_000),
    },
    "solvers.sampling.routes.compare": _asked(_WHOLE),
    "solvers.sampling.regularized.plan": {
        **_asked(_WHOLE),
        "regularization": 0.5,
        "smoothing": kinds.POSITIVE.but(None)(None),
    },
    "solvers.sampling.value_queries.plan": {
        **_asked(delta=1e-2),
        "problem": _PROBLEM(dataclasses.replace(PROBLEM, objective=_WHOLE, num_users=4)),
        "regularization": 0.5,
        "norm": Kind("number in [1, inf]", ("nonsense", None, 0.5, np.nan, -1.0))(2.0),
    },
    "solvers.sampling.zeroth_order.plan": {
        **_asked(_WHOLE, num_users=2, epsilon=0.5, delta=1e-3),
        "norm": Kind("exponent", ("nonsense", None, 1.0, 3.0, float("nan")))(2.0),
        "radius": kinds.POSITIVE.but(None)(None),
    },
    "solvers.item_level.erm.plan": _asked(),
    "solvers.item_level.regularized_sgd.plan": {
        **_asked(),
        "problem": _PROBLEM(PROBLEM),
        "coefficients": Kind(
            "falling numbers to 0",
            ("nonsense", 7, (1.0, 0.0), (1.0, 0.5, 0.6, 0.1, 0.0), (np.nan,) * 5),
        )((1.0, 0.5, 0.2, 0.1, 0.0)),
    },
    "solvers.item_level.langevin.plan": {**_asked(), "step_size": 0.1, "gradient_budget": 1000},
    "solvers.resque.resque_erm.plan": _RESQUE,
    "solvers.resque.resque_erm_high_probability.plan": {**_RESQUE, "num_runs": 2},
    "solvers.resque.resque_prox.plan": {
        **_RESQUE,
        **_asked(_LINEAR, 2000, epsilon=2.0, delta=4e-4),
        "num_queries": _RESQUE["num_queries"].kind(64),
        "prox": "mlmc_extended",
    },
    "solvers.item_level.sco.plan": _asked(num_users=2000),
    **{
        f"solvers.element_level.glm.{name}": {"data": kinds.OBJECT(_ELEMENTS)}
        for name in (
            *("by_elements", "gradient_covariance", "hessian"),
            *("minimizer", "standard_errors", "user_gradients"),
        )
    },
    "solvers.element_level.aprox.mapping": {
        "loss": kinds.FUNCTION(jnp.sum),
        "step_size": kinds.POSITIVE,
        "model": kinds.CHOICE("proximal"),
        "infimum": kinds.SIGNED(0.0),
        "smoothness": kinds.POSITIVE(1.0),
        "inner_steps": kinds.COUNT(2),
    },
    "solvers.element_level.m_estimation.limit_covariance": {
        "hessian": kinds.ANY(np.eye(2)),
        "gradient_covariance": kinds.ANY(np.eye(2)),
        "steps_per_record": kinds.POSITIVE_OR_INF(2.0),
        "noise_stddev": kinds.NONNEGATIVE,
        "noise_covariance": kinds.ANY(np.eye(2)),
    },
    "solvers.element_level.sgd.plan": _UNITS | {"protects": kinds.CHOICE("element")},
    "solvers.element_level.federated.plan": _UNITS,
    "solvers.element_level.m_estimation.noisy_sgd": {
        **_DECAYING,
        "num_steps": kinds.COUNT(2),
        "noise_stddev": kinds.NONNEGATIVE,
        "model": kinds.CHOICE("linear"),
        "infimum": kinds.SIGNED(0.0),
        "inner_steps": kinds.COUNT(2),
    },
    "solvers.user_level.accelerated_phased_erm.plan": _CLIPPED,
    "solvers.user_level.accelerated_sgd.plan": _CLIPPED,
    "solvers.user_level.accelerated_strongly_convex.plan": _CLIPPED | {"num_blocks": 1},
    "solvers.heavy_tailed.auto.plan": {**_HEAVY, **_asked()},
    "solvers.user_level.auto.plan": {
        **_asked(),
        "intercept": _INTERCEPT,
        "entry_bound": kinds.POSITIVE,
        "candidates": Kind("candidates", ("nonsense", 7, ()))(auto.CANDIDATES[:1]),
        "settings": Kind("settings by name", ("nonsense", 7))({}),
        "speed": kinds.OBJECT(Speed(1e11, 1e10, 1e10, 1e-6)),
    },
    "solvers.nonconvex.select_sosp.plan": {
        **_asked(_WELSCH),
        "budget": _PURE(BUDGET),
        "stationarity": kinds.POSITIVE(0.1),
    },
    "solvers.nonconvex.certify.plan": _asked(_WELSCH),
    "solvers.nonconvex.optimal_smoothing.plan": {
        **_asked(_WELSCH),
        "budget": _PURE(BUDGET),
        "initial_gap": kinds.POSITIVE(1.0),
        "smoothing": kinds.CHOICE("ball"),
        "draws": kinds.COUNT(2),
        "most_points": kinds.COUNT_FROM_TWO(100),
    },
    "solvers.nonconvex.hessian_escape.plan": {
        **_asked(_WELSCH),
        "initial_gap": kinds.POSITIVE(1.0),
    },
    "solvers.nonconvex.find_sosp.plan": {**_asked(_WELSCH), "initial_gap": kinds.POSITIVE(1.0)},
    "solvers.user_level.finite_class.plan": {
        **_RANGE,
        "stopping_probability": kinds.POSITIVE_PROBABILITY,
    },
    "solvers.user_level.localized_sgd.plan": {
        **_asked(),
        "num_blocks": kinds.COUNT(2),
    },
    "solvers.user_level.metric_entropy.plan": {
        **_RANGE,
        "lower": -1.0,
        "upper": 1.0,
    },
    "solvers.user_level.metric_entropy.grid_point": {"index": kinds.COUNT_OR_ZERO(1)},
    "solvers.user_level.phased_sgd.plan": {
        **_asked(num_users=300),
        "radius": Kind("radius or radii", kinds.POSITIVE.bad)(1.0),
    },
    "solvers.user_level.phased_sgd.group_averages": {"start": kinds.TREE(jnp.asarray(VECTOR))},
    "solvers.user_level.preconditioned_sgd.plan": {
        **_asked(),
        "problem": _PROBLEM(PROBLEM),
        "second_moments": kinds.NUMBERS(VECTOR),
    },
    "solvers.user_level.preconditioned_sgd.one_hot_moments": {"field_sizes": kinds.COUNTS((2, 3))},
    "solvers.user_level.whitened_sgd.plan": {
        **_asked(),
        "problem": _PROBLEM(PROBLEM),
        "intercept": _INTERCEPT,
        "entry_bound": kinds.POSITIVE,
        "num_steps": 4,
        "start_steps": 2,
        "radius_steps": 2,
        "matrix": kinds.FLAG(True),
        "covariance": True,
    },
    "solvers.user_level.sgd.plan": {
        "problem": _PROBLEM(PROBLEM),
        "budget": _BUDGET(BUDGET),
        "batch_size": 5,
    },
    "solvers.user_level.momentum_sgd.plan": {
        "problem": _PROBLEM(PROBLEM),
        "budget": _BUDGET(BUDGET),
        "batch_size": 5,
    },
    "solvers.item_level.staged_ac_sa.plan": {**_asked(), "num_steps": 7},
    "solvers.user_level.winsorized_erm.plan": {**_asked(), "problem": _PROBLEM(PROBLEM)},
    "solvers.user_level.multipass_sgd.plan": _asked(),
    "solvers.user_level.phased_erm.plan": _asked(),
    "solvers.user_level.item_group_privacy.plan": _asked(),
    "solvers.user_level.item_sampled_sgd.plan": {
        **_asked(),
        "problem": _PROBLEM(PROBLEM),
        "batch_size": 5,
    },
    "solvers.user_level.sampling_choice.plan": {
        **_asked(),
        "problem": _PROBLEM(PROBLEM),
        "batch_size": 5,
        "kept": Kind("numbers of items", ((), (0,), (99,), (1.5,), 7, "nonsense"))((1,)),
    },
    "solvers.user_level.output_perturbation.plan": _asked(),
}

_RUNS: dict[str, tuple[str, ...]] = {
    "ball.ball_ac_sa": ("ball_oracles",),
    "ball.ball_acceleration": ("run",),
    "ball.epoch_sgd": ("ball_oracles", "num_queries"),
    "ball.parallel_sco": ("query_cost",),
    "user_level.metric_entropy": ("grid_point",),
}
EXEMPT: dict[tuple[str, str], str] = {
    (f"solvers.{name}", "*"): "a part of solvers, called behind the checks of their plans"
    for name in (
        "convex.ac_sa_stages.Setting",
        "convex.ac_sa_stages.convex_stages",
        "convex.ac_sa_stages.one_stage",
        "convex.ac_sa_stages.stages_to",
        "convex.ac_sa_stages.stages_within",
        "ball.ball_ac_sa.minimize",
        "combinators.composite.farthest",
        "combinators.composite.slope",
        "combinators.composite.start_distance",
        "ball.epoch_sgd.minimize",
        "ball.exact_ball_oracles.multiplier",
        "ball.exact_ball_oracles.secular",
        "first_order.run",
        "loop.run",
        "combinators.restarts.paper_stages",
        "plans.aligned",
        "plans.describe",
        "solution.finished",
        "user_level.accelerated_sgd.of_size",
        "user_level.phased_sgd.group_averages",
    )
}
EXEMPT |= {
    ("solvers.ball.ball_oracles.debiased", "drawn"): "random numbers of a run, or none",
}
EXEMPT |= {
    (f"solvers.{room}.{name}", "*"): "runs a plan, whose numbers were checked when it was made"
    for room, names in _RUNS.items()
    for name in names
}
