"""Section N of docs/corrections.md, counts and histograms: the printed claim fails, ours holds."""

import math

import jax
import numpy as np
import pytest
import scipy.stats

from dpsco_jax.mechanisms import clustered_histogram, heavy_hitters
from dpsco_jax.mechanisms.histogram_releases import calibrate_histogram
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.rates import element_level
from tests.support.gaussians import gaussian_delta


def test_n1_two_items_in_one_cluster_are_further_apart_than_the_radius():
    radius, counts = 3.0, np.array([3.0, 0.0])
    clusters = np.zeros(2, int)
    ends = []
    for row in (counts, counts[::-1]):
        found = clustered_histogram.project_clusters(
            np.zeros(2, int), np.arange(2), row, clusters, radius
        )
        ends.append(np.zeros(2))
        np.add.at(ends[-1], np.asarray(found.items), np.asarray(found.counts))
    apart = np.linalg.norm(ends[0] - ends[1])
    assert apart == pytest.approx(2**0.5 * radius, rel=1e-5)
    for epsilon, true in ((1.0, 4.3e-5), (3.0, 1.3e-4)):
        printed = element_level.gaussian_sigma_paper(epsilon, 1e-5) * radius
        assert gaussian_delta(epsilon, apart / printed) == pytest.approx(true, rel=0.05)
        releases = calibrate_histogram(1, clusters, radius, epsilon, 1e-5)
        assert gaussian_delta(epsilon, apart / releases.noise_stddev[0]) <= 1e-5
        # One item in each: the printed sensitivity is right, and nothing is paid beyond it.
        alone = calibrate_histogram(1, np.arange(2), radius, epsilon, 1e-5)
        np.testing.assert_allclose(releases.noise_stddev, 2**0.5 * alone.noise_stddev)


def test_n5_the_noise_of_a_mean_is_that_of_a_sum_over_n():
    users = 500
    mean = calibrate_histogram(users, np.arange(3), 2.0, 1.0, 1e-5)
    total = calibrate_histogram(1, np.arange(3), 2.0, 1.0, 1e-5)
    np.testing.assert_allclose(mean.noise_stddev * users, total.noise_stddev)
    # Printed: es(f)·noise on the average. It is private, n times over.
    printed = 2.0 * element_level.gaussian_sigma_paper(1.0, 1e-5)
    assert printed > 500 * mean.noise_stddev.max()
    assert gaussian_delta(1.0, 2.0 / users / mean.noise_stddev.max()) == pytest.approx(
        1e-5, rel=1e-3
    )


def test_n6_a_user_moves_the_counts_by_more_than_sqrt_m():
    m, d = 8, 100
    key = iter(jax.random.split(jax.random.key(0), 2))
    counts = [
        heavy_hitters.heavy_hitter_counts(
            next(key), np.zeros(m, int), m * i + np.arange(m), 1, d, 0.0
        )
        for i in range(2)
    ]
    moved = np.linalg.norm(np.asarray(counts[0]) - np.asarray(counts[1]))
    assert moved == pytest.approx(heavy_hitters.user_level_sensitivity(m, d)) == pytest.approx(4.0)
    printed = math.sqrt(m) * element_level.gaussian_sigma_paper(1.0, 1e-5)
    assert gaussian_delta(1.0, moved / printed) > 4e-5
    # More items than half of all there are: 2m counts do not exist.
    assert heavy_hitters.user_level_sensitivity(80, d) == 10.0


def test_n7_no_two_users_with_m_items_are_neighbours():
    """Singleton clusters and ΣX_j = m: to change one count is to leave the set on which the lemma speaks."""
    m, d = 3, 3
    users = [x for x in np.ndindex(*(m + 1,) * d) if sum(x) == m]
    distances = {sum(a != b for a, b in zip(x, y, strict=True)) for x in users for y in users}
    assert distances == {0, 2, 3}  # none is 1
    # Without the hypothesis: Rényi divergence α/(2σ²), half of what σ² = α/ε was chosen for.
    alpha, epsilon = 8.0, 0.5
    rdp = heavy_hitters.heavy_hitter_loss(math.sqrt(alpha / (2 * epsilon))).rdp
    at = np.argmin(np.abs(ORDERS - alpha))
    assert rdp[at] == pytest.approx(epsilon * ORDERS[at] / alpha, rel=1e-6)


def test_n8_right_orders_are_no_loss():
    p = np.array([0.5, 0.3, 0.2])
    assert heavy_hitters.ordering_loss(p, p, 0.05) == 0  # printed: 3
    assert heavy_hitters.ordering_loss(-p, p, 0.05) == 3  # printed: 0


def test_n9_a_gap_below_the_statistical_limit():
    n, m, p, log, gap = 10**5, 100, 0.005, 4.0, 3.4e-5
    d, t = 10**4, 10**4 * math.exp(-log)
    printed = element_level.ordering_gap(n, m, d, p, 0.0, t, "printed")
    assert printed <= gap
    exact = element_level.misorder_probability(p, p - gap, n, m, 0.0)
    assert exact == pytest.approx(0.17, abs=0.005)
    claimed = math.exp(-2 * log)  # t²/d²: 3.4e-4
    assert exact > 400 * claimed
    for constants in ("theorem", "tight"):
        ours = element_level.ordering_gap(n, m, d, p, 0.0, t, constants)
        assert element_level.misorder_probability(p, p - ours, n, m, 0.0) <= claimed


def test_n10_three_natural_logarithms_are_not_enough_for_the_proof():
    """The bias m·P(Y > ρ) of a cluster against its bound 2^(2-t)·P, exactly, and the step that fails."""
    worst = {"printed": 0.0, "theorem": 0.0}
    for m in (3, 5, 10, 40, 400, 10_000):
        for share in np.geomspace(1e-7, 0.24, 60):
            for t in (0.0, 1.0, 5.0, 12.0):
                for constants in worst:
                    radius = element_level.projection_radius(m, share, t, constants)
                    if radius < m:
                        tail = scipy.stats.binom.sf(math.floor(radius), m, share)
                        worst[constants] = max(worst[constants], m * tail * 2 ** (t - 2) / share)
    assert worst["theorem"] <= 1.0
    # No counterexample to the printed radius is known: it is the proof that needs more.
    assert worst["theorem"] <= worst["printed"] <= 1.0
    # The step of the proof: 2^(-(t + x)) <= 2^(-t)/m for what stands in place of 3 log m beyond 3mp.
    for m in (3, 10, 400):
        theorem = element_level.projection_radius(10**9, 0.0, 0.0) / math.log2(10**9)
        assert theorem == pytest.approx(4.0)
        assert 2 ** -(math.log(m)) > 1 / m, "with natural logarithms the last step is false"
        assert 2 ** -(math.log2(m)) == pytest.approx(1 / m)
