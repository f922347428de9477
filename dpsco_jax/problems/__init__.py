"""What is optimized, on whose data: objectives, users, losses, synthetic and real problems.

``dpsco_jax.problems.datasets`` needs the extra ``data`` and is imported by its own name.
"""

from dpsco_jax.problems import gaussian_smoothing, losses, objective, reference, synthetic, users

__all__ = ["gaussian_smoothing", "losses", "objective", "reference", "synthetic", "users"]
