"""What lazy draws cost: against all transcripts of small runs, the best real order, floats, refusals."""

import itertools
import math

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from scipy import optimize, special

from dpsco_jax import privacy
from dpsco_jax.privacy.online import LazyReleases, l2p_epsilon_thesis

ALPHAS = (1.1, 1.5, 2.0, 4.0, 16.0, 64.0)


def releases(count=4, batch_size=1, reference="none", eta=0.1, p=0.05, **changes):
    lagged = reference == "lagged"
    given = {
        "num_batches": count,
        "batch_size": batch_size,
        "reference": reference,
        "clip": eta,
        "envelope": batch_size * eta,
        "redraw_probability": p,
        "reference_probability": p if lagged else 0.0,
        "draw_zcdp": 0.5 * eta**2,
        "delta": 1e-6,
    }
    return LazyReleases(**given | changes)


# Another program: the laws of all transcripts (points, references, coins) of experts.


def transcripts(losses, eta, p, batch_size, reference, p_y, envelope):
    """Probabilities in a fixed order; ``losses`` of shape [batches · batch_size, experts]."""
    batches = losses.reshape(-1, batch_size, losses.shape[-1]).sum(axis=1)
    experts = batches.shape[1]
    law = np.exp(-eta * np.cumsum(np.vstack([np.zeros(experts), batches]), axis=0))
    law /= law.sum(axis=1, keepdims=True)

    def after(s, x, y):
        """All that may follow once batch s - 1, in which x and y stood, is over."""
        if s == len(batches):
            return [1.0]
        if reference == "lagged":
            keep = (1 - p) * math.exp(-eta * (batches[s - 1, x] - batches[s - 1, y]) - envelope)
            kept_y = [(1 - p_y, y), *((p_y * law[s, i], i) for i in range(experts))]
        else:
            keep = (1 - p) * math.exp(-eta * batches[s - 1, x])
            kept_y = [(1.0, y)]
        kept_x = [(keep, x), *(((1 - keep) * law[s, i], i) for i in range(experts))]
        return [
            a * b * rest
            for (a, new_x), (b, new_y) in itertools.product(kept_x, kept_y)
            for rest in after(s + 1, new_x, new_y)
        ]

    starts = range(experts) if reference == "lagged" else (0,)
    return np.array(
        [
            law[0, x] * (law[0, y] if reference == "lagged" else 1.0) * rest
            for x in range(experts)
            for y in starts
            for rest in after(1, x, y)
        ]
    )


def divergence(first, second, alpha):
    there = first > 0
    assert np.array_equal(there, second > 0)
    logs = alpha * np.log(first[there]) + (1 - alpha) * np.log(second[there])
    return special.logsumexp(logs) / (alpha - 1)


def bound(found, alpha):
    """The least of the grid at orders of at least this one: divergences rise with the order."""
    place = int(np.searchsorted(privacy.ORDERS, alpha * (1 - 1e-12)))
    return float(found.loss().rdp[place])


CASES = [
    # experts, batches, reference, η, p, B, envelope over B·κ
    *((3, n, "none", 0.3, 0.2, 2, 1.0) for n in (2, 5)),
    (2, 4, "none", 0.1, 0.05, 1, 1.0),
    *((2, n, "lagged", 0.1, 0.05, 1, 1.0) for n in (2, 3, 4)),
    (2, 3, "lagged", 0.3, 0.3, 2, 2.0),
    (2, 4, "none", 0.5, 1.0, 1, 1.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_pair_of_neighbours_is_further_apart_than_is_charged(case):
    experts, count, reference, eta, p, size, wide = case
    envelope = wide * size * eta
    run = releases(count, size, reference, eta, p, envelope=envelope)
    rng, nearest = np.random.default_rng(5), 0.0
    for trial in range(24):
        losses = rng.integers(0, 2, (count * size, experts)) * 1.0
        other = losses.copy()
        place = trial % (count * size)
        other[place] = rng.integers(0, 2, experts)
        if trial % 3 == 0:
            losses[place], other[place] = 0.0, 1.0
        if trial % 3 == 1:
            losses[place], other[place] = np.eye(experts)[0], 1 - np.eye(experts)[0]
        both = [transcripts(each, eta, p, size, reference, p, envelope) for each in (losses, other)]
        for law in both:
            assert law.sum() == pytest.approx(1.0, abs=1e-12)
        for alpha in ALPHAS:
            exact = max(divergence(*both, alpha), divergence(*both[::-1], alpha))
            assert exact <= bound(run, alpha)
            nearest = max(nearest, exact / bound(run, alpha))
    # Of few batches the coin of the one after the replaced round is nearly all there is.
    assert nearest > 0.3


@pytest.mark.parametrize("p", [0.1, 0.9])
@pytest.mark.parametrize("reference", ["none", "lagged"])
def test_the_coin_alone_costs_what_it_tells(reference, p):
    """Two batches, draws that tell nothing: the bound is the divergence of two coins, and their rounding."""
    run = releases(2, 1, reference, 0.3, p, draw_zcdp=0.0)
    moved = 0.3 if reference == "none" else 0.6
    a, b = 1 - p, (1 - p) * math.exp(-moved)
    for place in (5, 60, 120, -1):
        alpha = privacy.ORDERS[place]
        coins = [
            np.logaddexp(
                alpha * math.log(x) + (1 - alpha) * math.log(y),
                alpha * math.log1p(-x) + (1 - alpha) * math.log1p(-y),
            )
            / (alpha - 1)
            for x, y in ((a, b), (b, a))
        ]
        assert 1.0 <= float(run.loss().rdp[place]) / max(coins) <= 1.0 + 1e-5
    # What the thesis charges for it: the logarithm of the largest ratio.
    assert max(coins) < max(moved, math.log1p((1 - p) * (1 - math.exp(-moved)) / p))


@pytest.mark.parametrize("reference", ["none", "lagged"])
def test_draws_that_are_seen_are_charged_by_the_largest_chance_of_one(reference):
    eta, p, size, n = 0.05, 0.2, 3, 7
    run = releases(n, size, reference, eta, p, reference_probability=0.3, envelope=1.5 * size * eta)
    coin = releases(2, size, reference, eta, p, envelope=1.5 * size * eta, draw_zcdp=0.0)
    coin = coin.loss().rdp
    widest = size * eta if reference == "none" else 2.5 * size * eta
    chances = [(n - 2, 1 - (1 - p) * math.exp(-widest))]
    chances += [(n - 1, 0.3)] * (reference == "lagged")
    a = privacy.ORDERS
    rest = a * eta**2 / 2
    for count, q in chances:
        moment = special.logsumexp(
            [np.log1p(-q) + 0 * a, math.log(q) + a * (a - 1) * eta**2 / 2], axis=0
        )
        rest = rest + count * moment / (a - 1)
    np.testing.assert_allclose(run.loss().rdp, coin + rest, rtol=1e-9)


def test_one_batch_costs_nothing_and_one_draw_each_is_composition():
    assert privacy.epsilon(releases(1).loss(), 1e-6) == 0.0
    eta, n = 0.05, 40
    found = releases(n, 1, "none", eta, 1.0).loss()
    np.testing.assert_allclose(found.rdp, (n - 1) * 0.5 * eta**2 * privacy.ORDERS, rtol=1e-9)


def test_the_best_real_order_is_found():
    """Of fresh draws alone ε is known at every order; and of few and small ones the grid ends too early."""
    eta, n, delta = 0.05, 40, 1e-6
    run = releases(n, 1, "none", eta, 1.0)
    rho = (n - 1) * 0.5 * eta**2

    def at(log_excess):
        a = 1 + math.exp(log_excess)
        return rho * a + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)

    best = optimize.minimize_scalar(at, bounds=(-5, 15), method="bounded").fun
    assert best <= run.epsilon_at(delta) <= best * (1 + 1e-5)
    assert run.certificate().epsilon <= best * (1 + 1e-5)
    assert run.certificate().epsilon <= float(privacy.epsilon(run.loss(), delta))
    tiny = releases(n, 1, "none", 1e-6, 1.0, delta=1e-12)
    assert tiny.epsilon_at(1e-12) < 1e-2 * float(privacy.epsilon(tiny.loss(), 1e-12))
    batch = releases(n, 1, "none", np.array([0.01, eta]), 1.0).epsilon_at(delta)
    assert batch.shape == (2,)
    assert batch[1] == run.epsilon_at(delta)


# η and p at which (T, ε) of the sheet's table are met, of one without a reference and of one with it.
POINTS = [
    (10**4, 1, "none", 0.0314, 0.0172),
    (10**4, 64, "none", 0.00327, 0.14),
    (10**6, 2, "none", 0.00258, 0.00678),
    (10**6, 16, "none", 0.000572, 0.0172),
    (10**6, 32, "lagged", 0.000448, 0.0274),
]


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_the_grid_of_orders_loses_next_to_nothing_at_planned_points(point):
    num_rounds, size, reference, eta, p = point
    run = releases(-(-num_rounds // size), size, reference, eta, p)
    exact, grid = run.epsilon_at(1e-6), float(privacy.epsilon(run.loss(), 1e-6))
    assert exact <= grid <= 1.002 * exact
    narrow = float(jax.jit(lambda r: privacy.epsilon(r.loss(), 1e-6))(run))
    assert grid <= narrow <= 1.0005 * grid
    # And the theorem of the thesis has nothing to say of them.
    assert l2p_epsilon_thesis(num_rounds, size, eta, p, 1e-6) == math.inf


def test_the_printed_epsilon_is_looser_where_it_holds():
    num_rounds, size, eta, p = 10**6, 1, 1e-4, 0.01
    log = math.log(2 * num_rounds / 1e-6)
    printed = l2p_epsilon_thesis(num_rounds, size, eta, p, 1e-6)
    drawn = num_rounds * eta**2 * p
    by_hand = 2 * eta / p + eta + 1.5 * drawn * log + math.sqrt(6 * drawn * log**2)
    assert printed == pytest.approx(by_hand, rel=1e-12)
    run = releases(num_rounds, size, "lagged", eta, p, envelope=2 * size * eta)
    assert 5 * run.certificate().epsilon < printed


@pytest.mark.parametrize(
    "changes",
    [
        *({"redraw_probability": p} for p in (0.0, -0.1, 1.1, np.nan)),
        {"envelope": 0.0999, "reference": "lagged"},
        {"reference_probability": 1.5, "reference": "lagged"},
        *({name: bad} for name in ("clip", "draw_zcdp") for bad in (-0.1, np.nan, np.inf)),
    ],
    ids=str,
)
def test_numbers_of_which_nothing_is_proven_cost_infinity(changes):
    run = releases(**changes)
    assert run.certificate().epsilon == math.inf
    assert privacy.epsilon(run.loss(), 1e-6) == math.inf
    assert jax.jit(lambda r: privacy.epsilon(r.loss(), 1e-6))(run) == np.inf


def test_draws_that_are_not_exact_cost_their_distance_under_either_law():
    exact = releases(50, 1, "lagged", 0.02, 0.1)
    assert exact.num_draws == 2 * 49
    assert exact.relation == NeighboringRelation.REPLACE_ONE
    bound = exact.certificate().epsilon
    near = releases(50, 1, "lagged", 0.02, 0.1, variation=1e-10)
    spent = near.certificate()
    assert bound < spent.epsilon < 1.01 * bound
    rest = 1e-6 - (1 + math.exp(spent.epsilon)) * 98 * 1e-10
    assert exact.epsilon_at(rest) == pytest.approx(spent.epsilon, rel=1e-9)
    assert bound < float(privacy.epsilon(near.loss(), 1e-6)) < np.inf
    far = releases(50, 1, "lagged", 0.02, 0.1, variation=1e-8)
    assert far.certificate().epsilon == math.inf
    assert privacy.epsilon(far.loss(), 1e-6) == np.inf


def test_every_number_that_tells_more_costs_more():
    base = releases(30, 2, "lagged", 0.05, 0.1)
    at = base.certificate().epsilon
    for changes in ({"clip": 0.06, "envelope": 0.12}, {"draw_zcdp": 0.002}, {"num_batches": 60}):
        assert releases(30, 2, "lagged", 0.05, 0.1, **changes).certificate().epsilon > at
    # A larger envelope hides the coin and pays with draws.
    assert releases(2, 2, "lagged", 0.05, 0.1, envelope=0.4).certificate().epsilon < (
        releases(2, 2, "lagged", 0.05, 0.1).certificate().epsilon
    )
