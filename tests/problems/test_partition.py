"""The distance over elements against all permutations; k-means against NumPy and scikit-learn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import cluster, metrics

from dpsco_jax.problems import kmeans
from dpsco_jax.problems.element_distance import are_element_neighbours, element_distance
from dpsco_jax.problems.elements import ElementData
from dpsco_jax.problems.partition import Partition, assign_elements


def random_data(rng, users, elements, items=2):
    values = rng.integers(0, 2, (users, elements, items)).astype(float)
    mask = rng.random(values.shape) < 0.6
    return ElementData(np.where(mask, values, 0.0), mask)


def by_permutations(data, other):
    def bags(d, u):
        return [sorted(x[m].tolist()) for x, m in zip(d.items[u], d.mask[u], strict=True)]

    users = range(len(data.mask))
    return min(
        sum(
            a != b
            for u, v in zip(users, order, strict=True)
            for a, b in zip(bags(data, u), bags(other, v), strict=True)
        )
        for order in itertools.permutations(users)
    )


def test_the_distance_is_the_least_over_permutations_of_users():
    rng = np.random.default_rng(0)
    found = set()
    for users in (1, 2, 3, 4, 5):
        for elements in (1, 3):
            one, two, three = (random_data(rng, users, elements) for _ in range(3))
            far = element_distance(one, two)
            assert far == by_permutations(one, two) == element_distance(two, one)
            assert far <= element_distance(one, three) + element_distance(three, two)
            assert are_element_neighbours(one, two) == (far <= 1)
            found.add(far)
    assert len(found) >= 4


def test_a_centre_whose_square_is_no_float32_may_be_the_nearest():
    partition = Partition(np.array([[2e19, 0.0], [0.0, 1.0]]), public=True)
    rows = np.array([[0.9e19, 0.0], [1.2e19, 0.0], [1.9e19, 1.0], [3.0, 0.0]])
    assert assign_elements(partition, rows).tolist() == [1, 0, 0, 1]


def test_order_of_users_and_items_and_repeated_items():
    rng = np.random.default_rng(1)
    data = random_data(rng, 4, 3)
    again = ElementData(data.items[::-1, :, ::-1], data.mask[::-1, :, ::-1])
    assert element_distance(data, again) == 0
    twice = ElementData(np.ones((1, 1, 2)), np.array([[[True, True]]]))
    once = ElementData(np.array([[[1.0, 0.0]]]), np.array([[[True, False]]]))
    nothing = ElementData(np.zeros((1, 1, 2)), np.zeros((1, 1, 2), bool))
    assert element_distance(twice, once) == element_distance(once, nothing) == 1


def test_with_one_element_it_is_the_number_of_users_who_differ():
    users = ["a", "b", "b", "c"], ["b", "c", "d", "d"]
    one, two = (ElementData(np.array([[[float(ord(u))]] for u in who])) for who in users)
    assert element_distance(one, two) == 4 - 2


def test_transcripts_of_two_words_are_at_distance_two():
    """Users who say "yo" and "bro" in any numbers, and one who uses other words: words are elements."""
    counts = [(3, 3, 0, 0, 0), (1, 2, 0, 0, 0), (5, 7, 0, 0, 0), (0, 0, 1, 2, 1)]
    who = [
        ElementData(np.zeros((1, 5, 9)), np.arange(9) < np.array([c])[..., None]) for c in counts
    ]
    for one, two in itertools.combinations(who[:3], 2):
        assert element_distance(one, two) == 2
    assert [element_distance(user, who[3]) for user in who[:3]] == [5, 5, 5]


def test_other_forms_are_refused():
    data = random_data(np.random.default_rng(2), 2, 3)
    for other in (
        random_data(np.random.default_rng(2), 3, 3),
        random_data(np.random.default_rng(2), 2, 2),
        ElementData((data.items,), data.mask),
    ):
        with pytest.raises(ValueError, match=r"^other must be"):
            element_distance(data, other)


def test_a_partition_must_be_said_to_be_public():
    centres = np.eye(3)
    for public in (False, None, 1, "yes"):
        with pytest.raises(ValueError, match=r"^public must be True"):
            Partition(centres, public=public)
    with pytest.raises(TypeError):
        Partition(centres)
    for bad in (np.full((2, 2), np.nan), np.zeros(3), np.zeros((0, 3)), "x", None):
        with pytest.raises(ValueError, match=r"^centres must be"):
            Partition(bad, public=True)
    found = kmeans.lloyd(np.eye(3), np.eye(3)[:2], public=False)
    with pytest.raises(ValueError, match=r"^public must be True"):
        _ = found.partition


def test_rows_belong_to_the_nearest_centre_and_ties_to_the_lowest():
    rng = np.random.default_rng(3)
    rows, centres = (
        rng.normal(size=(500, 7)).astype(np.float32),
        rng.normal(size=(20, 7)).astype(np.float32),
    )
    partition = Partition(centres, public=True)
    wanted = np.argmin(((rows[:, None].astype(float) - centres) ** 2).sum(axis=2), axis=1)
    for memory in (1, 3000, 2**28):
        np.testing.assert_array_equal(assign_elements(partition, rows, memory), wanted)
    grid = Partition(np.array([[1.0], [-1.0], [1.0], [3.0]]), public=True)
    at = np.array([0.0, 2.0, -0.5, 2.5, 1e7, -1e7, 1e300, np.nan, np.inf])[:, None]
    assert assign_elements(grid, at).tolist() == [0, 0, 1, 3, 3, 1, 0, 0, 0]
    assert assign_elements(Partition(np.ones((1, 1)), public=True), at).tolist() == [0] * 9


def test_no_row_moves_because_of_others():
    """Rows midway between centres, up to rounding: each goes where it goes alone."""
    rng = np.random.default_rng(4)
    centres = 100 + rng.normal(size=(12, 33)).astype(np.float32)
    pairs = rng.integers(0, 12, (300, 2))
    rows = ((centres[pairs[:, 0]] + centres[pairs[:, 1]]) / 2).astype(np.float32)
    partition = Partition(centres, public=True)
    together = assign_elements(partition, rows)
    alone = [assign_elements(partition, row[None])[0] for row in rows]
    np.testing.assert_array_equal(together, alone)
    for shift in (1, 5):
        np.testing.assert_array_equal(assign_elements(partition, rows[shift:]), together[shift:])


def blobs(clusters=6, each=60, dim=4, apart=60.0):
    rng = np.random.default_rng(5)
    centres = apart * np.eye(clusters, dim) + apart * rng.normal(size=(clusters, dim))
    truth = np.repeat(np.arange(clusters), each)
    rows = centres[truth] + rng.normal(size=(len(truth), dim))
    mixed = rng.permutation(len(rows))
    return rows[mixed].astype(np.float32), truth[mixed]


def test_kmeans_finds_separated_blobs():
    rows, truth = blobs()
    found = kmeans.kmeans_pp(jax.random.key(0), rows, 6, public=True, memory=4 * 6 * 50)
    labels = assign_elements(found.partition, rows)
    assert metrics.adjusted_rand_score(truth, labels) >= 0.99
    wanted = ((rows - found.centres[labels]) ** 2).sum()
    np.testing.assert_allclose(found.inertias[-1], wanted, rtol=1e-5)


def test_lloyd_is_that_of_scikit_learn_and_never_goes_up():
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(400, 5)).astype(np.float32)
    start = rows[:9]
    found = kmeans.lloyd(rows, start, public=True, max_steps=300, memory=4 * 9 * 64)
    peer = cluster.KMeans(9, init=start, n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(rows)
    np.testing.assert_allclose(found.centres, peer.cluster_centers_, atol=1e-4)
    np.testing.assert_allclose(found.inertias[-1], peer.inertia_, rtol=1e-5)
    assert len(found.inertias) >= 10
    assert (np.diff(found.inertias) <= 1e-5 * found.inertias[:-1]).all()
    first = ((rows[:, None] - start) ** 2).sum(axis=2).min(axis=1).sum()
    np.testing.assert_allclose(found.inertias[0], first, rtol=1e-5)


def test_empty_clusters_start_again_at_the_farthest_rows():
    rows = np.array([[0.0], [0.1], [10.0], [30.0]])
    start = np.array([[0.0], [500.0], [500.0], [500.0]])
    found = kmeans.lloyd(rows, start, public=True)
    assert sorted(found.centres[:, 0].tolist()) == pytest.approx([0.0, 0.1, 10.0, 30.0])
    assert found.inertias[-1] == 0


def test_as_many_clusters_as_rows():
    rows = np.random.default_rng(7).normal(size=(20, 3))
    found = kmeans.kmeans_pp(jax.random.key(1), rows, 20, public=True)
    assert found.inertias[0] == 0
    assert len(np.unique(found.centres, axis=0)) == 20
    same = kmeans.kmeans_pp(jax.random.key(2), np.ones((5, 2)), 3, public=True)
    np.testing.assert_array_equal(same.centres, np.ones((3, 2)))


def test_seeds_are_drawn_by_squared_distances():
    rows = jnp.array([[0.0], [0.0], [1.0], [3.0]])
    drawn = np.array(
        [kmeans._seeds(key, rows, 2)[:, 0] for key in jax.random.split(jax.random.key(3), 400)]
    )
    second = drawn[drawn[:, 0] == 0, 1]
    assert set(second.tolist()) == {1.0, 3.0}
    share = np.mean(second == 3.0)
    assert abs(share - 0.9) < 4 * np.sqrt(0.09 / len(second))


def test_bad_arguments_are_refused_by_name():
    rows = np.zeros((4, 2))
    key = jax.random.key(4)
    for name, bad in (
        ("num_clusters", 5),
        ("rows", np.full((4, 2), np.nan)),
        ("rows", rows[0]),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be"):
            kmeans.kmeans_pp(
                **{"key": key, "rows": rows, "num_clusters": 2, "public": True, name: bad}
            )
    with pytest.raises(ValueError, match=r"^centres must be"):
        kmeans.lloyd(rows, np.zeros((2, 3)), public=True)
