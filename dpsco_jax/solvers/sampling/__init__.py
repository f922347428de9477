"""Private optimization by drawing a point from a density: samplers that come with a certificate."""

from dpsco_jax.solvers.sampling import alternating_sampler, proximal_oracle, regularized, routes

__all__ = ["alternating_sampler", "proximal_oracle", "regularized", "routes"]
