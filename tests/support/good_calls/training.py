"""Calls of ``dpsco_jax.training`` that work, where the common vocabulary does not say it."""

from typing import Any

from tests.support import kinds
from tests.support.kinds import Kind

GOOD: dict[str, dict[str, Any]] = {
    "training.plan": {
        "loss": kinds.FUNCTION(lambda params, item: 0.0),
        "num_users": kinds.COUNT(100),
        "batch_size": Kind("integer in [1, num_users]", (101, *kinds.COUNT.bad))(10),
        "num_steps": kinds.COUNT(3),
        "clip_norm": Kind("real > 0, or a tree", kinds.POSITIVE.bad)(1.0),
        "delta": Kind("in (0, 1/N)", (0.01, *kinds.OPEN_PROBABILITY.bad))(1e-3),
        "epsilon": kinds.POSITIVE(1.0),
        # Given beside ε every value is refused.
        "noise_multiplier": kinds.ANY(None),
        "sampling": kinds.CHOICE("poisson"),
        "normalize": kinds.POSITIVE.but(None)(None),
        "trainable": Kind("tree of booleans", (False, 1.0, "yes", None, {}))(True),
    },
}

EXEMPT: dict[tuple[str, str], str] = {
    ("training.Training", "*"): "made by training.plan",
    ("training.stored", "*"): "takes a State, and says so: tests/training",
}
