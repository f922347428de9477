"""Private optimization by drawing a point from a density: samplers that come with a certificate."""

from dpsco_jax.solvers.sampling import (
    alternating_sampler,
    attempt_bounds,
    chain_lengths,
    proximal_oracle,
    regularized,
    rejection_oracle,
    restricted_gaussian,
    routes,
    value_queries,
)

__all__ = [
    "alternating_sampler",
    "attempt_bounds",
    "chain_lengths",
    "proximal_oracle",
    "regularized",
    "rejection_oracle",
    "restricted_gaussian",
    "routes",
    "value_queries",
]
