"""How good a classifier is: the area under the ROC curve, in JAX.

What it computes: the probability that a random positive item scores above a random negative one,
ties counting one half (the Mann-Whitney statistic), exactly up to the rounding of one mean.

Source: Hanley and McNeil 1982.

Formal guarantee: none of privacy; a function of the data without noise, for studies.

Cost: one sort of the scores.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def roc_auc(
    negatives: Float[Array, "negatives"], positives: Float[Array, "positives"]
) -> Float[Array, ""]:
    """Area under the ROC curve.

    Args:
        negatives: scores of the items of class 0, at least one.
        positives: scores of the items of class 1, at least one.

    Returns:
        A number in [0, 1]; NaN if a score is NaN.
    """
    ordered = jnp.sort(negatives)
    below = jnp.searchsorted(ordered, positives, side="left", method="sort")
    not_above = jnp.searchsorted(ordered, positives, side="right", method="sort")
    # Fractions before the mean: the counts themselves would not be exact in float32.
    auc = jnp.mean((below + not_above) / (2.0 * len(negatives)))
    return jnp.where(jnp.isnan(jnp.sum(negatives) + jnp.sum(positives)), jnp.nan, auc)
