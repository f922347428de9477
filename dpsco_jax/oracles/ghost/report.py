"""Which way the gradients of every parameter go, in words and numbers, before anything runs.

What it computes: for each leaf of the parameters whether its clipped sum comes from factors of the
gradients or from the gradients themselves, why, and how many numbers are held for an example.

Formal guarantee: the report is of the same decision that ``sums`` makes.

Cost: a trace of the loss, and of its derivatives.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpsco_jax import _checks
from dpsco_jax.oracles.ghost import _backward, _leaves
from dpsco_jax.oracles.ghost._program import Program


class LeafReport(NamedTuple):
    """The way of one leaf.

    Attributes:
        path: of the leaf in the parameters.
        shape: of the leaf.
        way: ``"factors"``, ``"products"``, ``"rows"`` or ``"unused"``: see ``explain``.
        why: in words.
        numbers_held: for one example, beside the activations of the loss; what was looked up counts, as a
            look-up of whole matrices, by an index in a loop, holds each of them for every example.
    """

    path: str
    shape: tuple[int, ...]
    way: str
    why: str
    numbers_held: int


class Report(NamedTuple):
    """The ways of all leaves; printed, it is a table.

    Attributes:
        leaves: in the order of the parameters.
        not_kept: what the loss asks not to hold and is held all the same, in words: see ``explain``.
    """

    leaves: tuple[LeafReport, ...]
    not_kept: tuple[str, ...] = ()

    @property
    def numbers_held(self) -> int:
        """For one example, over all leaves."""
        return sum(leaf.numbers_held for leaf in self.leaves)

    def __str__(self) -> str:
        widths = [max(len(row[i]) for row in self._rows()) for i in range(3)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            + f"  {row[3]}"
            for row in self._rows()
        ]
        total = f"{self.numbers_held:,} numbers held for an example"
        return "\n".join([*lines, total, *self.not_kept])

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [(x.path, str(list(x.shape)), x.way, x.why) for x in self.leaves]


def explain(loss: Callable[[Any, Any], Any], params: Any, example: Any) -> Report:
    """How ``clipped_sum`` gets the sum of clipped gradients of this loss, leaf by leaf.

    - ``"factors"``: norms and sums come from activations and cotangents; no gradient is built. Of a
      table that is looked up many times "equal rows added up" says that its norm is that of at most as many
      rows, whatever its size.
    - ``"products"``: the gradient of every example is built from them, since it is small beside them.
    - ``"rows"``: the gradient of every example is built by differentiating the equations where the leaf
      comes in. This is always right, and dear for large leaves: the reason says what to write otherwise. A
      loss that cannot be taken apart goes this way as a whole, as by ``jax.vmap(jax.grad(loss))``; the reason
      names the rule for derivatives that asks what is differentiated, or the error.
    - ``"unused"``: the loss does not depend on the leaf.

    ``jax.checkpoint`` is kept: what stands inside is computed again on the way back. So are loops (``scan``,
    ``lax.map``), of which one trip is held at a time where the loss says so. But what enters a use of
    parameters there, and the cotangent of what leaves it, is needed for norms and sums, and held for all
    trips: ``not_kept`` says how many numbers these are for an example.

    Args:
        loss: ``loss(params, example)``.
        params: pytree of real floating leaves, or of shapes (``jax.ShapeDtypeStruct``).
        example: one example, or its shapes.

    Returns:
        A ``Report``, to be printed.

    Raises:
        ValueError: the loss or the examples are such as ``clipped_sum`` refuses.
    """
    _checks.require_callable("loss", loss)
    _checks.require_real_leaves("params", params)
    paths = jax.tree_util.tree_leaves_with_path(params)
    program = Program(loss, params, example)
    ways: list[_leaves.Way] = []

    def taken_apart(leaves: Any, examples: Any) -> None:
        ways.extend(_backward.taken_apart(program, leaves, examples).ways)

    one = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((1, *jnp.shape(x)), jnp.result_type(x)), example
    )
    jax.eval_shape(taken_apart, jax.tree.leaves(params), one)
    leaves = []
    for (path, leaf), way in zip(paths, ways, strict=True):
        size = math.prod(leaf.shape)
        held = {"factors": _held(way), "unused": 0}.get(way.name, size)
        name = jax.tree_util.keystr(path) or "params"
        leaves.append(LeafReport(name, tuple(leaf.shape), way.name, way.why, held))
    return Report(tuple(leaves), _not_kept(program))


def _not_kept(program: Program) -> tuple[str, ...]:
    if program.whole is not None:
        return ()
    found = []
    for where, uses in (
        (
            "jax.checkpoint: what is inside is computed again, but",
            [u for u in program.uses if u.recomputed],
        ),
        (
            "loops: one trip after the other, but for all of them",
            [u for u in program.uses if u.loops],
        ),
    ):
        if uses:
            numbers = sum(use.numbers_held for use in uses)
            what = "what enters and leaves the uses of parameters is held"
            found.append(f"{where} {what}, {numbers:,} numbers for an example")
    return tuple(found)


def _held(way: _leaves.Way) -> int:
    if way.merged:
        stack, number, _, columns = way.uses[0].sizes
        return stack * number * columns
    if not way.uses:
        return 0
    number = sum(use.sizes[1] for use in way.uses)
    stack = way.uses[0].sizes[0]
    pairs = stack * number**2 if number > 1 else 0
    return pairs + sum(stack * u.sizes[1] * u.sizes[3] for u in way.uses if u.rule.looked_up)
