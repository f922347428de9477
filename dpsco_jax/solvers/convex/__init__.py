"""Convex optimization without privacy of its own: accelerated methods, ball oracles, and combinators.

``localization``, ``restarts`` and ``regularization``
make plans out of the plans of other solvers, private or not, and account for them jointly; ``composite``
runs them.
"""

from dpsco_jax.solvers.ball import (
    ball_ac_sa,
    ball_acceleration,
    ball_oracles,
    epoch_sgd,
    exact_ball_oracles,
    krylov_ball_oracles,
    newton_ball_oracles,
    parallel_baselines,
    parallel_sco,
)
from dpsco_jax.solvers.combinators import composite, localization, regularization, restarts
from dpsco_jax.solvers.convex import ac_sa, high_probability, sgd

__all__ = [
    "ac_sa",
    "ball_ac_sa",
    "ball_acceleration",
    "ball_oracles",
    "composite",
    "epoch_sgd",
    "exact_ball_oracles",
    "high_probability",
    "krylov_ball_oracles",
    "localization",
    "newton_ball_oracles",
    "parallel_baselines",
    "parallel_sco",
    "regularization",
    "restarts",
    "sgd",
]
