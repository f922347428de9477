"""A plan whose releases are turned to another relation, at any depth, runs nowhere.

Under ADD_OR_REMOVE_ONE a clipped sum needs half of the noise, and blocks that are cut by position are no
longer disjoint for neighbours: whatever promises REPLACE_ONE must refuse such releases.
"""

import dataclasses

import jax
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.privacy.releases import GaussianReleases
from tests.solvers.private_table import ROWS

REPLACE = NeighboringRelation.REPLACE_ONE

# ``auto`` chose a solver that states the relation of its sampling.
_ROWS = [row for row in ROWS if row.name != "auto"]


def _edits(node):
    """The node with each of its releases turned, one at a time; the edit itself may refuse."""
    if isinstance(node, GaussianReleases):
        yield lambda: dataclasses.replace(node, sampling="poisson")
    elif isinstance(node, ConcentratedReleases):
        yield lambda: dataclasses.replace(node, relation=NeighboringRelation.REPLACE_SPECIAL)
        yield lambda: dataclasses.replace(node, relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    elif isinstance(node, tuple):
        for i, part in enumerate(node):
            for edit in _edits(part):
                yield lambda i=i, e=edit: (*node[:i], e(), *node[i + 1 :])
    elif dataclasses.is_dataclass(node):
        for field in dataclasses.fields(node):
            for edit in _edits(getattr(node, field.name)):
                yield lambda n=field.name, e=edit: dataclasses.replace(node, **{n: e()})


@pytest.mark.parametrize("row", _ROWS, ids=[row.name for row in _ROWS])
def test_releases_of_another_relation_are_refused(row):
    plan, data = row.plan(), row.data()
    if getattr(plan, "promised_relation", REPLACE) is not REPLACE:
        return  # the relation is that of the sampling, whatever it is
    for edit in _edits(plan):
        with pytest.raises(ValueError, match=r"relation"):
            row.solve(jax.random.key(0), edit(), data)


@pytest.mark.parametrize(
    "name",
    [
        "multipass_sgd, clipped",
        "multipass_sgd, tested",
        "localized_sgd",
        "accelerated_sgd, clipped",
        "accelerated_phased_erm",
        "accelerated_strongly_convex",
        "phased_sgd, tested",
    ],
)
def test_edits_are_found_at_every_depth(name):
    plan = next(row for row in ROWS if row.name == name).plan()
    assert any(True for _ in _edits(plan))


def test_means_of_phases_are_flags_and_as_many_as_phases():
    plan = next(row for row in ROWS if row.name == "phased_sgd, clipped").plan()
    for changed in (("clipped", "clipped"), (1, 1), (True,), (True,) * 4):
        with pytest.raises(ValueError, match=r"clipped(\[0\])? must be"):
            plan.replace(clipped=changed)
