"""Privacy loss distributions: dominating pairs of releases, and ε of their composition."""

from dpsco_jax.privacy.pld.convolution import MAX_POINTS, Component, epsilon

__all__ = ["MAX_POINTS", "Component", "epsilon"]
