"""Winsorized means of the first rows: those of these rows alone, whatever the others hold."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import _stacking
from dpsco_jax.mechanisms.winsorized import private_range
from dpsco_jax.mechanisms.winsorized import winsorized_mean as winsorized
from dpsco_jax.mechanisms.winsorized.winsorized_releases import WinsorizedReleases

SIZES, DIM = (21, 40), 3
NUMBERS = {
    "radius": 0.5, "coordinate_radius": 0.3, "bin_width": 0.15, "range_epsilon": 0.7,
    "coarse_multiplier": 0.6, "ball_radius": 1.5, "failure": 1e-5, "epsilon": 4.0, "delta": 1e-5,
}  # fmt: skip


def _releases(form):
    """Phases of which no two numbers are the same."""
    return [
        WinsorizedReleases(
            num_users=users, dim=DIM, num_queries=2 + i, form=form, bound=2.0 + i,
            noise_multiplier=0.4 + i, **{name: x * (1 + 0.3 * i) for name, x in NUMBERS.items()},
        )
        for i, users in enumerate(SIZES)
    ]  # fmt: skip


def _of_turn(stacked, i):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), stacked)


@pytest.mark.parametrize(
    "form",
    [
        "refined",
        *(
            pytest.param(form, marks=pytest.mark.slow)
            for form in ("clipped", "winsorized", "recentred", "laplace")
        ),
    ],
)
def test_the_mean_of_a_turn_is_that_of_its_users_alone(form):
    phases = _releases(form)
    stacked = _stacking.stacked([phase.lowered() for phase in phases])
    rows = np.random.default_rng(0).normal(size=(SIZES[1], DIM)).astype(np.float32)
    rows[5] = np.nan
    others = np.where(np.arange(SIZES[1])[:, None] < SIZES[0], rows, np.nan)
    in_turn = jax.jit(winsorized.winsorized_mean)
    for i, (phase, given) in enumerate(zip(phases, (others, rows), strict=True)):
        if i and form == "refined":  # takes long to compile
            continue
        alone = jax.jit(functools.partial(winsorized.winsorized_mean, releases=phase))
        wanted = alone(jax.random.key(i), rows[: phase.num_users])
        found = in_turn(jax.random.key(i), given, _of_turn(stacked, i))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert np.all(np.isfinite(found))


def test_what_a_turn_is_charged_and_how_far_it_moves_are_its_own_phases():
    for form in ("clipped", "refined", "laplace"):
        phases = _releases(form)
        stacked = _stacking.stacked([phase.lowered() for phase in phases])
        for i, phase in enumerate(phases):
            turn = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
            for found, wanted in zip(turn.cost, phase.query_loss(), strict=True):
                np.testing.assert_array_equal(found, wanted)
            assert turn.noise_scale == phase.noise_multiplier * phase.sensitivity
            assert turn.coarse_stddev == phase.coarse_multiplier * phase.coarse_sensitivity
            assert (turn.num_users, turn.num_queries) == (phase.num_users, phase.num_queries)
    phases = _releases("clipped")
    bad = [phases[0], dataclasses.replace(phases[1], noise_multiplier=0.0)]
    stacked = _stacking.stacked([phase.lowered() for phase in bad])
    assert np.isfinite(stacked.cost.rdp[0]).any()
    assert not np.isfinite(stacked.cost.rdp[1]).any()
    with pytest.raises(ValueError, match="values must be of one structure"):
        _stacking.stacked([phases[0].lowered(), _releases("refined")[1].lowered()])


@pytest.mark.parametrize("users", [1, 7])
def test_an_interval_of_the_first_values_is_that_of_these_alone(users):
    values = np.random.default_rng(users).normal(size=12).astype(np.float32)
    # Two in one bin, and one that no float is.
    values[:2] = 0.31
    values[users:] = np.resize([np.nan, 5.0, -5.0], 12 - users)
    draw = functools.partial(
        private_range.private_range, epsilon=0.8, radius=0.2, bound=2.0, bin_width=0.1
    )
    one = jax.jit(jax.vmap(lambda k, n: draw(k, values, num_users=n), in_axes=(0, None)))
    other = jax.jit(jax.vmap(lambda k: draw(k, values[:users])))
    keys = jax.random.split(jax.random.key(0), 200)
    found, wanted = one(keys, jnp.asarray(users)), other(jax.random.clone(keys))
    np.testing.assert_array_equal(found.center, wanted.center)
    assert len(np.unique(found.center)) > 20
    np.testing.assert_array_equal(found.half_width, wanted.half_width)


def test_variables_of_segments_are_those_of_a_program_of_this_size():
    """All digits of them: the second word of a draw shows where the first is near an end."""
    rows, users = 12, 5
    keys = jax.random.split(jax.random.key(0), 2000)
    weights = jnp.zeros(2 * rows + 1, jnp.float32)
    found = jax.jit(jax.vmap(lambda k: private_range._gumbel(k, weights)))(keys)
    alone = jax.jit(jax.vmap(lambda k: private_range._gumbel(k, weights[: 2 * users + 1])))
    wanted = alone(jax.random.clone(keys))
    live = np.concatenate([np.arange(users + 1), rows + 1 + np.arange(users)])
    np.testing.assert_array_equal(found[:, live], wanted)
    assert all(len(np.unique(row)) == len(row) for row in np.asarray(wanted[:50]))


def test_a_number_of_users_that_is_none_is_refused():
    for users in (0, 13, 5):
        given = users if users == 5 else jnp.asarray(users)
        with pytest.raises(ValueError, match="num_users must be an array of one integer"):
            private_range.private_range(
                jax.random.key(0), np.zeros(12), 1.0, 0.2, 2.0, num_users=given
            )
