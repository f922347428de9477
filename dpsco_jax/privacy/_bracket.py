"""A bracket around the end of a budget, which closes by interpolation from both sides.

It is regula falsi, with a bisection where two interpolations gain less than one. Where the budget holds at
``held`` at first, it was seen to hold there after every turn. A turn is one evaluation; it runs inside
``jit`` and ``vmap`` for JAX arrays, else in NumPy.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Bracket(NamedTuple):
    """A value at which the budget holds, one at which it does not, and how fast they approach.

    Attributes:
        turns: how many evaluations were made.
        held: a value at which the budget holds.
        broken: a value at which it does not.
        at_held: by how much the budget is exceeded at ``held``, on a scale of logarithms; at most 0.
        at_broken: by how much it is exceeded at ``broken``; above 0.
        size: of the bracket before the last evaluation: |log(broken / held)|.
        size_before: that one evaluation earlier; ``inf`` after a bisection.
        aside: by which share of the bracket the next interpolation aims past the solution.
    """

    turns: Any
    held: Any
    broken: Any
    at_held: Any
    at_broken: Any
    size: Any
    size_before: Any
    aside: Any

    def narrowed(self, xp: Any, excess: Callable[[Any], Any], tolerance: float) -> "Bracket":
        """The bracket after one more evaluation; unchanged where it is narrow enough."""
        width = xp.log(self.broken / self.held)  # of either sign
        size = xp.abs(width)
        # Interpolated points fall a little to the one side and to the other of the solution, by turns,
        # and so enclose it; where two of them gain less than a bisection does, one follows.
        slow = size > 0.5 * self.size_before
        share = xp.where(slow, 0.5, self.at_held / (self.at_held - self.at_broken) + self.aside)
        share = xp.clip(
            share * size, 0.3 * tolerance, xp.maximum(size, tolerance) - 0.3 * tolerance
        )
        value = self.held * xp.exp(xp.sign(width) * share)
        found = excess(value)
        inwards, outwards = (size > tolerance) & (found <= 0), (size > tolerance) & (found > 0)
        return Bracket(
            turns=self.turns + 1,
            held=xp.where(inwards, value, self.held),
            broken=xp.where(outwards, value, self.broken),
            at_held=xp.where(inwards, found, self.at_held),
            at_broken=xp.where(outwards, found, self.at_broken),
            size=size,
            size_before=xp.where(slow, xp.inf, self.size),
            aside=xp.where(found <= 0, 0.01, -0.01),
        )

    def closed(self, xp: Any, excess: Callable[[Any], Any]) -> "Bracket":
        """The bracket once its values agree to 2e-7, or to what their dtype holds."""
        tolerance = max(4.0 * float(xp.finfo(self.held.dtype).eps), 2e-7)
        most = 4 * math.ceil(math.log2(100.0 / tolerance))  # bisection alone takes a quarter of it

        def narrowed(bracket: Bracket) -> Bracket:
            return bracket.narrowed(xp, excess, tolerance)

        def unfinished(bracket: Bracket) -> Any:
            wide = xp.abs(xp.log(bracket.broken / bracket.held)) > tolerance
            return (bracket.turns < most) & xp.any(wide)

        if xp is jnp:
            return jax.lax.while_loop(unfinished, narrowed, self)
        bracket = self
        while unfinished(bracket):
            bracket = narrowed(bracket)
        return bracket
