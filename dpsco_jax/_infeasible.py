"""A refusal that a search may catch: every argument works by itself, and no plan exists for all of them."""

from collections.abc import Mapping

__all__ = ["Infeasible"]


class Infeasible(ValueError):  # noqa: N818 - what is said of a problem, not of a program
    """No plan exists for these arguments together, though each of them is one that works.

    Calibrations and schedules raise it; searches catch it, and nothing else, to try other sizes. An argument
    that works nowhere is a plain ``ValueError``, which no search hides.

    Attributes:
        needed: for some arguments the value, the others as they are, from which on a plan exists, such as
            ``{"num_users": 1200}``. Empty where no value of a single argument would do, or none is known.

    Example:
        >>> from dpsco_jax import Infeasible, privacy
        >>> try:
        ...     privacy.calibrate_concentrated(20, 10, epsilon=1.0, delta=1e-5)
        ... except Infeasible as refusal:
        ...     print(sorted(refusal.needed))
        ['num_users']
    """

    def __init__(self, message: str, needed: Mapping[str, float] | None = None) -> None:
        super().__init__(message)
        self.needed = dict(needed or {})
