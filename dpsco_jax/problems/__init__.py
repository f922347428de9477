"""What is optimized, on whose data: objectives, users, losses, synthetic and real problems."""

from dpsco_jax.problems.objective import Example, LinearModel, Objective, OneHot
from dpsco_jax.problems.users import UserData, from_frame, mean_loss, split_users, user_loss

__all__ = [
    "Example",
    "LinearModel",
    "Objective",
    "OneHot",
    "UserData",
    "from_frame",
    "mean_loss",
    "split_users",
    "user_loss",
]
