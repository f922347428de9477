"""Runs whose sizes are numbers: edited by hand, they cost infinity, whatever they were proven for."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax._conditions import same_numbers
from dpsco_jax.mechanisms.winsorized.winsorized_calibration import calibrate_winsorized
from dpsco_jax.privacy.concentrated.threshold_phase import calibrate_concentrated

USERS, DIM = 100, 2


@functools.cache
def _tested():
    return calibrate_concentrated(USERS, 2, 8.0, 1e-3).lowered()


@functools.cache
def _winsorized(form):
    made = calibrate_winsorized(USERS, DIM, 2, 20.0, 1e-3, radius=0.1, bound=1.0, form="clipped")
    widths = {"coordinate_radius": 0.15, "bin_width": 0.08} if form == "winsorized" else {}
    return dataclasses.replace(made, form=form, range_epsilon=5.0, **widths).lowered()


def _epsilon(chain):
    params = jnp.zeros(DIM)
    state = chain.update(jnp.zeros((USERS, DIM)), chain.init(params), params)[1]
    return float(privacy.epsilon(privacy.privacy_spent(state), 1e-3))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_stddev", 1e-3),
        ("num_steps", 50),
        ("sensitivity", 1e-3),
        ("threshold", 1.0),
        ("test_epsilon", 50.0),
        ("keep_level", 0.51),
        ("test", "stream"),
        ("relation", NeighboringRelation.REPLACE_SPECIAL),
    ],
)
def test_an_edited_phase_of_tested_means(name, value):
    release = functools.partial(transforms.outlier_removed_mean, radius=1.0, key=jax.random.key(0))
    assert _epsilon(release(_tested())) < 20
    assert math.isinf(_epsilon(release(dataclasses.replace(_tested(), **{name: value}))))


@pytest.mark.parametrize(
    ("form", "name", "value"),
    [
        ("clipped", "noise_multiplier", 1e-3),
        ("clipped", "noise_scale", 1e-3),
        ("clipped", "bound", 50.0),
        ("winsorized", "range_epsilon", 50.0),
        ("winsorized", "coordinate_radius", 9.0),
        ("winsorized", "form", "clipped"),
    ],
)
def test_edited_winsorized_means(form, name, value):
    release = functools.partial(transforms.winsorized_mean, key=jax.random.key(0))
    assert math.isfinite(_epsilon(release(_winsorized(form))))
    edited = dataclasses.replace(_winsorized(form), **{name: value})
    assert math.isinf(_epsilon(release(edited)))


def test_numbers_are_the_same_nan_for_nan_and_in_one_structure():
    assert same_numbers((1, np.nan, (2.0,)), (1.0, np.nan, (2.0,)))
    assert not same_numbers((1, 2), (1, 3))
    assert not same_numbers((1, np.nan), (1, 2.0))
    assert not same_numbers((1,), (1, 2))
    assert jax.jit(lambda x: same_numbers((x,), (2.0,)))(2.0)
