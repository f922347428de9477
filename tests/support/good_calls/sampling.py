"""Calls of ``dpsco_jax.solvers.sampling`` that work, where the common vocabulary does not say it."""

from typing import Any

import numpy as np

from dpsco_jax.solvers.sampling import alternating_sampler
from tests.support import kinds

_ORACLE = alternating_sampler.Oracle(
    lambda x: x, lambda key, x: x, lambda key, x: (x, np.array(True)), lambda x: x
)
_ACCEPTANCE = kinds.POSITIVE_PROBABILITY(0.5)
_TRIALS = kinds.COUNT(50)
_CHAIN = {"convexity": kinds.POSITIVE(1.0), "start_distance": kinds.NONNEGATIVE(2.0)}

GOOD: dict[str, dict[str, Any]] = {
    "solvers.sampling.alternating_sampler.run": {
        "oracle": kinds.OBJECT(_ORACLE),
        "params": kinds.ANY(0.5),
        "num_trials": _TRIALS,
        "constant_time": kinds.FLAG.but(None)(False),
    },
    "solvers.sampling.chain_lengths.mixing_variation": _CHAIN,
    "solvers.sampling.chain_lengths.mixing_steps": {
        **_CHAIN,
        "variation": kinds.OPEN_PROBABILITY(1e-6),
    },
    "solvers.sampling.chain_lengths.trials_variation": {
        "num_trials": _TRIALS,
        "acceptance": _ACCEPTANCE,
    },
    "solvers.sampling.chain_lengths.capped_trials": {
        "acceptance": _ACCEPTANCE,
        "variation": kinds.OPEN_PROBABILITY(1e-6),
    },
    "solvers.sampling.log_sobolev.log_sobolev_variation": {
        "log_sobolev": kinds.POSITIVE(1.0),
        "start_distance": kinds.NONNEGATIVE(2.0),
    },
    "solvers.sampling.log_sobolev.log_sobolev_steps": {
        "log_sobolev": kinds.POSITIVE(1.0),
        "start_distance": kinds.NONNEGATIVE(2.0),
        "variation": kinds.OPEN_PROBABILITY(1e-6),
    },
    "solvers.sampling.log_sobolev.bounded_perturbation": {
        "log_sobolev": kinds.POSITIVE(1.0),
        "oscillation": kinds.NONNEGATIVE(2.0),
    },
    "solvers.sampling.log_sobolev.lipschitz_perturbation": {
        "convexity": kinds.POSITIVE(1.0),
        "lipschitz": kinds.NONNEGATIVE(2.0),
    },
    "solvers.sampling.target_rejection.planned": {
        "variation": kinds.OPEN_PROBABILITY(1e-6),
        "inverse_temperature": kinds.POSITIVE(10.0),
        "convexity": kinds.POSITIVE(1.0),
        "lipschitz": kinds.POSITIVE(1.0),
        "smoothness": kinds.POSITIVE(1.0),
        "linear_model": kinds.FLAG(False),
    },
    "solvers.sampling.attempt_bounds.attempts_variation": {
        "acceptance": _ACCEPTANCE,
        "num_attempts": kinds.COUNT(5),
    },
    "solvers.sampling.attempt_bounds.ball_acceptance": {"farthest": kinds.NONNEGATIVE(6.0)},
    "solvers.sampling.attempt_bounds.farthest_start": {
        "variation": kinds.OPEN_PROBABILITY(1e-6),
    },
}

_DOUBLE = "asks for float64, which the common calls do not have: see its own tests"
EXEMPT: dict[tuple[str, str], str] = {
    (f"solvers.sampling.{name}", "*"): _DOUBLE
    for name in (
        "exact.linear",
        "exact.mean_estimation",
        "llt_sampler.alternate",
        "llt_sampler.dual_draw",
        "llt_sampler.oracle",
        "llt_sampler.primal_draw",
        "llt_sampler.start_draw",
        "llt_sampler.transform",
        "rejection_oracle.oracle",
        "restricted_gaussian.box",
        "restricted_gaussian.convex_set",
        "restricted_gaussian.draw",
        "restricted_gaussian.tangent",
        "restricted_gaussian.whole_space",
        "target_rejection.draw",
    )
}
