"""How a gradient is estimated: who is sampled, at which point, summed and clipped how.

An oracle is a function ``oracle(key, params, data) -> Estimate``. It is pure, draws every random number
from ``key`` (who is sampled and smoothing shifts, never noise: noise belongs to ``transforms.privatize``)
and returns

- ``gradient``: what the first transformation of the optimizer's chain takes: per-user gradients with a
  leading user axis for ``transforms.clipped_mean``, or the sum of the clipped user gradients for
  ``transforms.summed_contributions``;
- ``extra_args``: keyword arguments for the optimizer's ``update``, such as ``user_mask``, or the
  ``remainder`` of a sum: what rounding has taken from it;
- ``num_gradients``: how many item gradients entered the estimate. It depends on who was sampled and on how
  many items they have: it is a secret, like the sample itself.

``data`` is whatever the oracle was made for, with a leading user axis on every leaf: ``UserData`` for
``gradients``, ``linear.LinearData`` (made once by ``linear.prepare``) for ``linear``.

Modules: ``sampling`` (uniform batches, Poisson), ``gradients`` (any loss, by autodiff), ``ghost`` (the same
sums without the gradients), ``clipped_sums`` (which of the two), ``linear`` (linear models, in closed form),
``linear_users`` (the same, one row for each user), ``user_gradients`` (whichever of these suits an
objective), ``smoothed`` (randomized smoothing), ``spider`` (differences of gradients at two points),
``hessians`` (sums of clipped Hessians),
``resque`` (reweighted queries around a centre, whose pools
are data too), ``unclipped`` (the mean over users at once, for methods that are not private), ``chunks`` (the
loops that keep memory flat), ``streamed`` (the same sums over users who stay on disk).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Int


class Estimate(NamedTuple):
    """What an oracle returns; see the package's docstring.

    Attributes:
        gradient: per-user gradients ``[users, ...]`` or one sum ``[...]``, a pytree like params.
        extra_args: keyword arguments of the optimizer's ``update``.
        num_gradients: item gradients evaluated for users who count, int32.
    """

    gradient: Any
    extra_args: dict[str, Any]
    num_gradients: Int[jax.Array, ""]


Oracle = Callable[[jax.Array, Any, Any], Estimate]


class ByStep(NamedTuple):
    """An oracle that depends on the number of the step, as where it needs the size of that step.

    Attributes:
        at: of the number t = 0, 1, ... of a step, which may be traced; returns the oracle of that step.
    """

    at: Callable[[jax.Array], Oracle]


class ByState(NamedTuple):
    """An oracle that depends on what has been released, as where it compares the point with an earlier one.

    Attributes:
        at: of the state of the optimizer's chain and of the parameters; returns the oracle of the step. It
            reads of the state what is public, of which privacy proofs have to speak.
    """

    at: Callable[[Any, Any], Oracle]
