"""Users made of images: public clusters, and users who have images of exactly k of them.

What it computes: images are split into three: a third from which a public partition (k-means on 50 principal
components) is learned and which is not used again, images of training, and images of the test. A pseudo-user
has exactly k different elements, drawn uniformly from those that training images have, and m images: for each
an element of the k, uniformly, then one of its training images, uniformly, with replacement. So images
repeat, within users and between them.

Source: E sections 4.3 and 4.4, where users are made so.

Formal guarantee: no protected image has a part in the partition (N11). That images repeat is no help to
anyone: a record is a unit of a user, whatever it holds. Test accuracy is a measurement of a study.

Cost: a second; k-means two or three.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from dpsco_jax.problems import elements, kmeans
from dpsco_jax.problems.datasets import images
from dpsco_jax.problems.datasets.images import Images
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.partition import Partition, assign_elements

EPSILONS = ("0.25", "0.5", "1", "2", "3", "4", "8", "inf")

_COMPONENTS = 50
_TEST_SHARE = 0.2


class Split(NamedTuple):
    """Three disjoint sets of images: for the partition and for scales, for training, for the test."""

    public: Images
    train: Images
    test: Images


@functools.cache
def split(name: str) -> Split:
    """A third is public, a fifth of all images are the test, the rest are for training."""
    everything = images.load(name)
    count = len(everything.labels)
    order = np.random.default_rng(0).permutation(count)
    public, test = count // 3, round(_TEST_SHARE * count)
    parts = order[:public], order[public + test :], order[public : public + test]
    return Split(*(Images(everything.pixels[p], everything.labels[p]) for p in parts))


@functools.cache
def elements_of_training(name: str, num_elements: int) -> np.ndarray:
    """The element of each training image, by a partition of the public images alone."""
    found = split(name)
    public = found.public.pixels.reshape(len(found.public.pixels), -1)
    centre = public.mean(axis=0)
    directions = np.linalg.svd(public - centre, full_matrices=False)[2][:_COMPONENTS]

    def rows(part: Images) -> np.ndarray:
        return (part.pixels.reshape(len(part.pixels), -1) - centre) @ directions.T

    clusters = kmeans.kmeans_pp(jax.random.key(1), rows(found.public), num_elements, public=True)
    return assign_elements(Partition(clusters.centres, public=True), rows(found.train))


class Draws(NamedTuple):
    """Who has which image, as which element; a row for each draw."""

    users: np.ndarray
    elements: np.ndarray
    images: np.ndarray


def pseudo_users(
    seed: int, element_of_image: np.ndarray, num_users: int, held: int, items: int
) -> Draws:
    """``items`` draws for each user, from exactly ``held`` different elements.

    Raises:
        ValueError: if images have fewer elements than that.
    """
    rng = np.random.default_rng(seed)
    there, counts = np.unique(element_of_image, return_counts=True)
    if len(there) < held or items < 1:
        raise ValueError(f"held must be at most the {len(there)} elements with images, got {held}")
    by_element = np.argsort(element_of_image, kind="stable")
    first = np.cumsum(counts) - counts
    own = np.argsort(rng.random((num_users, len(there))), axis=1)[:, :held]
    place = np.take_along_axis(own, rng.integers(0, held, (num_users, items)), axis=1)
    within = np.floor(rng.random((num_users, items)) * counts[place]).astype(int)
    image = by_element[first[place] + within]
    users = np.repeat(np.arange(num_users), items)
    return Draws(users, there[place].ravel(), image.ravel())


def element_data(
    draws: Draws, rows: np.ndarray, labels: np.ndarray, held: int, kept: int
) -> ElementData:
    """Units of at most ``kept`` images, ``held`` slots for each user; a single slot if ``held`` is 1."""
    whole = held == 1
    of_row = np.zeros_like(draws.elements) if whole else draws.elements
    return elements.from_rows(
        jax.random.key(2),
        draws.users,
        of_row,
        Example(rows[draws.images], labels[draws.images]),
        1 if whole else int(draws.elements.max()) + 1,
        kept,
        elements_per_user=held,
        order="sorted",
    )
