"""Poisson sampling under replacement: curves and pairs against quadrature, tables and limits."""

import functools
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as their_pld

from dpsco_jax import privacy
from dpsco_jax.privacy import ORDERS, certificate, events, pld
from dpsco_jax.privacy.curves import _mixture_sum, _profile_nodes, mixtures, poisson
from dpsco_jax.privacy.curves.subsampling import subsampled_gaussian_of_fraction
from dpsco_jax.privacy.dp_accounting.second_opinion import second_opinion
from dpsco_jax.privacy.pld import mixture_pairs, pairs

REPLACE = NeighboringRelation.REPLACE_ONE
SMALL, LARGE = 1000**-1.1, 8000**-1.1

# q, σ over the norm of one unit, order, divergence.
TABLE = [
    (0.01, 1, 2, 4.57554382538e-4),
    (0.01, 2, 4, 2.01476176532e-4),
    (0.01, 4, 8, 1.00002391779e-4),
    (0.05, 2, 4, 4.99223061207e-3),
    (0.1, 4, 8, 9.96969204021e-3),
    (0.1, 2, 3.5, 1.73189098193e-2),
    (0.25, 1.5, 2, 0.104694550695),
    (1.0, 2, 4, 2.0),
]


def _places(orders):
    return [int(np.argmin(np.abs(ORDERS - order))) for order in orders]


@pytest.fixture
def table_orders(monkeypatch):
    """Orders among which are those of the table, and their places."""
    wanted = np.unique([order for _, _, order, _ in TABLE])
    places = _places(wanted)
    orders = ORDERS.copy()
    orders[places] = wanted
    assert np.all(np.diff(orders) > 0)
    for module in (mixtures, poisson, _mixture_sum, _profile_nodes):
        monkeypatch.setattr(module, "ORDERS", orders)
    _profile_nodes.banks.cache_clear()
    yield dict(zip(wanted, places, strict=True))
    _profile_nodes.banks.cache_clear()


def test_the_curve_is_that_of_the_table(table_orders):
    for q, sigma, order, divergence in TABLE:
        found = privacy.poisson_replaced_gaussian(sigma / 2, q).rdp[table_orders[order]]
        assert found == pytest.approx(divergence, rel=1e-11)
        users = privacy.user_sampled_gaussian(sigma / 2, q, 1.0).rdp[table_orders[order]]
        assert users == found


ROWS = 14  # of what is compiled once


@functools.cache
def _compiled():
    return jax.jit(jax.vmap(lambda row: privacy.user_sampled_gaussian(*row).rdp))


def test_two_units_are_a_fixed_size_and_no_cap_is_the_gaussian_with_probability_q():
    for sigma, q in [(0.4, 0.3), (1.0, 0.01), (2.0, 0.9), (20.0, 0.1)]:
        two = privacy.user_sampled_gaussian(sigma, q, 2.0).rdp
        # At the few orders where one of them reaches and the other does not, the bound is looser.
        np.testing.assert_allclose(two, subsampled_gaussian_of_fraction(sigma, q).rdp, rtol=3e-3)
        half = slice(len(ORDERS) // 3)
        fixed = subsampled_gaussian_of_fraction(sigma, q).rdp[half]
        np.testing.assert_allclose(two[half], fixed, rtol=1e-9)
        moment = np.logaddexp(np.log1p(-q), np.log(q) + ORDERS * (ORDERS - 1) / (2 * sigma**2)) / (
            ORDERS - 1
        )
        free = privacy.user_sampled_gaussian(sigma, q, math.inf).rdp
        np.testing.assert_allclose(free, moment, rtol=1e-9)
        far = privacy.user_sampled_gaussian(sigma, q, 1e6).rdp
        np.testing.assert_array_equal(far, free)
        one = privacy.user_sampled_gaussian(sigma, q, 1.0).rdp
        np.testing.assert_array_equal(one, privacy.poisson_replaced_gaussian(sigma, q).rdp)
        delta = 1e-6
        ours = pld.epsilon([(mixture_pairs.user_sampled_gaussian(sigma, q, 2.0), 3)], delta)
        fixed = pld.epsilon([(pairs.gaussian_without_replacement(sigma, q), 3)], delta)
        assert ours == pytest.approx(fixed, rel=1e-6)


def test_more_noise_fewer_samples_and_a_smaller_cap_never_cost_more():
    sigmas, rates = (
        np.array([0.05, 0.2, 0.5, 1.0, 3.0, 30.0]),
        np.array([1e-6, 0.01, 0.3, 0.9, 1.0]),
    )
    caps = np.array([1.0, 1.01, 1.5, 2.0, 2.01, 4.0, 16.0, 1e3, np.inf])
    grid = np.meshgrid(sigmas, rates, caps, indexing="ij")
    rdp = privacy.user_sampled_gaussian(*grid).rdp
    assert np.all(rdp >= 0)
    slack = 1 + 1e-9
    assert np.all(rdp[1:] <= rdp[:-1] * slack)
    assert np.all(rdp[:, :-1] <= rdp[:, 1:] * slack)
    # Where sums do not reach, one cap may have a looser bound than the next: never by much where it counts.
    epsilons = privacy.epsilon(privacy.PrivacyLoss(rdp, np.zeros(rdp.shape[:-1])), 1e-6)
    assert np.all(epsilons[..., :-1] <= epsilons[..., 1:] * slack)


def test_numbers_out_of_range_are_refused_or_cost_everything():
    for bad, name in (((-1.0, 0.1, 2.0), "noise"), ((1.0, 1.1, 2.0), "sampling_prob")):
        with pytest.raises(ValueError, match=name):
            privacy.user_sampled_gaussian(*bad)
    for cap in (0.99, -1.0, math.nan):
        for make in (
            lambda cap=cap: privacy.user_sampled_gaussian(1.0, 0.1, cap),
            lambda cap=cap: privacy.PoissonUsers(0.1, cap).gaussian_release(1.0, REPLACE),
            lambda cap=cap: events.user_sampled_gaussian(1.0, 0.1, cap),
            lambda cap=cap: mixture_pairs.user_sampled_gaussian(1.0, 0.1, cap),
        ):
            with pytest.raises(ValueError, match="cap must be"):
                make()
    nan = math.nan
    wrong = np.array(
        [
            *([nan, 0.1, 2], [1, nan, 2], [1, 0.1, nan], [-1, 0.1, 2], [1, 1.5, 2]),
            *([1, -0.1, 2], [1, 0.1, 0.5], [0, 0.1, 2], [nan, 0.0, 1]),
        ],
        np.float32,
    )
    good = np.array([[1, 0.1, np.inf], [np.inf, 0.1, 2], [0, 0, 1], [1e-3, 0.5, 3], [1e30, 0.5, 2]])
    both = np.concatenate([wrong, good.astype(np.float32)])
    assert len(both) == ROWS
    found = np.asarray(_compiled()(jnp.asarray(both)))
    assert np.all(np.isposinf(found[: len(wrong)]))
    found = found[len(wrong) :]
    assert np.all(np.isfinite(found[:3]))
    assert not np.any(np.isnan(found))
    assert np.all(found[2] == 0)
    # What costs less than any number of float32 costs the least of them.
    assert np.all(found[[3, 4]] > 0)
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(ValueError, match="relation"):
        privacy.PoissonUsers(0.1, 2.0).gaussian_loss(1.0, relation)
    with pytest.raises(ValueError, match="no proof"):
        privacy.PoissonUsers(0.1, 2.0).gaussian_release(1.0, relation)


RUNS = [
    (200, 0.05, SMALL, 3.909, 1.00, 1.14),
    (200, 0.05, SMALL, 1.556, 3.00, 5.94),
    (40000, 0.01, LARGE, 14.44, 0.93, 0.94),
    (40000, 0.01, LARGE, 5.14, 2.98, 3.12),
]


@pytest.mark.parametrize(("steps", "q", "delta", "sigma", "one", "two"), RUNS)
def test_runs_cost_what_is_known_of_them(steps, q, delta, sigma, one, two):
    scheme = privacy.Poisson(q)
    event = events.repeated(scheme.gaussian_event(sigma / 2), steps)
    found = certificate(event, delta, REPLACE).epsilon
    assert found == pytest.approx(one, abs=0.02)
    ledger = privacy.scale(scheme.gaussian_loss(sigma / 2, REPLACE), steps)
    assert found <= privacy.epsilon(ledger, delta) <= 1.25 * found
    users = privacy.PoissonUsers(q, 2.0)
    event = events.repeated(users.gaussian_event(sigma / 2), steps)
    # One orientation is what an attack reaches; a run may change it from step to step.
    assert two < certificate(event, delta, REPLACE).epsilon < 1.2 * two


def test_the_mirrored_pair_of_two_units_costs_more_than_either_orientation():
    for sigma, one_way, mirrored in ((3.909, 1.31, 1.47), (1.556, 7.08, 8.00)):
        ledger = privacy.user_sampled_gaussian(sigma / 2, 0.05, 2.0)
        found = privacy.epsilon(privacy.scale(ledger, 200), SMALL)
        assert one_way * 1.1 < found
        assert found == pytest.approx(mirrored, rel=0.015)


def test_dp_accounting_agrees_on_single_units():
    for sigma, expected in ((3.909, 0.99985), (1.556, 3.00027)):
        theirs = their_pld.from_gaussian_mechanism(
            sigma, sampling_prob=0.05, neighboring_relation=REPLACE
        ).self_compose(200)
        ours = pld.epsilon([(mixture_pairs.poisson_replaced_gaussian(sigma / 2, 0.05), 200)], SMALL)
        assert theirs.get_epsilon_for_delta(SMALL) == pytest.approx(ours, abs=1e-3)
        assert ours == pytest.approx(expected, abs=1e-3)
    # Beside a plain Gaussian, whose noise has to be told in the same way.
    sampled = events.repeated(events.poisson_subsampled_gaussian(1.5, 0.02), 99)
    for event in (sampled, events.composed(sampled, events.gaussian(2.0))):
        ours = certificate(event, 1e-6, REPLACE).epsilon
        assert second_opinion(event, 1e-6, REPLACE) == {"PLD": pytest.approx(ours, rel=1e-4)}


def test_dp_accounting_does_not_know_users_with_their_units():
    event = events.user_sampled_gaussian(1.0, 0.1, 2.0)
    for accountant in (
        dp_accounting.rdp.RdpAccountant(neighboring_relation=REPLACE),
        dp_accounting.pld.PLDAccountant(REPLACE),
    ):
        assert not accountant.supports(event)
    assert second_opinion(event, 1e-6, REPLACE) == {}


@pytest.mark.parametrize(
    ("users", "steps", "epsilon", "delta", "sigma"),
    [
        (100, 10**4, 1.0, 1e-5, 8.886),
        (1000, 10**4, 1.0, 1e-6, 2.038),
        (10**4, 10**6, 2.0, 1e-6, 1.411),
    ],
)
def test_single_draws_need_no_more_noise_than_their_table(users, steps, epsilon, delta, sigma):
    """One record of n in each step, σ over the norm of one: a Rényi table has enough, not far too much."""
    event = privacy.WithoutReplacement(users, 1).gaussian_event(sigma / 2)
    found = certificate(events.repeated(event, steps), delta, REPLACE).epsilon
    assert 0.6 * epsilon < found <= epsilon
