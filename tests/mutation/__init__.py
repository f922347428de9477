"""Planted faults in privacy-bearing lines, and the tests that must notice: ``python -m tests.mutation``.

The list (``faults_*``) was written down and committed before it was run for the first time. A fault is a
piece of text of one file of the package and what replaces it; the tests named for it are run on a copy of the
tree with the fault in it, and one of them has to fail.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """A fault.

    Attributes:
        name: what is wrong, in a few words: the key of its results.
        file: under ``dpsco_jax/``.
        right: text that occurs exactly once in the file.
        wrong: what replaces it.
        tests: arguments of pytest, most likely to fail first.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


def rows(*names: str) -> tuple[str, ...]:
    """The rows of the table of recorded releases with these names, as arguments of pytest."""
    test = "test_what_is_released_is_bounded_disjoint_and_paid_for"
    return tuple(f"tests/solvers/test_recorded_releases.py::{test}[{name}]" for name in names)
