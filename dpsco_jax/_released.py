"""What has been released has no derivatives: whatever is differentiated through it raises while it is traced.

The derivative of noise with respect to its size is the noise, and that of a noised statistic with respect to
the parameters that it was taken at is a statistic of the data (of gradients, rows of their Hessian) without
any noise. No ledger is charged for either. So differentiation through a release, forward or backward, raises
``ValueError``, in whatever order of ``jit``, ``vmap``, ``scan``, ``cond`` and ``checkpoint``. Derivatives of
what a release does not depend on, in the same program, are as ever, and a compiled program is the one that it
would be without it.
"""

from typing import Any

import jax


def without_derivatives(tree: Any) -> Any:
    """The tree, through which nothing can be differentiated.

    Args:
        tree: what is released, a pytree of arrays.
    """
    # Each leaf by itself: the rule of one that has a tangent would be asked for those that have none.
    return jax.tree.map(_as_it_is, tree)


@jax.custom_jvp
def _as_it_is(leaf: jax.Array) -> jax.Array:
    return leaf


@_as_it_is.defjvp
def _refused(primals: Any, tangents: Any) -> Any:
    """Called if, and only if, what is differentiated by moves what is released."""
    raise ValueError(
        "the argument that is differentiated must be one that no private release depends on: the derivative"
        " of a release holds its noise, or data without noise. Differentiate losses before they are"
        " released, and what is released as a constant (jax.lax.stop_gradient of its arguments)"
    )
