"""The certificate of chains by rejection: its parts against quadrature, wide numbers and exact chains."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from dpsco_jax._infeasible import Infeasible
from dpsco_jax.solvers.sampling import _rejection_certificate as certificate
from dpsco_jax.solvers.sampling import attempt_bounds, log_sobolev
from dpsco_jax.solvers.sampling import rejection_oracle as series
from tests.support.compiled import OPTIMIZED

pytestmark = pytest.mark.usefixtures("float64")


# -- one draw


def _by_quadrature(c, terms, fresh):
    """δ(c, A) as it is defined, by adaptive quadrature."""
    total = 0.0
    for a in range(1, terms + 1):
        weight = 1 / math.factorial(a) - (1 / math.factorial(a + 1) if a < terms else 0)
        count = a * (a + 1) // 2 if fresh else a
        rising = np.polynomial.Polynomial([-1.0] + [1.0] * a)
        root = optimize.brentq(rising, 0.4, 1.0) if a > 1 else 1.0
        corner = max(root, math.sqrt(4 * c * math.log(2 * count)))

        def tail(t, rising=rising, count=count):
            return rising.deriv()(t) * 2 * count * math.exp(-(t**2) / (4 * c))

        total += weight * (rising(corner) - rising(root))
        for k in range(20):
            ends = corner + 2 * math.sqrt(c) * np.array([k, k + 1])
            total += weight * integrate.quad(tail, *ends, epsabs=1e-300)[0]
    for b in range(terms + 1, terms + 200):
        logs = 0.5 * b * math.log(4 * c) + math.log(b) + special.gammaln(b / 2)
        total += math.exp(logs - special.gammaln(b + 1))
    return total


@pytest.mark.parametrize("indices", series.INDICES)
@pytest.mark.parametrize("c", [0.04, 0.02, 0.005, 0.003])
@pytest.mark.parametrize("terms", [3, 6, 16])
def test_the_error_of_a_draw_is_what_it_is_defined_as(c, terms, indices):
    found = certificate.inner_variation(c, terms, indices)
    assert found == pytest.approx(_by_quadrature(c, terms, indices == "fresh"), rel=1e-6, abs=0)


def _true_variation(c, terms):
    """Of one linear loss, by quadrature in units in which x and z are N(0, c)."""
    grid = np.linspace(-9, 9, 601) * math.sqrt(c)
    fine = np.linspace(-9, 9, 6001) * math.sqrt(c)
    mass = stats.norm.pdf(fine, 0, math.sqrt(c)) * (fine[1] - fine[0])
    jump = fine - grid[:, None]
    clipped, rho = 0.0, np.ones_like(jump)
    for a in range(1, terms + 1):
        weight = 1 / math.factorial(a) - (1 / math.factorial(a + 1) if a < terms else 0)
        rho = 1 + jump * rho
        clipped = clipped + weight * np.clip(rho, 0, 2) @ mass
    base = stats.norm.pdf(grid, 0, math.sqrt(c))
    found, ideal = base * clipped, base * np.exp(-grid)
    return 0.5 * np.abs(found / found.sum() - ideal / ideal.sum()).sum()


@pytest.mark.parametrize(
    ("c", "known", "bound"), [(0.02, 1.39e-4, 9.3e-3), (0.01, 1.47e-6, 1.21e-4)]
)
def test_the_error_of_a_draw_is_above_the_true_one(c, known, bound):
    true = _true_variation(c, 8)
    assert true == pytest.approx(known, rel=0.05)
    found = certificate.inner_variation(c, 16)
    assert found == pytest.approx(bound, rel=0.01)
    assert all(true <= certificate.inner_variation(c, a) for a in (8, 12, 16))


def test_the_table_of_steps_for_errors():
    table = {
        1e-2: (47.8, 54.0),
        1e-4: (102.3, 112.9),
        1e-6: (161.6, 173.8),
        1e-8: (224.0, 237.2),
        1e-10: (288.3, 302.4),
        1e-12: (354.1, 368.8),
        1e-15: (454.6, 470.1),
    }
    for target, inverses in table.items():
        for indices, inverse in zip(series.INDICES, inverses, strict=True):
            best = max(certificate.largest_c(target, a, indices) for a in range(3, 19))
            assert 1 / best == pytest.approx(inverse, rel=2e-3)
            # The closed form that is always on the safe side.
            if indices == "prefix":
                assert certificate.inner_variation(1 / (14 * math.log(1 / target)), 16) <= target


# -- chains

SHEET = [  # n, d, k, μ, δ, T in units of ten thousand, as printed
    (100, 2, 31.1, 0.129, 1e-4, 170),
    (100, 10, 69.6, 0.287, 1e-4, 170),
    (300, 10, 179.0, 0.112, 1e-5, 1600),
]


def sizes_of(n, d, k, mu, reach=1.0, **fields):
    losses = certificate.rounded_losses(k, d, 1.0, 0.0, 1.0)
    return certificate.Sizes(n, d, k, k * mu, 1.0, losses, reach)._replace(**fields)


@pytest.mark.parametrize(("n", "d", "k", "mu", "delta", "steps"), SHEET)
def test_plans_of_the_sheet(n, d, k, mu, delta, steps):
    tau = 0.1 * delta / (1 + math.e)
    sizes = sizes_of(n, d, k, mu)
    for asked in (sizes, sizes._replace(ball_radius=1.0)):
        chain = certificate.planned(tau, asked)
        assert chain.variation <= tau
        assert chain.num_steps == pytest.approx(1e4 * steps, rel=0.08)
        parts = chain.mixing + chain.inner + chain.rounding + chain.cap
        assert chain.variation == pytest.approx(parts, rel=1e-6)
        # Each part again, from its formula.
        c = chain.step_size * k**2
        assert chain.inner == pytest.approx(
            chain.num_steps * certificate.inner_variation(c, chain.num_terms), rel=1e-4
        )
        bound = -(chain.num_steps - 1) * math.log1p(chain.step_size * k * mu)
        assert math.log(chain.mixing * 2 * math.sqrt(chain.step_size)) == pytest.approx(
            bound, abs=1e-4
        )
        assert stats.binom.cdf(chain.num_steps - 1, chain.num_trials, chain.acceptance) <= chain.cap
        assert chain.acceptance <= 0.5
    # x and z must both lie in the ball, which each does half of the time if y is on its sphere.
    deviation = 1 / math.sqrt(1 / chain.step_size + k * mu)
    far = (1 / deviation + attempt_bounds.OUTSIDE) ** 2
    assert chain.acceptance <= 0.5 * stats.ncx2.cdf(deviation**-2, d, far) ** 2


def test_a_chain_that_is_not_the_planned_one_says_so():
    sizes = sizes_of(100, 10, 69.6, 0.287)
    chain = certificate.planned(2.7e-6, sizes)
    same = (chain.step_size, chain.num_terms, chain.num_steps, chain.num_trials)
    assert certificate.certified(sizes, *same).variation <= 2.7e-6
    for changed in (
        (2 * same[0], *same[1:]),
        (same[0], 3, *same[2:]),
        (same[0], same[1], same[2] // 2, same[3]),
        (same[0], same[1], same[2], same[3] // 2),
    ):
        assert certificate.certified(sizes, *changed).variation > 1e-4
    assert certificate.certified(sizes, 1.0, *same[1:]).variation == 1.0
    steeper = certificate.certified(sizes._replace(lipschitz=2 * 69.6), *same)
    assert steeper.variation > 1e-3


def test_the_whole_space_is_certified_by_how_far_chains_go():
    k, mu, d = 69.6, 0.287, 10
    far = 1 / mu + math.sqrt(d / (k * mu))
    sizes = sizes_of(100, d, k, mu, reach=None, start_distance=far)
    chain = certificate.planned(2.7e-6, sizes)
    assert chain.variation <= 2.7e-6
    # How likely a bound may fail is part of it, on the whole space and on balls.
    for asked in (sizes, sizes._replace(reach=1.0, ball_radius=1.0)):
        looser = certificate.certified(asked, *chain[:3], 2**31 - 1, escape=1e-3)
        assert 1e-3 <= looser.cap < 1.001e-3
    within = certificate.certified(sizes._replace(reach=1.0), *chain[:3], 2**31 - 1, escape=1e-3)
    assert within.cap < 1e-9
    # A target that is far away has all of its points there.
    assert 5.0 < certificate.farthest_point(1, 1e-3, 1e4, 5.0, 10**6, 1e-9) < 11.0
    # Chains of a Gaussian target as far out as can be: none comes near the bound, which holds for all points.
    step, convexity, start, steps = 0.1, 2.0, 3.0, 50
    radius = certificate.farthest_point(2, step, convexity, start, steps, 1e-3)
    rng = np.random.default_rng(12)
    x = np.tile([start, 0.0], (4000, 1))
    largest = 0.0
    for _ in range(steps):
        y = x + math.sqrt(step) * rng.normal(size=x.shape)
        x = y / (1 + step * convexity) + math.sqrt(step / (1 + step * convexity)) * rng.normal(
            size=x.shape
        )
        largest = max(largest, *(np.linalg.norm(p - [start, 0.0], axis=1).max() for p in (x, y)))
    assert start < largest < radius < 6 * largest


def test_losses_that_are_not_convex_mix_by_their_log_sobolev_constant():
    """A double well of oscillation 1.5 in place of a convex loss: the same chain, e^{1.5} times as long."""
    tau, alpha = 1e-6, log_sobolev.bounded_perturbation(2.0, 1.5)
    convex = sizes_of(100, 3, 4.0, 0.5)
    rough = convex._replace(log_sobolev=alpha)
    one, other = certificate.planned(tau, convex), certificate.planned(tau, rough)
    assert max(one.variation, other.variation) <= tau
    steps, eta = other.num_steps, other.step_size
    bound = -(steps - 0.5) * math.log1p(eta * alpha) - math.log(2 * math.sqrt(eta))
    assert math.log(other.mixing) == pytest.approx(bound, abs=1e-4)
    assert 1.0 < steps * eta * math.exp(-1.5) / (one.num_steps * one.step_size) < 1.2
    # The chain for convex losses is too short for these, and says so; nothing else is worse.
    short = certificate.certified(rough, *one[:4])
    assert short.mixing > 1e3 * one.mixing
    assert [short.inner, short.rounding, short.cap] == [one.inner, one.rounding, one.cap]
    with pytest.raises(ValueError, match="reach"):
        certificate.planned(tau, rough._replace(reach=None))
    with pytest.raises(ValueError, match="log_sobolev"):
        certificate.planned(tau, rough._replace(log_sobolev=0.0))


def test_targets_that_float64_cannot_reach_are_refused():
    with pytest.raises(Infeasible, match="rounding"):
        certificate.planned(1e-12, sizes_of(100, 10, 69.6, 0.287))
    loose = certificate.Rounding(1e-4, 0.0)
    with pytest.raises(Infeasible, match="rounding"):
        certificate.planned(2.7e-6, sizes_of(100, 10, 69.6, 0.287, rounding=loose))


# -- rounding


def _exact_acceptance(differences, terms):
    """Half the clipped average of ρ over its number of terms, in extended precision."""
    wide = np.longdouble(1.0)
    product, partial_sum, found = wide, wide, np.longdouble(0.0)
    for a in range(1, terms + 1):
        product = product * differences[a - 1]
        partial_sum = partial_sum + product
        weight = wide / math.factorial(a) - (wide / math.factorial(a + 1) if a < terms else 0)
        found += weight * min(max(partial_sum, np.longdouble(0)), np.longdouble(2))
    return found / 2


@pytest.mark.parametrize("c", [0.002, 0.02])
def test_acceptance_is_wrong_by_no_more_than_is_said(c):
    """Differences N(0, 2c), rounded twice: what that does to the probability of acceptance."""
    rng = np.random.default_rng(13)
    terms, changes = 12, []
    for _ in range(400):
        # One record only, whose differences are all the same: their powers are largest then.
        exact = np.full(terms, rng.normal() * math.sqrt(2 * c), np.longdouble)
        wrong = exact * (1 + np.longdouble(2.0**-52))
        changes.append(_exact_acceptance(wrong, terms) - _exact_acceptance(exact, terms))
    measured = math.sqrt(np.mean(np.square(np.array(changes, float))))
    # At least what the uniform number and the last sum have.
    assert measured <= (bound := certificate.acceptance_error(c, terms, 100)) < 2.0**-50
    assert bound >= 1.5 * 2.0**-53
    least = certificate.acceptance_error(1e-14, terms, 1)
    assert least == pytest.approx(1.01 * 1.5 * 2.0**-53, rel=0.01, abs=0)


def test_sums_of_estimates_are_rounded_by_no_more_than_is_said():
    """The program's ρ against extended precision, for the indices that it drew."""
    values = np.random.default_rng(14).normal(size=5) * 0.2
    records = jnp.asarray(values)

    def one(key):
        length_key, index_key = jax.random.split(jax.random.clone(key))
        made = series.estimate(key, lambda part, j: part * records[j], 3.0, 5, 9, "prefix", False)
        return made.value, series.draw_length(length_key, 9), series.draw_indices(index_key, 9, 5)

    run = jax.jit(jax.vmap(one), compiler_options=OPTIMIZED)
    rho, lengths, drawn = map(np.asarray, run(jax.random.split(jax.random.key(0), 2000)))
    for value, length, j in zip(rho, lengths, drawn, strict=True):
        powers = np.cumprod(np.longdouble(3.0) * values[j[:length]].astype(np.longdouble))
        assert abs(value - (1 + powers.sum())) <= 2.0**-53 * (
            1.01 + np.sum((3 * np.arange(1, length + 1) + 9) * np.abs(powers))
        )


def test_what_rounding_costs_a_chain():
    """Without an error of losses, what sums and uniform numbers have, in each of the steps."""
    sizes = sizes_of(100, 10, 10.0, 1.0, rounding=certificate.Rounding(0.0, 0.0))
    chain = certificate.certified(sizes, 1e-4, 9, 10**6, 2**31 - 1)
    e, counts = (
        certificate.acceptance_error(0.01, 9, 100),
        0.5 - 0.5 * certificate.inner_variation(0.01, 9),
    )
    assert chain.rounding == pytest.approx(10**6 * e / (counts - e), rel=1e-6)


@pytest.mark.parametrize("error_of_each", [1e-6, 1e-3])
def test_computed_losses_have_a_target_near_that_of_exact_ones(error_of_each):
    """Losses off by a square wave of that size: distance of densities and tails of differences."""
    c, k = 0.01, 5.0
    target = certificate.computed_target(c, 2.0, 1.0, error_of_each)
    grid = np.linspace(-6, 6, 200_001)
    exact = np.exp(-k * np.abs(grid) - grid**2)
    wrong = exact * np.exp(error_of_each * np.sign(grid))
    variation = 0.5 * np.abs(exact / exact.sum() - wrong / wrong.sum()).sum()
    assert 0.4 * target.variation < variation <= target.variation
    assert target.log_sobolev < 2.0 < 2.0 * target.start_distance
    for t in (0.5, 0.7, 1.0):
        assert math.exp(-((t - 2 * error_of_each) ** 2) / (4 * c)) <= math.exp(
            -(t**2) / (4 * target.c)
        )


def test_dot_products_are_rounded_by_no_more_than_is_said():
    rng = np.random.default_rng(15)
    d, k = 40, 3.0
    rounding = certificate.rounded_losses(k, d, 1.0, 0.5, 1.0, ulps=1.0)
    start = rng.normal(size=d)
    start *= 0.5 / np.linalg.norm(start)
    for _ in range(200):
        move, s = rng.normal(size=(2, d))
        s /= np.linalg.norm(s)
        distance = rng.uniform(0, 10)
        x = start + move * distance / np.linalg.norm(move)
        exact = abs(
            1 + math.fsum(np.longdouble(a) * np.longdouble(b) for a, b in zip(x, s, strict=True))
        )
        computed = abs(1 + float(jnp.dot(jnp.asarray(x), jnp.asarray(s))))
        # Adding one to the product is the link, with one rounding.
        assert k * abs(exact - computed) <= rounding.within(distance) + 1e-18


def test_bad_requests():
    for field, bad in (
        ("lipschitz", 0.0),
        ("convexity", 0.0),
        ("start_distance", math.inf),
        ("reach", -1.0),
        ("num_records", 0),
    ):
        with pytest.raises(ValueError, match=field):
            certificate.planned(1e-6, sizes_of(100, 10, 1.0, 1.0)._replace(**{field: bad}))
    with pytest.raises(ValueError, match="variation"):
        certificate.planned(0.0, sizes_of(100, 10, 1.0, 1.0))
