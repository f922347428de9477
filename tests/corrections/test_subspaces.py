"""Section G of docs/corrections.md, on subspaces: the printed claim fails, ours holds."""

import jax
import numpy as np

from dpsco_jax import transforms
from dpsco_jax.geometry import subspaces
from dpsco_jax.privacy.ledger import privacy_spent
from tests.support.gaussians import gaussian_delta

USERS = 100


def gradients_at_two_points(changed):
    """Of each of 100 records, at two points of a run: e_1 at the first, e_2 at the second, but for two.

    The first record has no gradient at the second point in one data set, none at the first in the other.
    """
    first, second = (np.zeros((USERS, 3), np.float32) for _ in range(2))
    first[:, 0] = second[:, 1] = 1.0
    (first if changed else second)[0] = 0.0
    return first, second


def projected_mean(changed):
    """The first step of the re-training, without noise, and its aggregate."""
    first, second = gradients_at_two_points(changed)
    mean = transforms.clipped_mean(1.0, USERS)
    collected = np.stack([mean.update(rows, ())[0] for rows in (first, second)])
    basis = subspaces.gram_subspace(collected, 1).basis
    printed = transforms.project_subspace(mean, basis, provenance="public")
    ours = transforms.project_subspace(mean, basis, provenance="private_nonreleasable")
    return printed.update(first, ())[0], printed, ours


def test_g8_components_of_private_gradients_are_private_data():
    one, printed, ours = projected_mean(False)
    other, _, _ = projected_mean(True)
    moved = np.linalg.norm(np.float64(one) - np.float64(other))
    assert moved > 0.98
    assert moved > 0.49 * USERS * printed.sensitivity
    # Noise for (1, 1e-5)-DP of the printed sensitivity: the two are told apart with certainty.
    multiplier = 3.731
    noise = multiplier * float(printed.sensitivity)
    assert gaussian_delta(1.0, 1 / multiplier) <= 1e-5
    assert gaussian_delta(1.0, moved / noise) > 0.999
    release = transforms.privatize(ours, jax.random.key(0), multiplier)
    rows, params = np.ones((USERS, 3), np.float32), np.zeros(3, np.float32)
    spent = privacy_spent(
        jax.jit(lambda u, p: release.update(u, release.init(p), p)[1])(rows, params)
    )
    assert np.all(np.isinf(spent.rdp))
