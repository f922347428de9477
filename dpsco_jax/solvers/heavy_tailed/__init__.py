"""Solvers for records with heavy tails, of whose slopes only some moments are bounded."""

__all__: list[str] = []
