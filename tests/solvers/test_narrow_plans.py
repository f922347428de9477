"""Plans of numbers that are too narrow, or too small, for the arithmetic of noise: refused, or infinite.

In uint8 2·200 is 144: a sensitivity that is computed there is not that of the clip. In float32 nothing below
1.2e-38 is drawn: noise of such a scale is no noise.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax import privacy, transforms
from dpsco_jax._checks import require_wide_numbers
from dpsco_jax.solvers.user_level import finite_class, item_group_privacy, winsorized_erm
from tests.solvers.test_edited_selection import (
    ABSOLUTE,
    BUDGET,
    LINEAR,
    POINTS,
    SIZES,
    USERS,
)
from tests.support.planned import planned

CANDIDATES = jnp.asarray([-0.5, 0.0, 0.5])
NARROW = [np.uint8(200), jnp.uint8(200), jnp.int32(2**30), jnp.bfloat16(0.5), np.float16(0.5)]


def _class(**changes):
    plan = planned(finite_class.plan,
        ABSOLUTE, **SIZES, dim=1, num_candidates=3, epsilon=3.0, loss_range=(0.0, 1.0),
        stopping_probability=0.3,
    )  # fmt: skip
    return plan.replace(winsorized=False, **changes)


@pytest.mark.parametrize("value", NARROW, ids=lambda v: str(v.dtype))
def test_a_clip_in_a_narrow_dtype_is_refused(value):
    # In uint8: a range of 400 with the noise of 144, which claimed ε = 3 and cost 8.3; items: 2.0 and 7.2.
    items = planned(item_group_privacy.plan, LINEAR, **BUDGET, dim=3, num_steps=4)
    cases = [
        (finite_class, _class(bound=value), ABSOLUTE, CANDIDATES),
        (item_group_privacy, items.replace(clip_norm=value), LINEAR, jnp.zeros(3)),
    ]
    for solver, plan, objective, params in cases:

        def run(p, solver=solver, objective=objective, params=params):
            return solver.solve(jax.random.key(0), p, objective, POINTS, params)

        for solve in (run, jax.jit(run)):
            with pytest.raises(ValueError, match="plan must be of numbers of float32 or wider"):
                solve(plan)


def test_python_numbers_and_wide_arrays_are_taken():
    require_wide_numbers("tree", (1, 2.0, None, jnp.ones(2), np.float64(3.0), np.ones(2)))


@pytest.mark.parametrize(
    ("number", "winsorized"), [("bound", False), ("bound", True), ("radius", True)]
)
def test_selection_by_noise_that_cannot_be_drawn_costs_infinity(number, winsorized):
    # With middle 0 the candidates' means, of the size of the bound, were compared without noise at ε = 3.
    tiny = {"middle": 0.0, "winsorized": winsorized, number: 1e-38}
    plan = _class().replace(**tiny)
    assert math.isinf(plan.certificate().epsilon)
    assert np.all(np.isinf(plan.loss().rdp))
    solved = jax.jit(
        lambda p: finite_class.solve(jax.random.key(0), p, ABSOLUTE, POINTS, CANDIDATES)
    )(plan)
    assert np.all(np.isinf(solved.privacy.rdp))


def test_means_with_noise_that_cannot_be_drawn_cost_infinity():
    plan = planned(
        winsorized_erm.plan, LINEAR, **BUDGET, dim=3, num_steps=2, form="clipped", radius=0.2
    )
    numbers = dataclasses.replace(plan.releases, bound=1e-37)
    assert math.isinf(numbers.certificate().epsilon)
    plan = plan.replace(releases=numbers)
    solved = jax.jit(
        lambda p: winsorized_erm.solve(jax.random.key(0), p, LINEAR, POINTS, jnp.zeros(3))
    )(plan)
    assert np.all(np.isinf(solved.privacy.rdp))


def test_clipped_means_with_noise_that_cannot_be_drawn_cost_infinity():
    aggregate = transforms.clipped_mean(1e-37, USERS)
    release = transforms.privatize(aggregate, jax.random.key(0), 0.1)
    state = release.init(jnp.zeros(3))
    _, state = jax.jit(release.update)(jnp.ones((USERS, 3)), state)
    assert np.all(np.isinf(privacy.privacy_spent(state).rdp))
