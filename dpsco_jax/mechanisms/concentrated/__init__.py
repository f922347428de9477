"""Means of vectors that are near most others, and the distances that this takes."""
