"""Step size and bound of averaged projected gradient steps, for all solvers that make them.

The step size is R/√(T·V), that of projected subgradient descent, and the expected excess risk of the average
of the points after the steps is at most (1 + 1/(2T))·R·√(V/T) (Bassily, Smith and Thakurta 2014; the factor
is that of docs/theory/average.md). V = slope² + (1 - rate)·C²/B + dim·σ² bounds the mean square of a noisy
gradient: the squared norm of the mean of clipped gradients and the regularizer's, the variance of a random
number of them under Poisson sampling, whose divisor B is not random, and that of noise of standard deviation
σ on each coordinate of the mean.
"""

import math

from dpsco_jax import _checks
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _planning


def step_and_bound(
    problem: Problem,
    *,
    num_steps: int,
    batch_size: int,
    rate: float | None,
    clip_norm: float,
    noise_stddev: float,
    step_size: float | None,
    averaging: str,
) -> tuple[float, float]:
    """The step size, as given or R/√(T·V), and the proven bound on the excess risk, ``inf`` for none.

    Args:
        problem: for the Lipschitz constant, domain and ridge, the number of parameters and R.
        num_steps: T.
        batch_size: B, by which the clipped sum is divided.
        rate: at which each of the summed takes part, independently; ``None`` where their number is fixed.
        clip_norm: C.
        noise_stddev: on each coordinate of the mean.
        step_size: to be kept; ``None`` for the one that the bound is of.
        averaging: a word of ``methods.AVERAGING``; the bound is of ``"uniform"``.

    Raises:
        ValueError: ``step_size`` is not positive, or left out where R is not finite.
    """
    # Steps include the regularizer, whose gradient is at most ridge·(distance from the origin).
    ridge = problem.objective.ridge
    slope = clip_norm + (ridge * problem.farthest if ridge else 0.0)
    of_size = 0.0 if rate is None else (1 - rate) * clip_norm**2 / batch_size
    variance = slope**2 + of_size + problem.dim * noise_stddev**2
    excess_bound = math.inf
    if step_size is None:
        distance = problem.require_distance()
        step_size = distance / math.sqrt(num_steps * variance)
        if averaging == "uniform" and clip_norm >= problem.lipschitz and not ridge:
            scale = _planning.after_steps(num_steps)
            excess_bound = distance * math.sqrt(variance / num_steps) * scale
    return _checks.require_real("step_size", step_size, 0), excess_bound
