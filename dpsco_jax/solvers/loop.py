"""META: the loop that all first-order solvers share, oracle + chain + scan.

What it computes: num_steps times: the oracle estimates a gradient at the parameters, the optimizer's chain
makes it private and turns it into an update, the update is applied.

Source: thesis, Algorithm 1 (META) and Algorithm 2 (its private oracle, which here is a sampling oracle
followed by ``transforms.privatize`` at the head of the chain).

Formal guarantee: the chain's ledger bounds everything that the chain has released, hence the parameters at
every step, if the oracle keeps its promise (the bound on each user's share) and nothing but the chain looks
at its output. What ``trace`` returns of opt_state and params is covered too; what it returns of estimates is
not. The keys of samples, shifts and noise are different streams.

Cost: num_steps oracle calls; the memory of one step, and of the traces if asked for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from dpsco_jax import _checks, _counts
from dpsco_jax._counts import Count
from dpsco_jax.oracles import ByState, ByStep, Estimate, Oracle
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.solvers import _stored_loop


class Run(NamedTuple):
    """The end of a loop.

    Attributes:
        params: what the caller would hold: the next query point.
        opt_state: the state of the chain, ledger included.
        num_gradients: item gradients evaluated for sampled users, in 64 bits; depends on the data.
        trace: what ``trace`` returned, stacked over steps; ``None`` without it.
    """

    params: Any
    opt_state: Any
    num_gradients: Count
    trace: Any


def run(
    key: jax.Array,
    oracle: Oracle | ByStep | ByState,
    optimizer: optax.GradientTransformation,
    params: Any,
    data: Any,
    num_steps: int | Array,
    trace: Callable[[Any, Any, Estimate], Any] | None = None,
) -> Run:
    """Runs the loop.

    Args:
        key: for the oracle alone; step t uses ``fold_in(key, t)``. The noise has a key of its own, in the
            state of the chain.
        oracle: see ``dpsco_jax.oracles``; one for all steps, ``ByStep`` or ``ByState``.
        optimizer: a chain whose first transformation takes the oracle's gradient.
        params: the starting point.
        data: what the oracle takes; or ``StoredUsers``, for a sum over users and outside of ``jit``.
        num_steps: static, or an array of one integer, which may be traced, if there is no trace.
        trace: ``trace(params, opt_state, estimate)`` after each step, for study; see the file's docstring.

    Raises:
        ValueError: there is a trace of a number of steps that is an array.
    """
    if isinstance(data, StoredUsers):
        end = _stored_loop.run(key, oracle, optimizer, params, data, num_steps, trace)
        return Run(*end)
    optimizer = optax.with_extra_args_support(optimizer)

    def step(carry: tuple[Any, Any, Count], t: Array) -> tuple[tuple[Any, Any, Count], Any]:
        params, opt_state, count = carry
        ask = _of_step(oracle, t, opt_state, params)
        estimate = ask(jax.random.fold_in(key, t), params, data)
        updates, opt_state = optimizer.update(
            estimate.gradient, opt_state, params, **estimate.extra_args
        )
        params = optax.apply_updates(params, updates)
        count = _counts.add(count, estimate.num_gradients)
        seen = None if trace is None else trace(params, opt_state, estimate)
        return (params, opt_state, count), seen

    start = (params, optimizer.init(params), _counts.count(0))
    if isinstance(num_steps, jax.Array):
        _checks.require(trace is None, "trace", trace, "None where num_steps is an array")
        params, opt_state, count = jax.lax.fori_loop(
            0, num_steps, lambda t, carry: step(carry, t)[0], start
        )
        return Run(params, opt_state, count, None)
    (params, opt_state, count), seen = jax.lax.scan(step, start, jnp.arange(num_steps))
    return Run(params, opt_state, count, seen)


def _of_step(oracle: Oracle | ByStep | ByState, t: Array, opt_state: Any, params: Any) -> Oracle:
    if isinstance(oracle, ByStep):
        return oracle.at(t)
    return oracle.at(opt_state, params) if isinstance(oracle, ByState) else oracle
