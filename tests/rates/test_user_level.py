"""The tables of the papers, number by number, and their exponents."""

import numpy as np
import pytest

from dpsco_jax.rates import stability, user_level
from dpsco_jax.rates.user_level import METHODS, Setting

NAMED = {method.name: method for method in METHODS}


def _slope(method, setting, field):
    """Exponent of the leading number of gradients in one field, at that setting."""
    sizes = np.geomspace(1.0, 16.0, 5) * getattr(setting, field)
    counts = method.leading_gradients(setting._replace(**{field: sizes}))
    return np.polyfit(np.log(sizes), np.log(counts), 1)[0]


def test_gradients_of_the_printed_table():
    smooth = Setting(1e4, 100, 1e4, smoothness=1.0)
    counts = {name: float(m.leading_gradients(smooth)) for name, m in NAMED.items()}
    assert counts["accelerated_phased_erm"] == pytest.approx(10**6.75)  # 5.62e6
    assert counts["multipass_sgd"] == pytest.approx(1e9)
    assert counts["Bassily-Sun"] == pytest.approx(1e8)
    assert counts["phased_sgd"] == pytest.approx(1e6)
    assert NAMED["accelerated_phased_erm"].gradient_terms(smooth)[2] == pytest.approx(10**3.5)
    assert counts["Ghazi et al."] == np.inf

    rough = smooth._replace(smoothness=None)
    accelerated = NAMED["accelerated_phased_erm"].leading_gradients(rough)
    multipass = NAMED["multipass_sgd"].leading_gradients(rough)
    assert accelerated == pytest.approx(1e8)
    assert multipass == pytest.approx(1e18)
    # How much faster, as printed: n^(13/8)·m^(7/4) and β^(3/4)·(nm)^(3/8).
    assert multipass / accelerated == pytest.approx(1e4**1.625 * 100**1.75)
    assert counts["multipass_sgd"] / counts["accelerated_phased_erm"] == pytest.approx(1e6**0.375)


def test_all_terms_count_towards_the_gradients():
    rough = Setting(1e4, 100, 1e4)
    assert NAMED["multipass_sgd"].gradients(rough) == pytest.approx(1e18 + 1e14)
    assert NAMED["accelerated_phased_erm"].gradients(rough) == pytest.approx(1e6 + 1e8 + 1e6)


@pytest.mark.parametrize(
    ("name", "smoothness", "in_users", "in_items"),
    [
        ("accelerated_phased_erm", 1.0, 9 / 8, 9 / 8),
        ("accelerated_phased_erm", None, 11 / 8, 5 / 4),
        ("multipass_sgd", 1.0, 3 / 2, 3 / 2),
        ("multipass_sgd", None, 3.0, 3.0),
        ("Bassily-Sun", 1.0, 3 / 2, 1.0),
        ("phased_sgd", 1.0, 1.0, 1.0),
    ],
)
def test_exponents_of_the_number_of_gradients(name, smoothness, in_users, in_items):
    method = NAMED[name]
    setting = Setting(1e4, 100.0, 100.0, smoothness=smoothness)
    assert _slope(method, setting, "num_users") == pytest.approx(in_users, abs=1e-9)
    assert _slope(method, setting, "items_per_user") == pytest.approx(in_items, abs=1e-9)


def test_exponent_in_the_smoothness():
    setting = Setting(1e4, 100.0, 100.0, smoothness=1.0)
    assert _slope(NAMED["accelerated_phased_erm"], setting, "smoothness") == pytest.approx(1 / 4)
    wide = Setting(10.0, 1e12, 1e12, smoothness=1.0)  # the smaller of 10^15.25 and 10^12.5
    assert NAMED["accelerated_phased_erm"].gradient_terms(wide)[2] == pytest.approx(10**12.5)
    # Few users with very many items: the other term leads, with √β and m^(5/4).
    crowded = setting._replace(num_users=10.0, items_per_user=1e12)
    assert _slope(NAMED["accelerated_phased_erm"], crowded, "smoothness") == pytest.approx(1 / 2)
    assert _slope(NAMED["accelerated_phased_erm"], crowded, "items_per_user") == pytest.approx(
        5 / 4
    )


def test_risks_of_the_printed_table():
    setting = Setting(1000, 100, 100, smoothness=1.0)
    risk = {name: float(method.risk(setting)) for name, method in NAMED.items()}
    optimal = 1e-2**2.5 * 10**2.5 + 1e-3  # 0.00316 + 0.00100
    assert optimal == pytest.approx(0.00416, rel=1e-3)
    for name in ("multipass_sgd", "Bassily-Sun", "Ghazi et al.", "accelerated_phased_erm"):
        assert risk[name] == pytest.approx(optimal)
    assert risk["phased_erm"] == pytest.approx(0.00316 + 0.01, rel=1e-3)
    assert risk["item_group_privacy"] == pytest.approx(0.00316 + 0.01, rel=1e-3)
    assert risk["phased_sgd"] == pytest.approx(11 / np.sqrt(1e5))
    assert user_level.lower_bound(setting) == pytest.approx(optimal)

    private = setting._replace(epsilon=0.1)
    assert NAMED["multipass_sgd"].risk(private) == pytest.approx(0.01316, rel=1e-3)
    assert NAMED["Ghazi et al."].risk(private) == pytest.approx(0.3194, rel=1e-3)
    # Everything scales with L·R.
    larger = private._replace(lipschitz=3.0, diameter=2.0)
    for method in METHODS:
        assert method.risk(larger) == pytest.approx(6.0 * method.risk(private))


def test_no_algorithm_beats_the_lower_bound():
    grid = np.meshgrid([10, 1e3, 1e5], [1, 30, 1e4], [2, 50, 1e3], [0.1, 0.5, 1.0], indexing="ij")
    setting = Setting(*grid, smoothness=0.01)
    bound = user_level.lower_bound(setting)
    for method in METHODS:
        risk, holds = method.risk(setting), method.holds(setting)
        inside = np.broadcast_to(holds, risk.shape)
        assert inside.any(), method.name
        assert np.all(risk[inside] >= bound[inside] * (1 - 1e-12)), method.name
    counts = NAMED["accelerated_phased_erm"].gradients(setting)
    assert np.all(counts >= setting.num_users * setting.items_per_user)


def test_conditions():
    printed = Setting(1e4, 100, 1e4, smoothness=1.0)  # on the edge: β = √(n/m)/10, m = √d
    assert NAMED["Bassily-Sun"].holds(printed)
    assert NAMED["Bassily-Sun"].holds(printed._replace(smoothness=10.0))
    assert not NAMED["Bassily-Sun"].holds(printed._replace(smoothness=10.1))
    assert not NAMED["Bassily-Sun"].holds(printed._replace(items_per_user=101))
    assert not NAMED["Bassily-Sun"].holds(printed._replace(num_users=99))
    assert not NAMED["Bassily-Sun"].holds(printed._replace(smoothness=None))
    linear = NAMED["Bassily-Sun, linear time"].conditions(printed)
    assert linear == {"m <= d/eps^2 <= n": True, "beta R/L <= eps^3 sqrt(n^3/(m d^3))": False}
    for name in ("multipass_sgd", "phased_sgd", "accelerated_phased_erm"):
        assert NAMED[name].holds(printed._replace(num_users=10, epsilon=0.1))
        assert not NAMED[name].holds(printed._replace(num_users=9, epsilon=0.1))


def test_strongly_convex_risk():
    setting = Setting(1000, 100, 20, epsilon=0.5, lipschitz=2.0)
    assert user_level.strongly_convex(setting, 4.0) == pytest.approx(1e-5 + 20 / (1e8 * 0.25))
    large = setting._replace(dim=20_000)
    risks = [user_level.strongly_convex(large._replace(num_users=n), 1.0) for n in (1e3, 2e3)]
    assert risks[0] / risks[1] == pytest.approx(4.0, rel=0.03)  # n^-2 where privacy dominates


def test_the_table_says_who_fails_and_why():
    smooth = user_level.table(1000, 100, 100, 0.1, smoothness=1)
    lines = {line.split("  ")[0]: line for line in smooth.splitlines()}
    assert len(lines) == len(METHODS) + 2
    assert "0.319" in lines["Ghazi et al."]
    assert "m <= max(sqrt(d), n eps^2/sqrt(d))" in lines["Bassily-Sun"]
    assert lines["multipass_sgd"].endswith("-")
    rough = user_level.table(1000, 100, 100)
    assert "Bassily-Sun" not in rough
    assert "multipass_sgd" in rough


def test_stability_has_the_constants_of_the_proofs():
    assert stability.iterate_stability(3.0, 0.1, 100, 50, smooth=False) == pytest.approx(
        2 * 3 * 0.1 * 10 + 4 * 3 * 0.1 * 100 / 50
    )
    assert stability.iterate_stability(3.0, 0.1, 100, 50, smooth=True) == pytest.approx(
        2 * 3 * 0.1 * 100 / 50
    )
    assert stability.generalization_gap(3.0, 0.1, 99, 50, smooth=True) == pytest.approx(
        9 * 0.1 * 100 / 50
    )


@pytest.mark.parametrize("smooth", [True, False])
def test_two_runs_that_share_all_but_one_item_stay_within_the_stability_bound(smooth):
    rng = np.random.default_rng(0)
    items = rng.normal(size=(12, 3))
    other = items.copy()
    other[5] = -40.0 * items[5]

    def gradient(point, z):
        arrow = point - z
        norm = np.linalg.norm(arrow, axis=1, keepdims=True)
        # The distance, and its Huber form at threshold one, which is 1-smooth.
        return (arrow / (np.maximum(norm, 1.0) if smooth else norm)).mean(0)

    step, steps, moved = 0.5, 60, []
    for data in (items, other):
        point = np.zeros(3)
        for _ in range(steps):
            point = point - step * gradient(point, data)
            point /= max(1.0, np.linalg.norm(point) / 2.0)
        moved.append(point)
    distance = np.linalg.norm(moved[0] - moved[1])
    assert 0.02 < distance <= stability.iterate_stability(1.0, step, steps, 12, smooth)


def test_excess_risk_is_the_best_over_step_sizes():
    g, r, steps, items, variance = 2.0, 3.0, 400, 500, 7.0
    etas = np.geomspace(1e-4, 10.0, 20001)

    def minimum(per_step, extra):
        return np.min(r**2 / (2 * etas * steps) + etas * per_step) + extra

    smooth = minimum(variance / 2 + g**2 * (steps + 1) / items, 5.0 * r**2 / (2 * steps))
    bound = stability.sgd_excess_risk(g, r, steps, items, variance, smoothness=5.0, failure=0.01)
    assert bound == pytest.approx(smooth + 0.01 * g * r, rel=1e-6)

    radius = r * 16**0.25 / np.sqrt(2 * steps)
    beta = g * np.sqrt(16) / radius
    per_step = variance / 2 + 2 * g**2 * np.sqrt(steps) + 4 * g**2 * steps / items
    rough = minimum(per_step, beta * r**2 / (2 * steps) + g * radius)
    assert stability.sgd_excess_risk(g, r, steps, items, variance, dim=16) == pytest.approx(
        rough, rel=1e-6
    )
