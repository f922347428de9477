"""Online learning: a point in every round, before its loss is seen; all points together are private."""

from dpsco_jax.solvers.online import (
    batched_redraw,
    experts,
    fake_switch,
    lazy_to_private,
    shrinking_dartboard,
)

__all__ = ["batched_redraw", "experts", "fake_switch", "lazy_to_private", "shrinking_dartboard"]
