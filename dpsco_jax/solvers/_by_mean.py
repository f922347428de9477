"""Plans all of whose releases are those of one private mean: what they cost is what it costs.

What it computes: ``loss`` and ``certificate`` of a plan from its ``mean``.

Formal guarantee: that of the mean, which is a function of the fields that run; an edited plan has the loss
and the certificate of the edited run.

Cost: that of the mean's accountants.
"""

from typing import Any

from dpsco_jax import privacy
from dpsco_jax._pytrees import pytree
from dpsco_jax.solvers._made_for import MadeFor


@pytree
class ByMean(MadeFor):
    """What plans inherit that have a ``mean``, by which everything is released."""

    def loss(self: Any) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced."""
        return self.mean.loss()  # type: ignore[no-any-return]

    def certificate(self: Any) -> privacy.Certificate:
        """The (ε, δ) of the run by the tightest accountant."""
        return self.mean.certificate()  # type: ignore[no-any-return]
