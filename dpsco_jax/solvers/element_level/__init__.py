"""Solvers whose privacy unit is an element: the items of one user in one public cluster."""

from dpsco_jax.solvers.element_level import aprox, glm, m_estimation

__all__ = ["aprox", "glm", "m_estimation"]
