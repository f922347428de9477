"""Means of vectors whose coordinates are clipped to intervals that are found privately."""
