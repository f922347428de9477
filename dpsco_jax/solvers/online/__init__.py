"""Online learning: a point in every round, before its loss is seen; all points together are private."""

from dpsco_jax.solvers.online import (
    batched_redraw,
    convex,
    experts,
    fake_switch,
    lazy_to_private,
    noised_leader,
    shrinking_dartboard,
)

__all__ = [
    "batched_redraw",
    "convex",
    "experts",
    "fake_switch",
    "lazy_to_private",
    "noised_leader",
    "shrinking_dartboard",
]
