"""Softmax for labels of any sign, so that one table of data serves regression and classes.

``SETTINGS`` are those of a row of ``private_table`` that has this loss. The start is wrong and sure of it for
users of two classes: with shorter gradients, or more noise, the first radius that is tried moves nobody.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpsco_jax.geometry import domains
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Objective

CLASSES = 3


def _classified() -> Objective:
    """Labels below zero are class 0, zero is class 1, those above are class 2; others are none."""
    objective = losses.softmax(1.0, CLASSES, domains.ball(2.0))
    model = objective.linear_model
    assert model is not None

    def named(label: Any) -> Any:
        return jnp.where(jnp.isfinite(label), jnp.sign(label) + 1.0, jnp.nan)

    return objective._replace(
        loss=lambda params, item: objective.loss(params, item._replace(label=named(item.label))),
        linear_model=model._replace(
            link=lambda margins, label: model.link(margins, named(label)),
            derivative=lambda margins, label: model.derivative(margins, named(label)),
        ),
        label_range=None,
    )


SETTINGS = {
    "objective": _classified(),
    "params": 1.4 * np.outer(np.eye(3)[1], [1.0, 0.0, -1.0]),
    "dim": 9,
    "epsilon": 40.0,
    "num_steps": 3,
    "start_steps": 2,
    "radius_steps": 2,
    "matrix": True,
    "intercept": 0,
    "entry_bound": 1.0,
}
