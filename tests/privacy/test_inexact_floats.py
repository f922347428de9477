"""What an inexact draw costs of numbers that are traced, invalid, or at the ends of floats."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy

NAN, INF = math.nan, math.inf
GOOD = {"mu": 0.2, "variation": 1e-9, "epsilon": 1.0, "delta": 1e-5}
BAD = {
    "mu": [-0.2, -1e30, NAN, INF],
    "variation": [-1e-9, -1.0, 1.5, NAN, INF, -INF],
    "epsilon": [-1.0, 0.0, NAN, INF],
    "delta": [-1e-5, 0.0, 1.0, 1.5, NAN],
}


@jax.jit
@jax.vmap
def _traced(mu, variation, epsilon, delta):
    loss = privacy.inexact_loss(mu, variation, epsilon, delta)
    return loss, privacy.epsilon(loss, 1e-2)


def _columns(rows):
    return [jnp.asarray(column, jnp.float32) for column in zip(*rows, strict=True)]


def test_traced_numbers_out_of_range_cost_infinitely_much():
    rows = [GOOD | {name: value} for name, values in BAD.items() for value in values]
    loss, spent = _traced(*_columns([row.values() for row in [GOOD, *rows]]))
    assert np.isfinite(spent[0])
    for row, rdp, failure, epsilon in zip(
        rows, loss.rdp[1:], loss.delta[1:], spent[1:], strict=True
    ):
        assert np.all(np.isinf(rdp)), row
        assert 0 <= failure <= 1, row
        assert np.isinf(epsilon), row


@pytest.mark.parametrize("name", BAD)
def test_concrete_numbers_out_of_range_are_refused(name):
    for value in (*BAD[name], True):
        with pytest.raises(ValueError, match=rf"^{name} must be"):
            privacy.inexact_loss(**GOOD | {name: value})
        if name != "epsilon" and value not in (INF, -INF):
            certified = {key: GOOD[key] for key in ("mu", "variation", "delta")} | {name: value}
            with pytest.raises(ValueError, match=rf"^{name} must be"):
                privacy.inexact_certificate(**certified, relation=NeighboringRelation.REPLACE_ONE)


def _rows():
    """Planned and unplanned, as float32 has them; none so near that rounding chooses the other loss."""
    rows = []
    for epsilon, delta, share in itertools.product(
        [0.1, 1.0, 4.0], [1e-9, 1e-6, 1e-3], [1e-10, 1e-5, 1e-3, 0.03, 0.3, 0.6]
    ):
        tau = share * delta / (1 + math.exp(epsilon))
        for factor in (0.5, 1.0):
            mu = factor * privacy.gdp_within(epsilon, delta, tau)
            rows.append(tuple(map(float, np.float32([mu, tau, epsilon, delta]))))
    return rows


def test_single_precision_claims_no_less():
    """A float32 run and the host's float64: the same loss is taken, and no order, failure or ε is below."""
    rows = _rows()
    found, _ = _traced(*_columns(rows))
    spent = jax.jit(jax.vmap(privacy.epsilon))(found, _columns(rows)[3])
    kinds = set()
    for row, rdp, failure, epsilon in zip(rows, found.rdp, found.delta, spent, strict=True):
        exact = privacy.inexact_loss(*row)
        kinds.add(round(float(exact.delta) / row[3], 3))
        if np.isinf(exact.rdp).all():
            assert np.all(np.isinf(rdp)), row
            continue
        assert np.all(rdp >= exact.rdp * (1 - 1e-6)), row
        assert failure >= exact.delta * (1 - 1e-6), row
        assert epsilon >= privacy.epsilon(exact, row[3]) * (1 - 1e-6), row
        # And not much more: one more of 64 steps.
        if np.isfinite(rdp).all():
            assert epsilon <= privacy.epsilon(exact, row[3]) * 1.04, row
    assert {0.5, 0.8} <= kinds


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.5, 2.0**-10), (4.0, 2.0**-20), (1.0, 2.0**-30), (60.0, 2.0**-10)]
)
def test_what_is_just_too_much_is_not_proven(epsilon, delta):
    """Neighbouring float32 μ around the one that has 0.8·δ at ε: above it the next ε is claimed."""
    tau = np.float32(0.25 * delta / (1 + math.exp(epsilon)))
    most = privacy.gdp_within(epsilon, float(np.float32(0.8) * np.float32(delta)), float(tau))
    sizes = most * (1 + np.concatenate([np.linspace(-2e-3, 0.0, 400), np.linspace(0.0, 2e-5, 100)]))
    rows = [(float(np.float32(mu)), tau, epsilon, delta) for mu in sizes]
    found, _ = _traced(*_columns(rows))
    claimed = np.asarray(found.rdp)[:, -1]
    allowed = np.array([mu for mu, *_ in rows]) <= most
    assert np.all(claimed[~allowed] >= epsilon * (1 + 1 / 65))
    # What is lost to rounding is little: some, below, are proven at ε itself.
    assert np.any(claimed[allowed] <= epsilon * (1 + 1e-4))


@pytest.mark.parametrize("tau", [0.0, 1e-40, 1e-38])
def test_a_distance_that_is_flushed_counts(tau):
    """At ε = 84 the largest τ that reads as zero adds 0.04 to δ."""
    mu = privacy.gdp_within(84.0, 1e-4)
    for spent in (privacy.inexact_loss, jax.jit(privacy.inexact_loss)):
        assert np.all(np.isinf(spent(mu, jnp.float32(tau), 84.0, 1e-3).rdp))
        assert np.all(np.isinf(spent(mu, 1e-40, jnp.float32(84.0), 1e-3).rdp))
    assert np.all(np.isfinite(privacy.inexact_loss(mu, 0.0, jnp.float32(84.0), 1e-3).rdp))
    small = jax.jit(privacy.inexact_loss)(0.2, jnp.float32(tau), 1.0, 1e-5)
    assert privacy.epsilon(small, 1e-5) < 1.3
    assert small.delta > 0


def test_what_is_tried_beyond_the_exponential_is_not_proven():
    """Where μ asks for an ε of 80 and the hint is 60: τ·e^80 is 1e-3, and e^1400 is no float."""
    mu = privacy.gdp_within(80.0, 5e-5)
    loss = jax.jit(privacy.inexact_loss)(mu, jnp.float32(2e-38), 60.0, 1e-4)
    assert np.all(np.isinf(loss.rdp))
    mu, relation = privacy.gdp_within(712.0, 5e-4), NeighboringRelation.REPLACE_ONE
    for tau, least in ((1e-313, 705.0), (1e-310, INF)):
        assert np.all(np.isinf(privacy.inexact_loss(mu, tau, 700.0, 1e-3).rdp))
        found = privacy.inexact_certificate(mu, tau, 1e-3, relation).epsilon
        assert found == pytest.approx(least, rel=1e-2)
    for epsilon in (720.0, 1e300):
        assert np.all(np.isinf(privacy.inexact_loss(0.2, 1e-9, epsilon, 1e-5).rdp))


@pytest.mark.parametrize("mu", [0.0, 1e-40, 1e-30, 1e-12, 1e12, 1e38])
def test_sizes_at_the_ends_of_floats(mu):
    for spent in (privacy.inexact_loss, jax.jit(privacy.inexact_loss)):
        loss = spent(jnp.float32(mu), jnp.float32(1e-8), 1.0, 1e-5)
        assert not np.any(np.isnan(loss.rdp))
        if mu < 1:
            assert privacy.epsilon(loss, 1e-5) < 1.1
        else:
            assert np.all(np.isinf(loss.rdp))
