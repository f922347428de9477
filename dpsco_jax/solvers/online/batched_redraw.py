"""Private experts with a fresh draw for every batch: the baseline that no coin tells anything of.

What it computes: x_s is drawn anew for each batch of B rounds from exp(-η·Σ losses before it); it is
``experts`` with p = 1.

Source: own; composition of the exponential mechanism (Dong, Durfee and Rogers 2020).

Formal guarantee: that of ``experts``, without coins: n - 1 draws that see the losses, η²/2-zCDP each.
Expected regret: log(d)/η + ηTB/8, about √T·(log d)^(3/4)·ρ^(-1/4) at the best B: 517, 959 and 2,868 at ε = 4,
1 and 0.1 for T = 10,000, d = 1000, δ = 1e-6.

Cost: that of ``experts``, with ⌈T/B⌉ draws.

Example:
    >>> from dpsco_jax import Budget
    >>> from dpsco_jax.solvers.online import batched_redraw
    >>> batched_redraw.plan(10_000, 1000, Budget(1.0, 1e-6)).batch_size
    16
"""

from typing import Annotated

from dpsco_jax import privacy
from dpsco_jax._argument_kinds import Count, checked, integer
from dpsco_jax.solvers.online import experts
from dpsco_jax.solvers.online.experts import Plan, State, init, solve, step

__all__ = ["Plan", "State", "init", "plan", "solve", "step"]


@checked
def plan(
    num_rounds: Count,
    dim: Annotated[int, integer(2)],
    budget: privacy.Budget,
    *,
    batch_size: Count | None = None,
) -> Plan:
    """Finds B and η with the least bound on the regret for a budget.

    Args:
        num_rounds: T.
        dim: d, experts.
        budget: (ε, δ) of everything that is played, δ above 0.
        batch_size: B ≤ T; a power of two if left out.

    Raises:
        ValueError: an argument is out of range, or δ is 0, or at least 1/T without ``allow_large_delta``.
    """
    made = experts.plan(num_rounds, dim, budget, batch_size=batch_size, redraw_probability=1.0)
    return made.replace(title="private experts, drawn anew for each batch")
