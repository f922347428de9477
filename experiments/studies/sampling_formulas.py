"""What plans and closed forms say of sampling: exponents, users as records, pure privacy.

What it computes: how planned value queries grow with s·n, proximal steps with n, d and 1/μ, and bounds on the
risk with d in ℓp, as slopes on logarithms; the law of a mean as a draw in closed form, to a million records;
for which tasks, a user as the record, a plan expects to beat w = 0; and pure ε-DP by the exponential
mechanism beside output perturbation at its best ridge. Nothing is run but plans and Gaussians.

Source: T, Theorems 3.6.4 and 4.4.2, Table 4.1; Chaudhuri, Monteleoni and Sarwate 2011 for output perturbation
with the density exp(-c·‖b‖).

Formal guarantee: none; plans do not see data.

Cost: seconds.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
import pandas as pd

from dpsco_jax import Budget, Problem, privacy
from dpsco_jax.problems import losses
from dpsco_jax.rates import norms, sampling, sampling_tables, value_queries
from dpsco_jax.solvers._schedules import nominal_model
from dpsco_jax.solvers.item_level import langevin
from dpsco_jax.solvers.sampling import regularized
from dpsco_jax.solvers.sampling import value_queries as by_values
from experiments.studies.sampling_tasks import load_users

_CLEARLY = 0.9
POWERS = (1.0, 1.5, 2.0, 4.0)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of a line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def planned_queries(sizes: Sequence[int], epsilon: float, delta: float, dim: int) -> pd.DataFrame:
    """Value queries that plans for the hinge loss expect, against s·n.

    Args:
        sizes: n.
        epsilon: of the budget.
        delta: of the budget.
        dim: d.
    """
    rows = []
    with jax.enable_x64(True):
        for n in sizes:
            problem = Problem(losses.hinge(1.0), num_users=n, dim=dim, distance=1.0)
            plan = by_values.plan(problem, Budget(epsilon, delta))
            rows.append(
                {
                    "users": n,
                    "sn": float(plan.gdp) * n,
                    "steps": float(plan.num_steps),
                    "queries": float(plan.expected_value_queries),
                    "bound": float(plan.excess_bound),
                    "lower_bound": value_queries.minimax_lower_bound(
                        round(float(plan.expected_value_queries)), dim, diameter=2.0, num_users=n
                    ),
                }
            )
    return pd.DataFrame(rows)


def proximal_steps(
    sizes: Sequence[int], dims: Sequence[int], convexities: Sequence[float]
) -> dict[str, float]:
    """Slopes of the planned steps of ``regularized`` in n, d and 1/μ, others fixed at their middle.

    Args:
        sizes: n.
        dims: d.
        convexities: μ.
    """
    middle = {"n": sizes[len(sizes) // 2], "d": dims[len(dims) // 2]}

    def steps(n: int, d: int, mu: float) -> float:
        with jax.enable_x64(True):
            problem = Problem(losses.logistic(1.0), num_users=n, dim=d, distance=10.0)
            plan = regularized.plan(problem, Budget(1.0, 1e-6), regularization=mu)
        return float(plan.num_steps)

    mu = convexities[len(convexities) // 2]
    return {
        "n": slope(sizes, [steps(n, middle["d"], mu) for n in sizes]),
        "d": slope(dims, [steps(middle["n"], d, mu) for d in dims]),
        "1/mu": slope(
            [1.0 / c for c in convexities],
            [steps(middle["n"], middle["d"], c) for c in convexities],
        ),
    }


def norm_risks(dims: Sequence[int], num_users: int, epsilon: float, delta: float) -> pd.DataFrame:
    """The empirical risk that a draw promises on the unit ball of ℓp, beside Table 4.1; G_Δ = 2.

    Args:
        dims: d, each at least 3.
        num_users: n.
        epsilon: of the budget.
        delta: of the budget.
    """
    s = float(privacy.gdp_within(epsilon, delta))
    rows = []
    for p in POWERS:
        for d in dims:
            theta = norms.regularizer_range(p, d)
            risk = sampling.erm(s, num_users, d, 2.0, theta).risk
            table = sampling_tables.general_norm_rate(p, num_users, d, epsilon, delta, 2.0, 2.0)
            rows.append({"p": p, "dim": d, "risk": risk, "table": table})
    return pd.DataFrame(rows)


def means(sizes: Sequence[int], dim: int, epsilon: float, delta: float) -> pd.DataFrame:
    """Means of points in the unit ball as draws, exact: N(mean, I/k), k = s²n²/G_Δ², G_Δ = 2.

    Args:
        sizes: n.
        dim: d.
        epsilon: of the budget.
        delta: of the budget.

    Returns:
        For each n the mean excess risk of 4,000 draws with its standard error, d/(2k), which is exact, the
        bound d/k, and the bound of the pure exponential mechanism on the ball.
    """
    s = float(privacy.gdp_within(epsilon, delta))
    generator, rows = np.random.default_rng(0), []
    for n in sizes:
        draw = sampling.strongly_convex(s, n, dim, 2.0, 1.0)
        k = draw.inverse_temperature
        errors = generator.standard_normal((4000, dim)) / math.sqrt(k)
        excess = 0.5 * np.sum(errors**2, axis=1)
        rows.append(
            {
                "users": n,
                "excess": excess.mean(),
                "se": excess.std(ddof=1) / math.sqrt(len(excess)),
                "exact": dim / (2.0 * k),
                "bound": draw.risk,
                "pure": sampling.pure_erm(epsilon, n, dim, 2.0, 2.0),
            }
        )
    return pd.DataFrame(rows)


def users_as_records(
    tasks: Sequence[str], radii: Sequence[float], epsilons: Sequence[float], delta: float
) -> pd.DataFrame:
    """What plans expect of a draw where a user is the record, beside what w = 0 has.

    Args:
        tasks: names of data sets.
        radii: distances that plans are made for.
        epsilons: budgets.
        delta: δ of all budgets.

    Returns:
        Beside what is expected of a draw and of ``langevin``: ``start``, what w = 0 has on the nominal
        problem that the plan is for; ``trivial``, what it has on the data; ``beats``, whether a draw is
        expected to have less than nine tenths of the former; ``proven``, whether its bound is below the
        latter.
    """
    rows = []
    for task in tasks:
        users = load_users(task)
        for radius in radii:
            for epsilon in epsilons:
                problem, budget = users.problem(radius), Budget(epsilon, delta)
                with jax.enable_x64(True):
                    draw = regularized.plan(problem, budget, columns_per_row=users.columns)
                steps = langevin.plan(problem, budget, columns_per_row=users.columns)
                start = nominal_model.nominal(problem, users.columns)
                rows.append(
                    {
                        "task": task,
                        "radius": radius,
                        "epsilon": epsilon,
                        "users": problem.num_users,
                        "draw": float(draw.predicted_excess),
                        "draw_bound": float(draw.excess_bound),
                        "langevin": float(steps.predicted_excess),
                        "start": start.excess(start.starts),
                        "trivial": users.trivial,
                    }
                )
    found = pd.DataFrame(rows)
    return found.assign(
        beats=found["draw"] < _CLEARLY * found["start"],
        proven=found["draw_bound"] < found["trivial"],
    )


def pure_privacy(
    num_rows: int, dim: int, radius: float, epsilon: float, smoothness: float = 0.25
) -> dict[str, float]:
    """Excess risks under pure ε-DP of 1-Lipschitz losses, by formulas with nominal curvatures.

    Args:
        num_rows: n.
        dim: d.
        radius: R of the ball around the start that holds a minimizer.
        epsilon: ε.
        smoothness: trace of the Hessian of the mean loss, at most the smoothness of a loss of unit rows.

    Returns:
        ``draw``: d/(2k), k = εn/(G_Δ·2R), of a draw from exp(-kF) where F is nearly quadratic on the ball;
        ``draw_bound``: d/k, which is proven. ``output``: λR²/2 + ½·tr(H)·(d + 1)·(2/(nλε))² at the best λ:
        noise of density exp(-nλε/2·‖b‖) on the minimizer with ridge λ; ``ridge``: that λ.
    """
    k = epsilon * num_rows / (2.0 * 2.0 * radius)
    ridges = np.geomspace(1e-8, 1e2, 2001)
    noise = 0.5 * smoothness * (dim + 1) * (2.0 / (num_rows * ridges * epsilon)) ** 2
    output = ridges * radius**2 / 2.0 + noise
    best = int(np.argmin(output))
    return {
        "draw": dim / (2.0 * k),
        "draw_bound": dim / k,
        "output": float(output[best]),
        "ridge": float(ridges[best]),
    }
