"""Sizes of the amounts with heavy tails, and the means of their users."""

import numpy as np
import pytest

from dpsco_jax.problems.datasets import amounts


@pytest.mark.parametrize(
    ("load", "rows", "users", "largest"),
    [
        (amounts.arrival_delays, 327_346, 4037, 1272.0),
        (amounts.medical_expenses, 20_190, 5912, 39_182.016),
        (amounts.blood_pressures, 33_430, 7484, 13_682.0),
    ],
)
def test_amounts_are_those_of_the_table(load, rows, users, largest):
    found = load()
    assert (len(found.values), len(found.means())) == (rows, users)
    assert found.values.max() == pytest.approx(largest)
    assert len(np.unique(found.users)) == users == found.users.max() + 1


def test_means_are_of_users_who_have_a_row():
    made = amounts.Amounts(np.array([2, 0, 2]), np.array([1.0, 5.0, 4.0]), np.zeros(3))
    np.testing.assert_array_equal(made.means(), [5.0, 2.5])
