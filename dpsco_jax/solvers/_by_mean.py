"""Plans all of whose releases are those of one private mean: what they cost is what it costs.

What it computes: ``loss``, ``certificate`` and ``work`` of a plan from its ``mean``.

Formal guarantee: that of the mean, which is a function of the fields that run; an edited plan has the loss
and the certificate of the edited run.

Cost: that of the mean's accountants.
"""

from typing import Any

from dpsco_jax import privacy
from dpsco_jax._pytrees import pytree
from dpsco_jax.solvers import _costs
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.work import Work


@pytree
class ByMean(MadeFor):
    """What plans inherit that have a ``mean``, by which everything is released."""

    def loss(self: Any) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced."""
        return self.mean.loss()  # type: ignore[no-any-return]

    def certificate(self: Any) -> privacy.Certificate:
        """The (ε, δ) of the run by the tightest accountant."""
        return self.mean.certificate()  # type: ignore[no-any-return]

    def work_for(self: Any, item: _costs.Item) -> Work:
        """What a run costs: the mean and a step, as often as there are steps."""
        step = self.mean.work_for(item) + _costs.method(item.dim)
        return step * self.mean.releases.num_steps + _costs.prepared(self.num_users, item)
