"""Lower bounds for algorithms that see values: against their proofs, simulation and quadrature."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpsco_jax.rates import bounded_losses, norms, sampling, sampling_tables, value_queries

EXPONENTS = [1.0, 1.05, 1.3, 1.7, 2.0]


def test_theorem_3_7_1_with_its_constants():
    for k in (1, 7, 100, 10**6):
        for d in (1, 4, 30, 1000):
            found = value_queries.minimax_lower_bound(k, d, 2.0, 3.0, direction="signs")
            assert found == pytest.approx(6 / (16 * math.sqrt(1 + 4 * k / d)), rel=1e-14)
            assert found >= 6 / (16 * math.sqrt(2)) * min(1, math.sqrt(d / (4 * k))) * (1 - 1e-14)
            law = value_queries.hard_scales(k, d, 2.0)
            assert law.stddev == pytest.approx(2 / math.sqrt(d + d**2 / (4 * k)), rel=1e-14)
            assert law.mean == pytest.approx(
                law.stddev * math.sqrt(d) / (2 * math.sqrt(k)), rel=1e-14
            )
            assert d * (law.mean**2 + law.stddev**2) == pytest.approx(4.0, rel=1e-14)
            axis = value_queries.hard_scales(k, d, 2.0, direction="axis")
            assert axis.mean**2 + d * axis.stddev**2 == pytest.approx(4.0, rel=1e-14)


@pytest.mark.parametrize("direction", ["signs", "axis"])
@pytest.mark.parametrize("p", EXPONENTS)
def test_the_law_has_the_moment_that_it_claims(p, direction):
    """E‖s‖_q² ≤ G², with equality at p = 2; simulated to 1 %."""
    rng, q = np.random.default_rng(0), norms.dual_exponent(p)
    for d in (1, 3, 40, 300):
        for k in (2, 50, 10**4):
            law = value_queries.hard_scales(k, d, 2.0, p, direction)
            v = np.ones(d) if direction == "signs" else np.eye(d)[0]
            records = law.mean * v + law.stddev * rng.standard_normal((4000, d))
            moment = np.mean(np.linalg.norm(records, q, axis=1) ** 2)
            spread = np.std(np.linalg.norm(records, q, axis=1) ** 2) / math.sqrt(4000)
            assert moment <= 4.0 + 4 * spread
            if p == 2.0:
                assert moment >= 4.0 - 4 * spread
            # Not wasteful: the moment is within a factor of 6 (at q = 2 log d hypercontractivity loses that).
            assert moment >= 4.0 / 6


def test_the_power_of_the_moment_is_the_best():
    for q in (2.0, 3.0, 50.0, math.inf):
        for d in (1, 2, 5, 100, 10**5):
            for ratio in (0.0, 0.3, 1.0, 20.0):
                powers = np.linspace(2.0, min(q, 400.0), 40_001)
                values = d ** (2 / powers) * (ratio**2 + powers - 1)
                found = value_queries._best_power(d, ratio, q)
                assert 2.0 <= found <= q
                value = d ** (2 / found) * (ratio**2 + found - 1)
                assert value <= values.min() * (1 + 1e-9)


def test_more_queries_and_fewer_records():
    bounds = [value_queries.minimax_lower_bound(k, 30, p=1.5) for k in (1, 10, 100, 1000)]
    assert np.all(np.diff(bounds) < 0)
    # Of 5 records there are 150 values to see and no more.
    of_five = [value_queries.minimax_lower_bound(k, 30, num_users=5) for k in (100, 150, 10**6)]
    assert of_five[0] == value_queries.minimax_lower_bound(100, 30)
    assert of_five[2] == of_five[1] == value_queries.minimax_lower_bound(150, 30)
    # Linear in G and D.
    scaled = value_queries.minimax_lower_bound(100, 30, 4.0, 5.0, 1.2)
    assert scaled == pytest.approx(20 * value_queries.minimax_lower_bound(100, 30, p=1.2))


@pytest.mark.parametrize("direction", ["signs", "axis"])
@pytest.mark.parametrize("p", [1.0, 1.4, 2.0])
def test_the_best_algorithm_there_is_stays_above_and_near(p, direction):
    """All nd values are seen. The Bayes risk is κ(D/2)·(‖v‖_q - E‖posterior mean of v‖_q)."""
    rng, q = np.random.default_rng(3), norms.dual_exponent(p)
    for n, d in ((1, 2), (25, 6), (9, 40)):
        law = value_queries.hard_scales(n * d, d, p=p, direction=direction, num_users=n)
        v = np.ones(d) if direction == "signs" else np.eye(d)[0]
        means = law.mean * v + law.stddev / math.sqrt(n) * rng.standard_normal((20_000, d))
        tilt = n * law.mean / law.stddev**2 * means
        if direction == "signs":
            posterior = np.tanh(tilt)
        else:
            posterior = np.sinh(tilt) / np.sum(np.cosh(tilt), axis=1, keepdims=True)
        found = np.linalg.norm(posterior, q, axis=1)
        error = law.mean * found.std() / math.sqrt(len(found))
        best = 0.5 * law.mean * (np.linalg.norm(v, q) - found.mean())
        assert best - 4 * error >= law.risk
        # The bound of an axis loses a factor of 2 at most.
        reach, share = value_queries.reach_and_share(p, d, direction)
        assert best <= 0.5 * law.mean * reach
        if direction == "axis":
            assert best <= 2 * law.risk
            assert share == 0.25


def test_rates_of_the_thesis():
    d, k = 100, 10**4
    log, seen = math.log(100), math.log(10**6)
    found = sampling_tables.minimax_rate(k, d, 2.0, 3.0, 1.6)
    assert found == pytest.approx(6 * 0.375 * math.sqrt(d / (k * log)))
    found = sampling_tables.minimax_rate(k, d, 2.0, 3.0, 1.0, bounded=True)
    assert found == pytest.approx(6 / log * math.sqrt(d / (k * seen)))
    assert sampling_tables.minimax_rate(1, d) == 0.5
    # Corollary 3.7.6: log(nd).
    n, epsilon, delta = 1000, 0.5, 1e-5
    found = sampling_tables.sco_lower_bound_rate(n, d, epsilon, delta, 2.0, 3.0)
    reached = math.sqrt(d * math.log(1e5)) / (epsilon * n) + n**-0.5
    assert found == pytest.approx(6 * reached / math.sqrt(1 + math.log(n * d) / d))
    assert sampling_tables.sco_lower_bound_rate(2, 1, 1e-3, 0.1) == pytest.approx(
        1 / math.sqrt(1 + math.log(2))
    )
    assert sampling_tables.sco_queries_rate(n, d, 1e-2, delta) == pytest.approx(100 / math.log(1e5))
    assert sampling_tables.sco_queries_rate(n, d, 100.0, delta) == n * d
    # Corollaries 3.7.7, 5.7.6.
    assert sampling_tables.sampling_queries_rate(100.0, 0.1, 50) == pytest.approx(
        1e5 / (1 + math.log(1e5) / 50)
    )
    assert sampling_tables.sampling_queries_rate(100.0, 0.1, 50, 1.5) == pytest.approx(
        1e5 / math.log(50) ** 4
    )
    assert sampling_tables.sampling_distance_rate(k, 100.0, 0.1, 50) == pytest.approx(5**0.5 / 100)
    assert sampling_tables.sampling_distance_rate(k, 0.1, 0.1, 50) == 0.5
    assert sampling_tables.sampling_distance_rate(k, 1.0, 1.0, 50, 1.0) == pytest.approx(
        math.sqrt(50 / (k * math.log(50 * k) ** 3))
    )


def test_constants_against_rates():
    """Our bounds with constants are of the order of the printed rates: no log d is lost at p = 1."""
    for p in EXPONENTS:
        for d in (10, 10**3, 10**6):
            ours = value_queries.minimax_lower_bound(10 * d, d, p=p)
            rate = sampling_tables.minimax_rate(10 * d, d, p=p)
            assert ours >= 0.02 * rate
            assert ours <= 3 * math.log(d) * rate
    # And no bound is above what is trivially true: half of the range of the risk.
    for p in EXPONENTS:
        assert value_queries.minimax_lower_bound(1, 20, p=p) <= 0.5


@pytest.mark.parametrize("direction", ["signs", "axis"])
@pytest.mark.parametrize("p", [1.0, 1.3, 2.0])
def test_bounded_laws(p, direction):
    """Share cut off and mean left against simulation; the bound against its own formula."""
    if p == 1.0 and direction == "signs":
        with pytest.raises(ValueError, match="p must be above 1"):
            bounded_losses.bounded_scales(5, 4, p=1.0)
        return
    rng, q = np.random.default_rng(1), norms.dual_exponent(p)
    for d, k in ((3, 2), (20, 40)):
        law = bounded_losses.bounded_scales(k, d, 2.0, p, direction)
        free = value_queries.hard_scales(k, d, 2.0, p, direction)
        assert law.mean / law.stddev == pytest.approx(free.mean / free.stddev, rel=1e-14)
        v = np.ones(d) if direction == "signs" else np.eye(d)[0]
        records = law.mean * v + law.stddev * rng.standard_normal((400_000, d))
        kept = np.linalg.norm(records, 2 if p == 2.0 else np.inf, axis=1) <= law.bound
        assert np.mean(~kept) == pytest.approx(law.missing, rel=0.05, abs=4e-5)
        means = np.mean(records * kept[:, None], axis=0)
        error = 5 * law.stddev / math.sqrt(400_000)
        np.testing.assert_allclose(means, law.kept_mean * v, atol=error)
        assert law.kept_mean < law.mean
        assert np.linalg.norm(records[kept], q, axis=1).max() <= 2.0 * (1 + 1e-12)
        reach, share = value_queries.reach_and_share(p, d, direction)
        assert law.risk == pytest.approx(law.kept_mean * reach * (share - k * law.missing))
        assert k * law.missing == pytest.approx(share / 2, rel=1e-6)
        assert law.risk <= free.risk


def test_the_mean_left_by_a_strong_cut_against_quadrature():
    """Cut at about the mean, where c is far below κ: integrals for the ball and for each axis."""
    width, ratio, d = 1.3, 0.8, 3

    def cube(leading):
        kept = [stats.norm.cdf(width - m) - stats.norm.cdf(-width - m) for m in (ratio, 0.0)]
        one, _ = integrate.quad(lambda u: u * stats.norm.pdf(u - ratio), -width, width)
        return one * kept[0] ** (leading - 1) * kept[1] ** (d - leading)

    # In the ball: given the first entry, the mass of a disc around the rest.
    def ball(leading):
        def inner(u):
            left, others = width**2 - u**2, (leading - 1) * ratio**2
            return u * stats.norm.pdf(u - ratio) * stats.ncx2.cdf(left, d - 1, max(others, 1e-300))

        return integrate.quad(inner, -width, width, epsabs=1e-12)[0]

    for leading in (1, d):
        found = bounded_losses._kept_mean(width, ratio, d, leading, False)
        assert found == pytest.approx(cube(leading), rel=1e-10)
        found = bounded_losses._kept_mean(width, ratio, d, leading, True)
        assert found == pytest.approx(ball(leading), rel=1e-8)


def test_sampling_needs_as_many_values_as_its_condition():
    # Positive until k is of the order of G²/μ, zero from then on.
    d = 30
    for p in (1.0, 1.5, 2.0):
        theta = norms.regularizer_range(p, d)
        for condition in (1e6, 1e9):
            g, mu = math.sqrt(condition), 1.0
            few, many = int(condition / 10**5), int(condition)
            assert bounded_losses.sampling_distance(few, d, g, mu, p) > 0
            assert bounded_losses.sampling_distance(many, d, g, mu, p) == 0.0
        # From the proof: no other diameter gives more.
        risk = bounded_losses.bounded_lower_bound(100, d, 1e5, 1.0, p)
        diameters = np.geomspace(0.1, 1e4, 4001)
        by_hand = (risk * diameters - d - mu * theta * diameters**2 / 4) / (1e5 * diameters)
        found = bounded_losses.sampling_distance(100, d, 1e5, mu, p)
        assert found == pytest.approx(by_hand.max(), rel=1e-5)
        best = diameters[np.argmax(by_hand)]
        assert bounded_losses.sampling_diameter(mu, d, p) == pytest.approx(best, rel=3e-3)


@pytest.mark.parametrize("p", EXPONENTS)
def test_u5_what_a_draw_promises_is_above_what_none_is_below(p):
    """The bound of the best draw for any ε, n values of d each, against the bound for those values."""
    for d in (2, 30, 1000):
        for n in (10, 1000, 10**5):
            for s in (0.01, 1.0, 100.0):
                theta = norms.regularizer_range(p, d, 0.5)
                promised = sampling.sco(s, n, d, 1.0, 2.0, theta).risk
                bound = bounded_losses.bounded_lower_bound(n * d, d, 1.0, 1.0, p, num_users=n)
                assert bound <= promised
                free = value_queries.minimax_lower_bound(n * d, d, 1.0, 1.0, p, num_users=n)
                assert bound <= free <= promised


def test_bad_numbers_are_refused_by_name():
    with pytest.raises(ValueError, match=r"p must be in \[1, 2\]"):
        value_queries.minimax_lower_bound(10, 9, p=2.5)
