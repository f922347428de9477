"""Solvers whose privacy unit is an element: the items of one user in one public cluster."""

from dpsco_jax.solvers.element_level import aprox, federated, glm, m_estimation, sgd

__all__ = ["aprox", "federated", "glm", "m_estimation", "sgd"]
