"""What a run may cost: (ε, δ).

What it computes: nothing by itself. Every ``plan`` of a private solver takes a ``Budget`` second, and
calibrates its noise so that the certificate of all that a run releases stays within it.

Source: Dwork, McSherry, Nissim and Smith 2006; Dwork, Kenthapadi, McSherry, Mironov and Naor 2006.

Formal guarantee: none of its own; the neighbouring relation is the solver's.

Cost: none.
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

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> from dpsco_jax import privacy
        >>> privacy.Budget(1.0, 1e-5)
        Budget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _checks.require_real("epsilon", self.epsilon, 0))
        delta = _checks.require_real("delta", self.delta, 0, 1, closed=True)
        object.__setattr__(self, "delta", delta)
