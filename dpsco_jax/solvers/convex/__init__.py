"""Convex optimization: the loop shared by first-order solvers."""
