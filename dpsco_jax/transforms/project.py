"""Project: keeps parameters in a convex set.

What it computes: the update after which the parameters are the projection of where the update so far would
have taken them. Last in a chain of gradient steps it makes them projected gradient steps.

Source: projected (sub)gradient descent.

Formal guarantee: none of privacy; post-processing. The new parameters lie in the domain up to the
rounding of one addition in their dtype (``optax.apply_updates`` adds, it does not assign).

Cost: one projection.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpsco_jax._checks import require_instance
from dpsco_jax.geometry.domains import Domain


def project(domain: Domain) -> optax.GradientTransformationExtraArgs:
    """Replaces an update u at parameters w by P(w + u) - w, P the projection onto the domain.

    Args:
        domain: the set; its projection acts on all leaves together.
    """
    require_instance("domain", domain, Domain)

    def update(
        updates: Any, state: optax.EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, optax.EmptyState]:
        del extra_args
        if params is None:
            raise ValueError("params must be given to the update of project, got None")
        inside = domain.project(optax.apply_updates(params, updates))
        moves = jax.tree.map(lambda x, p: (x - p).astype(jnp.result_type(p)), inside, params)
        return moves, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
