"""Private optimization by drawing a point from a density: samplers that come with a certificate."""

from dpsco_jax.solvers.sampling import (
    alternating_sampler,
    attempt_bounds,
    chain_lengths,
    exact,
    exponential_mechanism,
    llt_sampler,
    log_sobolev,
    proximal_oracle,
    regularized,
    rejection_oracle,
    restricted_gaussian,
    routes,
    target_rejection,
    value_queries,
    zeroth_order,
)

__all__ = [
    "alternating_sampler",
    "attempt_bounds",
    "chain_lengths",
    "exact",
    "exponential_mechanism",
    "llt_sampler",
    "log_sobolev",
    "proximal_oracle",
    "regularized",
    "rejection_oracle",
    "restricted_gaussian",
    "routes",
    "target_rejection",
    "value_queries",
    "zeroth_order",
]
