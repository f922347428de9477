"""A loss taken apart at its uses of parameters: run with taps on them, and what is held at each.

From the traced loss of one example come

- the list of its uses: equations where parameters, or functions of parameters alone, meet data;
- ``held``: the operands of every use that do not depend on data, as a function of the parameters. What is
  used in a loop is stacked over the trips, if it differs between them;
- ``run``: the loss of one example, with a tap added to every result of every use, whose derivative is the
  cotangent there (Goodfellow 2015; Bu et al. 2023), and the operands of the uses that do depend on data.

The gradient of the loss is the sum over uses of the derivative of each in what it holds, applied to the
cotangents of its taps, carried back to the parameters through ``held``.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from dpsco_jax import _effects, _record_keys
from dpsco_jax.oracles import _convolutions
from dpsco_jax.oracles.ghost import _walk
from dpsco_jax.oracles.ghost._walk import Kind, Value


class View(NamedTuple):
    """A rearrangement of one leaf, whose entries it holds, each once, at most rounded to another dtype.

    Attributes:
        leaf: number of the leaf.
        axes: for every axis of the view, the axis of the leaf that it is, or ``None`` if it has length one;
            ``None`` where axes were merged or split.
        steps: ``("reshape", shape before)`` and ``("transpose", permutation)``, in order.
    """

    leaf: int
    axes: tuple[int | None, ...] | None
    steps: tuple[tuple[str, tuple[int, ...]], ...]

    def undone(self, array: jax.Array) -> jax.Array:
        """An array of the shape of the view, rearranged as the leaf is."""
        for step, numbers in reversed(self.steps):
            if step == "reshape":
                array = array.reshape(numbers)
            else:
                array = jnp.transpose(array, tuple(numbers.index(i) for i in range(len(numbers))))
        return array


def rearranged(eqn: Any, view: View, stack: int, operand: Any, result: Any) -> View | None:
    """The view that the result is, if the equation moves entries and does nothing else.

    Args:
        eqn: of one operand and one result.
        view: that the operand is.
        stack: how many axes in front of both are those of loops, which the equation does not see.
        operand: the array.
        result: the array.
    """
    name = eqn.primitive.name
    before, after = jnp.shape(operand), jnp.shape(result)
    if name == "convert_element_type":
        real = jnp.issubdtype(jnp.result_type(result), jnp.floating)
        return view if real else None
    if name == "transpose":
        inner = tuple(stack + i for i in eqn.params["permutation"])
        order = (*range(stack), *inner)
        axes = None if view.axes is None else tuple(view.axes[i] for i in order)
        return View(view.leaf, axes, (*view.steps, ("transpose", order)))
    resized = name in ("reshape", "squeeze", "expand_dims")
    widened = name == "broadcast_in_dim" and _same_entries(eqn, before[stack:], after[stack:])
    if not (resized or widened) or (eqn.params.get("dimensions") is not None and name == "reshape"):
        return None
    axes = _kept(before, after, view.axes)
    return View(view.leaf, axes, (*view.steps, ("reshape", before)))


def _same_entries(eqn: Any, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a broadcast only adds axes of length one."""
    placed = eqn.params["broadcast_dimensions"]
    kept = all(after[place] == size for place, size in zip(placed, before, strict=True))
    return kept and all(size == 1 for i, size in enumerate(after) if i not in placed)


def _kept(before: Any, after: Any, axes: Any) -> tuple[int | None, ...] | None:
    """The axes after a reshape that only adds or drops axes of length one."""
    if axes is None:
        return None
    long = [axis for axis, size in zip(axes, before, strict=True) if size != 1]
    if [size for size in before if size != 1] != [size for size in after if size != 1]:
        return None
    remaining = iter(long)
    return tuple(next(remaining) if size != 1 else None for size in after)


class Fixed(NamedTuple):
    """What is known of a value that depends on no data.

    Attributes:
        value: the array, after one axis for each loop over whose trips it is stacked.
        loops: numbers of these loops, from the outside.
        leaves: the leaves of the parameters that it depends on.
        view: how, if it is one of them rearranged.
    """

    value: Any
    loops: tuple[int, ...] = ()
    leaves: frozenset[int] = frozenset()
    view: View | None = None


@dataclasses.dataclass(frozen=True)
class Use:
    """A place where parameters meet data.

    Attributes:
        eqn: the equation.
        fixed: positions of the operands that depend on no data.
        held: those of them, by position, that have derivatives in parameters: without their arrays.
        loops: numbers of the loops around the equation, from the outside.
        lengths: of these loops.
        recomputed: whether it is inside of a ``jax.checkpoint``.
    """

    eqn: Any
    fixed: tuple[int, ...]
    held: dict[int, Fixed]
    loops: tuple[int, ...]
    lengths: tuple[int, ...]
    recomputed: bool

    @property
    def numbers_held(self) -> int:
        """What enters it of an example and, as cotangents, leaves it, over all trips."""
        entering = [v.aval for i, v in enumerate(self.eqn.invars) if i not in self.fixed]
        leaving = [self.eqn.outvars[i].aval for i in self.tapped]
        return math.prod(self.lengths) * sum(math.prod(x.shape) for x in entering + leaving)

    @property
    def program(self) -> core.ClosedJaxpr:
        """The equation alone."""
        operands = [v.aval for v in self.eqn.invars]
        return jax.make_jaxpr(lambda *given: _walk.bind(self.eqn, given))(*operands)

    def mixes(self, function: Callable[..., Any]) -> bool:
        """Whether a function ``(fixed, data, cotangents)`` has to be taken one example at a time.

        That of ``_backward``, of the operands that depend on no data, of those that do, and of the cotangents
        of the results that have a tap; see ``_convolutions``.
        """
        avals = [v.aval for v in self.eqn.invars]
        own = [i not in self.fixed for i in range(len(avals))]
        slopes = [self.eqn.outvars[i].aval for i in self.tapped]
        parts = [[avals[i] for i in self.fixed], [a for a, o in zip(avals, own, strict=True) if o]]
        taken = jax.make_jaxpr(function)(*parts, slopes)
        program = self.program
        both = program, taken
        mixed = any(_convolutions.grouped(x) or _convolutions.of_batches(x) for x in both)
        return mixed or _convolutions.of_two(program, own)

    @property
    def asks(self) -> bool:
        """Whether a rule for derivatives in it is told which arguments are differentiated.

        Such a rule, as of equinox, may do otherwise, or refuse, where parameters are held fast.
        """
        asking = lambda eqn: _convolutions.has_rule(eqn) and eqn.params.get("symbolic_zeros", False)  # noqa: E731
        return _convolutions.holds(self.program, asking)

    @property
    def tapped(self) -> tuple[int, ...]:
        """The results that have a tap."""
        results = self.eqn.outvars
        return tuple(i for i, v in enumerate(results) if _walk.differentiable(v.aval))

    def taps(self) -> tuple[jax.Array, ...]:
        """Zeros of the shape of the taps of one example."""
        avals = [self.eqn.outvars[i].aval for i in self.tapped]
        return tuple(jnp.zeros((*self.lengths, *aval.shape), aval.dtype) for aval in avals)


def not_understood(error: Exception) -> str:
    """Why a loss is not taken apart, where that has failed, in words of whoever says so."""
    said = str(error).strip().splitlines()
    return f"to take it apart is a {type(error).__name__}: {said[0] if said else ''}"


class Program:
    """See the file's docstring.

    Attributes:
        uses: in the order of the program.
        num_leaves: of the parameters.
        mixes: whether it must be run one example at a time (``_convolutions``).
        slope_mixes: the same of ``gradient``.
        whole: why it is not taken apart at its uses, in words; ``None`` if it is.
    """

    def __init__(self, loss: Any, params: Any, example: Any) -> None:
        self._program = _walk.trace(loss, params, example)
        leaves = jax.tree.leaves(params)
        self.num_leaves = len(leaves)
        _effects.require_none("loss", self._program)
        (result,) = self._program.out_avals if len(self._program.out_avals) == 1 else (None,)
        scalar = (
            result is not None and result.shape == () and jnp.issubdtype(result.dtype, jnp.floating)
        )
        if not scalar:
            found = [str(aval) for aval in self._program.out_avals]
            raise ValueError(f"loss must return one real number, got {found}")
        # The gradient, which has the rules of functions with derivatives of their own.
        slope = jax.make_jaxpr(self.gradient)(leaves, example)
        _effects.require_none("loss", slope)
        varies = [i >= self.num_leaves for i in range(len(self._program.in_avals))]
        _record_keys.refuse(slope, varies)
        mixes = _convolutions.of_two(self._program, varies)
        mixes = mixes or any(map(_convolutions.of_batches, (self._program, slope)))
        grouped = _convolutions.grouped(slope)
        self.slope_mixes = mixes or grouped or _convolutions.grouped(self._program)
        self.mixes = mixes or (grouped and _convolutions.grouped_in_rules(self._program))
        self.uses: tuple[Use, ...] = ()
        self.whole = self._taken_apart(leaves)

    def _taken_apart(self, leaves: Sequence[Any]) -> str | None:
        """Finds the uses; why there are none, if it cannot."""
        seen: list[Use] = []
        ends: list[Value] = []
        self._spans: dict[int, tuple[int, int, int]] = {}

        def look(leaves: Sequence[Any]) -> list[Any]:
            holding = _Holding([], (), (), seen, self._spans)
            ends.extend(self._walked(holding, leaves, None))
            return [operand.value for operands in holding.operands for operand in operands]

        try:
            jax.eval_shape(look, leaves)
        except Exception as error:
            return not_understood(error)
        if ends[0].kind != Kind.DATA:
            raise ValueError("loss must depend on the example, got one of parameters alone")
        self.uses = tuple(seen)
        asking = {use.eqn.primitive.name for use in seen if use.asks}
        if asking:
            return f"the rule of a {', '.join(sorted(asking))} asks what is differentiated"
        return None

    def gradient(self, leaves: Sequence[Any], example: Any) -> list[Any]:
        """That of the loss of an example, in all leaves."""

        def loss(leaves: Sequence[Any]) -> Any:
            (end,) = core.jaxpr_as_fun(self._program)(*leaves, *jax.tree.leaves(example))
            return end

        return jax.grad(loss)(list(leaves))

    def held(self, leaves: Sequence[Any]) -> list[list[Any]]:
        """For every use, the operands that depend on no data, in the order of ``Use.fixed``."""
        holding = _Holding([], (), (), [], {})
        self._walked(holding, leaves, None)
        return holding.operands

    def run(
        self, leaves: Sequence[Any], example: Any, taps: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """The loss of an example, and for every use the operands that depend on data."""
        running = _Running(self._spans, taps, 0, 0)
        (end,) = self._walked(running, leaves, jax.tree.leaves(example))
        return end.known, running.records

    def _walked(self, domain: Any, leaves: Sequence[Any], example: Any) -> list[Value]:
        numbers = range(self.num_leaves)
        held = [Value(Kind.HELD, domain.leaf(i, leaves[i])) for i in numbers]
        rest = len(self._program.in_avals) - self.num_leaves
        data = [Value(Kind.DATA, x) for x in ([None] * rest if example is None else example)]
        return _walk.walk(self._program, held + data, domain)


@dataclasses.dataclass
class _Holding:
    """Computes what depends on no data; a loop is all its trips at once.

    Calls of ``jax.checkpoint`` are numbered as loops are, and ``spans`` says of each number which uses are
    inside, and the number that comes after.
    """

    operands: list[list[Any]]
    loops: tuple[int, ...]
    lengths: tuple[int, ...]
    uses: list[Use]
    spans: dict[int, tuple[int, int, int]]
    num_loops: int = 0
    recomputed: bool = False

    def leaf(self, number: int, value: Any) -> Fixed:
        axes = tuple(range(jnp.ndim(value)))
        return Fixed(value, (), frozenset({number}), View(number, axes, ()))

    def literal(self, value: Any) -> Fixed:
        return Fixed(value)

    def data(self, eqn: Any, known: Sequence[Any]) -> list[Any]:
        del known
        return [None] * len(eqn.outvars)

    def fixed(self, eqn: Any, known: Sequence[Fixed]) -> list[Fixed]:
        loops = tuple(sorted({loop for operand in known for loop in operand.loops}))

        def results(*operands: Any) -> list[Any]:
            return _walk.bind(eqn, operands)

        for loop in reversed(loops):
            stacked = [0 if loop in operand.loops else None for operand in known]
            results = jax.vmap(results, in_axes=tuple(stacked))
        leaves = frozenset().union(*(operand.leaves for operand in known))
        values = results(*(operand.value for operand in known))
        if len(known) != 1 or len(values) != 1 or known[0].view is None:
            return [Fixed(value, loops, leaves) for value in values]
        view = rearranged(eqn, known[0].view, len(loops), known[0].value, values[0])
        return [Fixed(values[0], loops, leaves, view)]

    def use(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        fixed = tuple(i for i, v in enumerate(operands) if v.kind != Kind.DATA)
        held = {
            i: operands[i].known
            for i in fixed
            if operands[i].kind == Kind.HELD and _walk.differentiable(eqn.invars[i].aval)
        }
        shapes = {
            i: v._replace(value=jax.ShapeDtypeStruct(jnp.shape(v.value), jnp.result_type(v.value)))
            for i, v in held.items()
        }
        self.uses.append(Use(eqn, fixed, shapes, self.loops, self.lengths, self.recomputed))
        self.operands.append([operands[i].known for i in fixed])
        return [None] * len(eqn.outvars)

    def scan(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        loop, number, first = _walk.loop_of(eqn, operands), self.num_loops, len(self.uses)
        outside = self.loops, self.lengths
        self.loops, self.lengths = (*self.loops, number), (*self.lengths, loop.length)
        self.num_loops += 1
        slices = [
            v if v.kind == Kind.DATA else Value(v.kind, _sliced(v.known, number))
            for v in loop.slices
        ]
        carry = [Value(Kind.DATA, None)] * len(loop.carry)
        _walk.walk(loop.body, [*loop.constants, *carry, *slices], self)
        self.loops, self.lengths = outside
        self.spans[number] = first, len(self.uses), self.num_loops
        return [None] * len(eqn.outvars)

    def again(self, eqn: Any, body: core.ClosedJaxpr, operands: Sequence[Value]) -> list[Value]:
        del eqn
        number, first, outside = self.num_loops, len(self.uses), self.recomputed
        self.num_loops += 1
        self.recomputed = True
        results = _walk.walk(body, operands, self)
        self.recomputed = outside
        self.spans[number] = first, len(self.uses), self.num_loops
        return results


def _sliced(operand: Fixed, loop: int) -> Fixed:
    return operand._replace(loops=(*operand.loops, loop))


@dataclasses.dataclass
class _Running:
    """Computes everything, adds the taps, and keeps what meets parameters."""

    spans: dict[int, tuple[int, int, int]]
    taps: Sequence[Any]
    first_use: int
    next_loop: int
    records: list[Any] = dataclasses.field(default_factory=list)

    def leaf(self, number: int, value: Any) -> Any:
        del number
        return value

    def literal(self, value: Any) -> Any:
        return value

    def fixed(self, eqn: Any, known: Sequence[Any]) -> list[Any]:
        return _walk.bind(eqn, known)

    def data(self, eqn: Any, known: Sequence[Any]) -> list[Any]:
        return _walk.bind(eqn, known)

    def use(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        taps = iter(self.taps[len(self.records)])
        self.records.append(tuple(v.known for v in operands if v.kind == Kind.DATA))
        results = _walk.bind(eqn, [v.known for v in operands])
        tapped = [_walk.differentiable(v.aval) for v in eqn.outvars]
        return [
            result + next(taps) if has else result
            for result, has in zip(results, tapped, strict=True)
        ]

    def scan(self, eqn: Any, operands: Sequence[Value]) -> list[Any]:
        loop = _walk.loop_of(eqn, operands)
        first, last, next_loop = self.spans[self.next_loop]
        inner_loop, here = self.next_loop + 1, len(self.records)
        taps = self.taps[here : here + last - first]

        def body(carry: Any, slices: Any) -> Any:
            given, taps = slices
            running = _Running(self.spans, taps, first, inner_loop)
            arguments = [
                *loop.constants,
                *(Value(Kind.DATA, x) for x in carry),
                *(Value(v.kind, x) for v, x in zip(loop.slices, given, strict=True)),
            ]
            results = [value.known for value in _walk.walk(loop.body, arguments, running)]
            carried, given = results[: len(loop.carry)], results[len(loop.carry) :]
            return carried, (given, running.records)

        start = [v.known for v in loop.carry]
        over = [v.known for v in loop.slices], list(taps)
        end, (given, records) = lax.scan(
            body, start, over, loop.length, loop.reverse, unroll=loop.unroll
        )
        self.records.extend(records)
        self.next_loop = next_loop
        return [*end, *given]

    def again(self, eqn: Any, body: core.ClosedJaxpr, operands: Sequence[Value]) -> list[Value]:
        """What meets parameters is held; all else is computed again on the way back."""
        first, last, next_loop = self.spans[self.next_loop]
        inner_loop, here = self.next_loop + 1, len(self.records)
        kinds: list[Kind] = []

        def once(given: Sequence[Any], taps: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            running = _Running(self.spans, taps, first, inner_loop)
            data = iter(given)
            arguments = [
                v._replace(known=next(data)) if v.kind == Kind.DATA else v for v in operands
            ]
            results = _walk.walk(body, arguments, running)
            kinds[:] = [value.kind for value in results]
            return [value.known for value in results], running.records

        how = {name: eqn.params[name] for name in ("policy", "prevent_cse")}
        given = [v.known for v in operands if v.kind == Kind.DATA]
        results, records = jax.checkpoint(once, **how)(given, self.taps[here : here + last - first])
        self.records.extend(records)
        self.next_loop = next_loop
        return [Value(kind, known) for kind, known in zip(kinds, results, strict=True)]
