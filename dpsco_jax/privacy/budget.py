"""What a run may cost: (ε, δ).

What it holds: every ``plan`` of a private solver takes a ``Budget`` second, and
calibrates its noise so that the certificate of all that a run releases stays within it.

Source: Dwork, McSherry, Nissim and Smith 2006; Dwork, Kenthapadi, McSherry, Mironov and Naor 2006.

Formal guarantee: the neighbouring relation is the solver's.
"""

import dataclasses

from dpsco_jax import _checks

__all__ = ["Budget"]


@dataclasses.dataclass(frozen=True)
class Budget:
    """(ε, δ) of everything that a run releases.

    Attributes:
        epsilon: ε in (0, inf).
        delta: δ in [0, 1). Zero, pure differential privacy, is more than a mechanism with Gaussian noise can
            give: solvers that add it refuse zero.
        allow_large_delta: whether plans may have a δ of at least one over the number of users. They refuse
            it otherwise, for it says next to nothing: to publish all data of one user, chosen at random, is
            (0, 1/N)-DP.

    Example:
        >>> from dpsco_jax import privacy
        >>> privacy.Budget(1.0, 1e-5)
        Budget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float = 0.0
    allow_large_delta: bool = dataclasses.field(default=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _checks.require_real("epsilon", self.epsilon, 0))
        delta = _checks.require_real("delta", self.delta, 0, 1, closed=True)
        object.__setattr__(self, "delta", delta)
        _checks.require_flag("allow_large_delta", self.allow_large_delta)

    def require_for(self, num_users: int) -> None:
        """``ValueError`` where δ is one over the number of users or more, unless that is insisted on.

        Args:
            num_users: N, public.
        """
        if self.delta * num_users >= 1.0 and not self.allow_large_delta:
            raise ValueError(
                f"delta must be below one over the number of users, 1/{num_users} = {1 / num_users:.4g},"
                f" got {self.delta!r}: a mechanism that publishes everything of one user, chosen at random, "
                "keeps to such a budget. Take a much smaller one; allow_large_delta=True insists on this one"
            )
