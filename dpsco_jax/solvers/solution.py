"""What a solver returns: the parameters, what they cost, and how the run ended.

Formal guarantee: ``privacy`` bounds what ``params``, ``released``, ``status`` and ``gradients`` reveal
together: ``status`` is a function of released values and ``gradients`` of public sizes. ``unprivate`` is
covered by nothing.
"""

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dpsco_jax import _counts
from dpsco_jax._checks import require, require_integer
from dpsco_jax._counts import Count
from dpsco_jax.privacy import Certificate, PrivacyLoss, privacy_spent

__all__ = ["Count", "Solution", "Status", "finished"]


class Status(enum.IntEnum):
    """How a run ended; stored as an integer, one per lane of a batch."""

    OK = 0
    HALTED = 1  # by a private check, before all steps were made
    DIVERGED = 2  # the parameters are not finite


class Solution(NamedTuple):
    """The result of a run.

    Attributes:
        params: the point to report.
        privacy: the loss of ``params``.
        status: a ``Status``, never raised inside ``jit``.
        gradients: per-item gradient evaluations, from the public sizes of the plan and of the data's item
            slots: the number under fixed-size sampling, the expected number under Poisson sampling. A
            ``Count`` of 64 bits, whether or not JAX has such integers.
        unprivate: traces for study and the realized number of gradients, a ``Count`` too; NOT covered by
            ``privacy``.
        released: what was released beside ``params``, by name, covered by ``privacy``; ``None`` if nothing.
    """

    params: Any
    privacy: PrivacyLoss
    status: Int[Array, ""]
    gradients: Count
    unprivate: dict[str, Any]
    released: dict[str, Any] | None = None

    def certificate(self, plan: Any) -> Certificate:
        """The (ε, δ) of the run, which is the number to publish: that of the plan it was made by.

        ``privacy`` adds Rényi divergences up while a run goes on, for what comes after it; it proves a larger
        ε than the plan, whose accountant has seen all releases at once. Both are true of the same run.

        Args:
            plan: the one that was solved.

        Raises:
            ValueError: the run was charged another loss than the plan says, so that it was made by another
                plan; or this is a batch of runs: each has the plan's certificate, all together more.

        Example:
            >>> import jax
            >>> from dpsco_jax import Budget
            >>> from dpsco_jax.problems import synthetic
            >>> from dpsco_jax.solvers.item_level import private_ac_sa
            >>> made = synthetic.logistic_regression(
            ...     jax.random.key(0), num_users=100, items_per_user=1, dim=3
            ... )
            >>> plan = private_ac_sa.plan(made.problem(distance=5.0), Budget(2.0, 1e-5))
            >>> start = jax.numpy.zeros(3)
            >>> solution = private_ac_sa.solve(
            ...     jax.random.key(1), plan, made.objective, made.data, start
            ... )
            >>> solution.certificate(plan).epsilon <= 2.0
            True
        """
        good = hasattr(plan, "loss") and not isinstance(plan, type)
        require(good, "plan", type(plan).__name__, "the plan that was solved")
        said, spent = plan.loss(), self.privacy
        shape = np.shape(spent.rdp)
        one = len(shape) == 1
        require(one, "solution", f"losses of the shape {shape}", "that of a single run")
        same = all(
            np.allclose(each, other, rtol=1e-4, atol=1e-30)
            for each, other in zip(said, spent, strict=True)
        )
        require(same, "plan", type(plan).__name__, "the one by which this run was made and charged")
        return plan.certificate()  # type: ignore[no-any-return]


def finished(
    params: Any, opt_state: Any, gradients: int, realized: Count | Int[Array, ""], trace: Any
) -> Solution:
    """The solution of a run that made all of its steps.

    Args:
        params: the point to report.
        opt_state: the final state of the chain, with all ledgers.
        gradients: the public number of gradients.
        realized: how many were evaluated for the users who were sampled.
        trace: what the caller asked to see.

    Raises:
        ValueError: if the public number is 2^63 or more.
    """
    gradients = require_integer("the number of gradients", gradients, 0, _counts.MOST)
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]
    good = jnp.all(jnp.asarray(finite, bool))
    return Solution(
        params=params,
        privacy=privacy_spent(opt_state),
        status=jnp.where(good, int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(gradients),
        unprivate={"gradients": _counts.count(realized), "trace": trace},
    )
