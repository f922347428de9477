"""Solvers made of solvers: localization, restarts, regularization."""
