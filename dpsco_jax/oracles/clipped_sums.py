"""Which oracle a solver asks for Σ_u clip(g_u), where the loss is not a linear model: by shapes, or as told.

What it computes: ``choice`` names the way of an objective's sums, ``clipped_gradient_sum`` is the oracle of
that way, of two that return the same sum to rounding:

- ``"ghost"``: one backward pass over a chunk of users, ``ghost.clipped_gradient_sum``;
- ``"chunks"``: a gradient of every user, ``gradients.clipped_gradient_sum``.

Source: the choice is ours. On a CPU ghost sums took 0.03 to 0.9 times the time of the others in all networks
that were tried where they have a rule for at least one matrix, and no less where they have none.

Formal guarantee: that of either oracle, which is the same: every user adds a vector of norm at most
``clip_norm``, a function of that user's items and the point, or zero. The choice is a function of shapes and
of the program of the loss, so it reveals nothing. A ghost sum clips to an upper bound of the norm, above it
by some 2^-24 times the number of terms that make it up: so a gradient just shorter than ``clip_norm`` may be
shortened. Privacy does not see it, nor is it noise; proofs that need gradients unaltered take ``"chunks"``.

Cost: of the choice, one trace of the loss.
"""

from typing import Any, NamedTuple

import jax

from dpsco_jax import _checks
from dpsco_jax.oracles import Oracle, ghost, gradients
from dpsco_jax.problems.objective import CLIPPED_SUMS, Objective
from dpsco_jax.problems.users import UserData, user_loss

__all__ = ["Choice", "choice", "clipped_gradient_sum"]


class Choice(NamedTuple):
    """How clipped gradients are summed.

    Attributes:
        way: ``"linear"`` (the closed form of linear models), ``"ghost"`` or ``"chunks"``.
        why: in words, and for networks the way of every parameter (``ghost.explain``).
    """

    way: str
    why: str

    def __str__(self) -> str:
        return f"{self.way}: {self.why}"


def choice(objective: Objective, data: UserData, params: Any) -> Choice:
    """How a first-order solver sums the clipped gradients of the users of this objective.

    Without shifts: where a solver smooths a loss by shifting the point of each user, it takes ``"chunks"``;
    where it needs all rows, as outlier-removed means do, it forms no sum.

    Args:
        objective: what it asks for in ``clipped_sums`` is done; for ``"auto"`` the closed form where there is
            a ``linear_model``, else ghost sums where a matrix of parameters has a rule, else chunks: users'
            gradients of a vector are no more than their features are.
        data: of all users, or shapes of the same form (``jax.eval_shape``).
        params: a point, or its shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpsco_jax.geometry import domains
        >>> from dpsco_jax.oracles import clipped_sums
        >>> from dpsco_jax.problems.objective import Objective
        >>> from dpsco_jax.problems.users import UserData
        >>> loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
        >>> data, params = UserData(jnp.ones((5, 1, 30))), jnp.ones((30, 20))
        >>> objective = Objective(loss, 1.0, None, domains.whole_space())
        >>> clipped_sums.choice(objective, data, params).way
        'ghost'
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_instance("data", data, UserData)
    _checks.require_real_leaves("params", params)
    asked = require_way(objective)
    if asked != "auto":
        return Choice(asked, "as asked for")
    if objective.linear_model is not None:
        return Choice("linear", "the loss is a linear model")
    loss = user_loss(objective)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), data)
    try:
        report = ghost.explain(lambda w, user: loss(w, user.items, user.mask), params, one)
    except ValueError as refusal:
        return Choice("chunks", f"ghost sums are not for this loss: {refusal}")
    ruled = any(
        leaf.way in ("factors", "products") and getattr(stored, "ndim", 0) > 1
        for leaf, stored in zip(report.leaves, jax.tree.leaves(params), strict=True)
    )
    return Choice("ghost" if ruled else "chunks", f"parameters go these ways\n{report}")


def clipped_gradient_sum(
    objective: Objective,
    way: str,
    clip_norm: Any,
    sampler: gradients.Sampler | None = None,
    chunk_size: int = 64,
) -> Oracle:
    """The oracle that returns Σ_u clip(g_u) over a sample of users; its data are ``UserData``.

    Args:
        objective: any loss; its regularizer is not part of the sum.
        way: ``"ghost"`` or ``"chunks"``, as ``choice`` says.
        clip_norm: positive bound on the joint ℓ2 norm of one user's gradient over all leaves; may be traced.
        sampler: draws the users of a step from a key; all users if ``None``.
        chunk_size: how many users, at least 1, whose gradients, or activations, are held at once.
    """
    _checks.require_instance("objective", objective, Objective)
    _checks.require_choice("way", way, ("ghost", "chunks"))
    if way == "ghost":
        return ghost.clipped_gradient_sum(objective, clip_norm, sampler, chunk_size)
    gradient = gradients.user_gradient(objective)
    return gradients.clipped_gradient_sum(gradient, clip_norm, sampler, chunk_size)


def require_way(objective: Objective, but: str | None = None, why: str = "") -> str:
    """What the objective asks for; ``ValueError`` if there is no such way, or it cannot be taken."""
    known = tuple(way for way in CLIPPED_SUMS if way != but)
    asked = objective.clipped_sums
    good = isinstance(asked, str) and asked in known
    wanted = f"one of {', '.join(known)}{why}"
    _checks.require(good, "objective.clipped_sums", asked, wanted)
    return asked
