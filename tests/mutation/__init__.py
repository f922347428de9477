"""Planted faults in privacy-bearing lines, and the tests that must notice: ``python -m tests.mutation``.

The lists (``faults_*``) were written down and committed before they were run for the first time. A fault is a
piece of text of one file of the package and what replaces it; the tests named for it are run on a copy of the
tree with the fault in it, and one of them has to fail.

Each list is a table with one line a fault, however long the line is: what is wrong, the file, the text that
is there, the text that takes its place, and the tests. So two people who move different faults of a list
change different lines, and ``git grep`` for a line of the package finds all faults in it. Files and tests
that are named often have short names at the top of the list. A new file ``faults_*.py`` is found by its name.
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
