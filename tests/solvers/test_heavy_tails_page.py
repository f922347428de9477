"""The block of docs/heavy_tails.md runs as printed, and its numbers are those of the plans."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from dpsco_jax import Budget, Problem
from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.rates.heavy_tailed import Moments
from dpsco_jax.solvers.heavy_tailed import (
    known_lipschitz,
    localized_clipped_sgd,
    localized_erm,
    phased_clipped_glm,
    population_localize,
)

PAGE = (Path(__file__).parents[2] / "docs" / "heavy_tails.md").read_text()
BALL = domains.ball(2.0)
MOMENTS = {"moments": Moments(4.0, 9**0.25, 1.8**0.5, 9 / 7)}


@pytest.mark.slow
def test_the_block_runs_as_printed():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    session = {}
    exec(compile(block, "docs/heavy_tails.md", "exec"), session)
    plan, params = session["plan"], np.asarray(session["solution"].params)
    assert plan.certificate().epsilon <= 1.0
    # Rows that are uniform in the ball have covariance I/(d + 2).
    excess = np.sum(np.square(params - np.asarray(session["truth"]))) / (2 * 7)
    assert f"ends {excess:.3f} above the minimum" in PAGE
    assert f"bound is {plan.excess_bound:.2f}" in PAGE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "loss", "given", "figures"),
    [
        (phased_clipped_glm, losses.huber(10.0, domain=BALL), MOMENTS, "0.79, 0.58, 0.177, 0.038"),
        (
            population_localize,
            losses.absolute(1e4, BALL),
            MOMENTS | {"constants": "tight"},
            "2.80, 2.22, 1.32, 1.12",
        ),
        (
            localized_erm,
            losses.absolute(1.0, BALL),
            {"constants": "tight"},
            "0.69, 0.56, 0.35, 0.32",
        ),
        (
            known_lipschitz,
            losses.absolute(1e4, BALL),
            MOMENTS | {"constants": "tight"},
            "1.61, 1.24, 0.63, 0.43",
        ),
        (localized_clipped_sgd, losses.huber(1.0, domain=BALL), MOMENTS, "66, 33, 6.6, 0.67"),
    ],
)
def test_the_bounds_of_the_table_are_those_of_the_plans(module, loss, given, figures):
    assert figures in PAGE
    printed = [float(each) for each in figures.split(", ")]
    with jax.enable_x64(True):
        for users, wanted in zip((500, 10**3, 10**4, 10**5), printed, strict=True):
            problem = Problem(loss, num_users=users, dim=10, distance=1.0)
            plan = module.plan(problem, Budget(1.0, 1e-6), **given)
            bound = getattr(plan, "details", {}).get("high_probability_bound", plan.excess_bound)
            np.testing.assert_allclose(float(bound), wanted, rtol=0.013)
