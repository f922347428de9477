"""A plan whose mean is given the releases of another kind is refused by name: it would state their cost."""

import dataclasses
import functools

import jax
import pytest

from tests.solvers.private_table import ROWS

_OF_KINDS = {
    "sgd, full": "GaussianReleases",
    "element_sgd, poisson": "ElementReleases",
    "item_sampled_sgd, poisson": "ItemReleases",
    "winsorized_erm, clipped": "WinsorizedReleases",
    "multipass_sgd, tested": "ConcentratedReleases",
    "spider, periodic": "SpiderReleases",
    "adaptive_spider, buffers": "AdaptiveReleases",
    "o2nc_single_pass, buffers": "StreamReleases",
}


@functools.cache
def _planned(name):
    return next(row for row in ROWS if row.name == name).plan()


@pytest.mark.parametrize("other", _OF_KINDS)
@pytest.mark.parametrize("name", _OF_KINDS)
def test_a_mean_has_releases_of_its_kind(name, other):
    plan, releases = _planned(name), _planned(other).mean.releases
    mean = dataclasses.replace(plan.mean, releases=releases)
    if name == other:
        assert dataclasses.replace(plan, mean=mean) == plan
        return
    said = f"plan.mean.releases must be of type {_OF_KINDS[name]}, got {_OF_KINDS[other]}"
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(plan, mean=mean)


def test_axes_to_map_over_may_stand_in_the_place_of_releases():
    plan = _planned("element_sgd, poisson")
    axes = dataclasses.replace(plan, mean=dataclasses.replace(plan.mean, releases=None))
    assert jax.tree.leaves(axes.mean) == jax.tree.leaves(plan.mean.clip_norm)
