"""Private optimization by sampling: one draw from exp(-k·(F + regularizer)) is all that is released."""

from dpsco_jax.solvers.sampling import alternating_sampler, proximal_oracle, regularized

__all__ = ["alternating_sampler", "proximal_oracle", "regularized"]
