"""Clipped sums of gradients of any loss at about the cost of a gradient of the mean: "ghost clipping".

What it computes: Σ_e clip(g_e) over examples (or users) e. The loss of one example is traced. Where its
parameters meet data, a tap is put on the result; one backward pass over the batch gives the cotangents
there. The gradient of a dense product is then Σ_t a_t ⊗ c_t, of activations a and cotangents c: its norm
comes from inner products, and the weighted sum over examples is one product. So do convolutions (of
patches), look-ups in tables, layers in ``scan``, tied weights; any other equation is differentiated by
itself, for the parameters in it alone.

Source: Goodfellow 2015; Li, Tramèr, Liang and Hashimoto 2022 ("ghost clipping"); Bu, Mao and Xu 2022
("mixed ghost clipping"); Bu et al. 2023 ("book-keeping", one backward pass).

Modules: ``sums`` (``clipped_sum`` for optax chains, ``clipped_gradient_sum`` for solvers), ``report``
(``explain``: which way every parameter goes), ``rules`` (the table of equations, open to additions).

Example:
    loss = lambda w, example: jnp.square(example[0] @ w["a"] @ w["b"] - example[1]).sum()
    total = jax.jit(lambda w, batch: ghost.clipped_sum(loss, w, batch, clip_norm=1.0))(params, batch)
    print(ghost.explain(loss, params, jax.tree.map(lambda x: x[0], batch)))
"""

from dpsco_jax.oracles.ghost.report import LeafReport, Report, explain
from dpsco_jax.oracles.ghost.rules import RULES, Rule
from dpsco_jax.oracles.ghost.sums import clipped_gradient_sum, clipped_sum

__all__ = [
    "RULES",
    "LeafReport",
    "Report",
    "Rule",
    "clipped_gradient_sum",
    "clipped_sum",
    "explain",
]
