"""Section N of docs/corrections.md, entries N11 and N12: the printed claim fails, ours holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains
from dpsco_jax.problems import elements, kmeans, losses
from dpsco_jax.problems.element_distance import element_distance
from dpsco_jax.problems.partition import Partition, assign_elements
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers.element_level import m_estimation


def grouped(rows, element):
    arguments = np.arange(len(rows)), element, rows[:, 0], 2, 1
    return elements.from_rows(jax.random.key(0), *arguments, order="sorted")


def holders(data):
    """How many users have each element: of sensitivity one for one unit."""
    return np.asarray(data.mask).any(axis=2).sum(axis=0)


def test_n11_a_partition_of_the_private_data_makes_neighbours_differ_in_several_units():
    one, two = (np.array([[0.0], [4.0], [5.0], [last]]) for last in (9.0, 40.0))
    learned, ends = [], (one[[0, 3]], two[[0, 3]])
    for rows, start in zip((one, two), ends, strict=True):
        found = kmeans.lloyd(rows, start, public=False)
        learned.append(assign_elements(Partition(found.centres, public=True), rows))
        with pytest.raises(ValueError, match=r"^public must be True"):
            _ = found.partition
    # Printed: clusters of the data that are trained on. The last user's item stays in its cluster; the third
    # user's moves to another one.
    first, second = (grouped(*given) for given in zip((one, two), learned, strict=True))
    assert element_distance(first, second) == 3
    assert np.linalg.norm(holders(first) - holders(second)) > 1.4
    public = Partition(np.array([[2.0], [7.0]]), public=True)
    first, second = (grouped(rows, assign_elements(public, rows)) for rows in (one, two))
    assert element_distance(first, second) == 1
    assert np.linalg.norm(holders(first) - holders(second)) <= 1


def test_n12_the_noise_of_a_step_is_missing_and_iterates_leave_the_domain():
    dim, step, radius = 16, 0.1, 1.0
    objective = losses.squared_distance(point_bound=1e-6, radius=radius)
    data = UserData(jnp.zeros((1, 1, dim)))

    def squares(stddev):
        def last(key):
            return m_estimation.noisy_sgd(
                key,
                objective,
                data,
                jnp.zeros(dim),
                num_steps=1,
                initial_step=step,
                noise_stddev=stddev,
            ).last

        points = jax.jit(jax.vmap(last))(jax.random.split(jax.random.key(1), 400))
        return np.sum(np.asarray(points) ** 2, axis=1)

    # From the minimizer the printed recursion allows α²·L₀² and no more; the noise adds α²σ²·d.
    found, lipschitz = squares(2.0), radius
    assert found.mean() > 10 * step**2 * lipschitz**2
    assert found.mean() < step**2 * (lipschitz**2 + 2.0**2 * dim)
    # Printed (14) has no projection after the noise: at this σ most steps would leave the ball.
    assert step * 4.0 * np.sqrt(dim) > 1.5 * radius
    assert squares(4.0).max() <= radius**2 * (1 + 1e-5)
    assert domains.ball(radius).contains(jnp.zeros(dim), 0.0)
