"""Helpers that the tests share; see the first lines of each file.

``neighbours``: search for the pair of neighbouring data sets that moves a statistic most.
``replay``: run on two data sets with all releases frozen; whatever differs is a leak.
``recorder``: run a solver with every release written down; ``tape`` and ``recorder_patches`` are its parts.
``independent_account``: what recorded releases cost at least, by NumPy alone.
``mutants``: planted faults, each of which a named test must catch.
"""
