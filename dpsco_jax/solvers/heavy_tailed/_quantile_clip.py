"""The mean of clipped gradients whose clip level follows a quantile of their lengths, at no further cost.

What it computes: with all n users in every step, from C_0, which is public,

    release = (Σ_u x_u + noise)/n,     x_u = (clip(g_u, C_t)/C_t, w·1[‖g_u‖ ≤ 0.9·C_t]),
    C_{t+1} = C_t·exp(-rate·(share - γ)),

the mean of clipped gradients and the share of users within 0.9·C_t, both of one Gaussian release: this is
``transforms.centred_clip`` around the origin. No moment of the users' slopes has to be known.

Source: own; Andrew, Thakkar, Ramaswamy and McMahan 2021 for the update of C.

Formal guarantee: REPLACE_ONE, whatever the gradients are. x_u is a function of user u and of earlier
releases, and two of them are at most 2 apart (docs/theory/centred_clipping.md, docs/theory/heavy_tails.md): T
steps of noise multiplier s are T/(2s²)-zCDP, as without the share.

Cost: the gradients of all users, held at once.
"""

import math
from typing import Any

import jax

from dpsco_jax import _checks, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import user_gradients
from dpsco_jax.privacy.releases import GaussianReleases
from dpsco_jax.privacy.sampling import FullBatch
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _planning, means
from dpsco_jax.solvers.work import Work

RANGE = 1e6
"""C stays within this factor of where it started."""
RATE = 0.5
_SHARES = 8.0


def best_share(num_users: int, dim: int, rho: float) -> float:
    """γ of public numbers: as few users are cut as the noise on all others is worth.

    The noise of all steps together is s·C long, s = √(2d/ρ)/n, and the bias of the clip at most E(‖g‖ - C)₊,
    with the derivative -P(‖g‖ > C) in C: their sum is least where P(‖g‖ > C) = s, whatever the tail is.
    Gradients of all directions cancel most of the bias, and noise is seen in steps, too: eight times that
    share is within 1.14 of the best clip in hindsight where it was measured (docs/heavy_tails.md).
    """
    return 1.0 - min(0.5, _SHARES * math.sqrt(2 * dim / rho) / num_users)


@pytree
class QuantileClipped(means.OfLength):
    """Gradients clipped to a norm that follows a quantile of their norms.

    Attributes:
        chunk_size: users whose items are read at once.
        releases: ``GaussianReleases`` of everybody.
        clip_norm: C_0, of the first step.
        quantile: γ, the share of users within 0.9·C.
        quantile_rate: how fast C follows.
    """

    chunk_size: int = static()
    releases: Any
    clip_norm: Number
    quantile: Number
    quantile_rate: Number

    kind = GaussianReleases

    def noise_stddev(self, dim: int) -> Any:
        """σ of the noise on each coordinate of the mean in the first step; in proportion to C later on."""
        del dim
        return 2 * self.releases.noise_multiplier * self.clip_norm / self.releases.batch_size

    def work_for(self, item: _costs.Item) -> Work:
        """What one release costs."""
        users = self.releases.population_size
        return _costs.rows(users, item) + _costs.clipped_sum(users, item) + _costs.release(item.dim)

    def open(
        self, key: jax.Array, objective: Objective, data: UserData, start: Any
    ) -> means.Opened:
        """See ``Mean.open``."""
        # Everybody takes part: a plan that was edited to draw some would be charged for these.
        _checks.require_instance("releases.scheme", self.releases.scheme, FullBatch)
        _planning.require_accounted(self.releases.population_size, data)
        # No gradient is longer than C ever may be.
        longest = RANGE * self.clip_norm
        oracle, prepare = user_gradients.rows_form(objective, start, longest, None, self.chunk_size)
        aggregate = transforms.centred_clip(
            self.clip_norm,
            self.releases.batch_size,
            _planning.REPLACE_ONE,
            centre_rate=0.0,
            quantile=self.quantile,
            quantile_rate=self.quantile_rate,
        )
        release = transforms.privatize(
            aggregate, key, self.releases.noise_multiplier, self.releases.scheme
        )
        return means.Opened(oracle, prepare(data), release)
