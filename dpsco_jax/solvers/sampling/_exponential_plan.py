"""The plan of one draw from the exponential mechanism: what it costs by its route, from the numbers that run.

Formal guarantee: on the routes "grid" and "linear" what ``_cells`` draws has the bounded range ``range``,
pure privacy. On the route "chain" replacing a user changes k·F by a (k·2L/n)-Lipschitz function, which
ranges over at most k·2L·D/n on a set of diameter D, whatever public r is added to it: the target has bounded
range, hence is ε-DP, and the last point of the chain is within τ of it, hence (ε, (1 + e^ε)·τ)-DP
(docs/theory/exact_draws.md, section 4). τ is computed from the numbers that the chain runs with; a plan
whose k, μ or set is another one than the one it was certified for costs infinity.

Cost: none, but for the certificate of a chain, a second.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.sampling import _cells
from dpsco_jax.solvers.sampling._exponential_chain import TOLERANCE, Chain, variation_of
from dpsco_jax.solvers.work import Work

REPLACE = NeighboringRelation.REPLACE_ONE
ROUTES = ("grid", "linear", "chain")
_UP = 1.0 + 2.0**-30
_FURTHEST = 700.0
_MANY = 10**9  # cells, of which centres are as far out as the set
_LEAST_OFFSET = 1e-150  # whose square is a normal number


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        dim: d.
        lipschitz: L, to which the routes "grid" and "linear" clip.
        route: ``"grid"``, ``"linear"`` or ``"chain"``.
        ball: whether the set is a ball; else it is a box.
        cells: p, of each coordinate; 0 for a chain.
        chain: of the chain; ``None`` for the other routes.
        constant_time: whether a chain makes all its trials.
        inverse_temperature: k.
        regularization: μ of the chain, centred at the centre of the set; 0 on the other routes.
        lower: corner of the box, or of the box around the ball, ``[dim]``.
        upper: the other one.
        epsilon: the budget that was planned for; what is spent follows from the other numbers.
        delta: δ of that budget; of a chain's certificate. Nothing of it is spent on the other routes.
        excess_bound: proven bound on the expected excess risk, for convex losses; of a draw on the route
            "linear" for linear ones.
    """

    num_users: int = static()
    dim: int = static()
    lipschitz: float = static()
    route: str = static(choices=ROUTES)
    ball: bool = static()
    cells: int = static(least=0)
    chain: Chain | None = static()
    constant_time: bool = static()
    inverse_temperature: Number
    regularization: Number
    lower: Number
    upper: Number
    epsilon: Number
    delta: Number
    excess_bound: Number

    @property
    def offset(self) -> Any:
        """r: how far from the centre what is drawn, or the centre of its cell, is at most."""
        lower, upper = _wide(self.lower), _wide(self.upper)
        if self.chain is None:
            # "linear" draws from all of the box, also where the box is around a ball.
            return _cells.farthest(lower, upper, self.cells, self.ball and self.route == "grid")
        # A little farther out, for what the draws round.
        return _cells.farthest(lower, upper, _MANY, self.ball) * (1.0 + 1e-8)

    @property
    def range(self) -> Any:
        """ε of an exact draw: over what log-weights of neighbours' laws range; infinite where unproven."""
        found = (_wide(self.inverse_temperature), self.offset, self._least_side > 0)
        xp, (k, r, ordered) = as_floats(*found)
        good = (k > 0) & (k < xp.inf) & (r > _LEAST_OFFSET) & (r < xp.inf) & (ordered > 0)
        good = good & (0.0 < self.lipschitz < math.inf)
        return xp.where(good, _cells.range_of(k, self.lipschitz, r, self.num_users), xp.inf)

    @property
    def _least_side(self) -> Any:
        return (_wide(self.upper) - _wide(self.lower)).min(axis=-1)

    @property
    def variation(self) -> float:
        """τ: how far the law of a chain's last point is from its target; 0 for the other routes."""
        if self.chain is None:
            return 0.0
        return variation_of(self.chain, self.num_users, self.dim, self.lipschitz, self.ball)

    @property
    def user_gradients(self) -> int:
        """As many as users, of the tangents of the route "linear"; the others evaluate losses."""
        return self.num_users if self.route == "linear" else 0

    @property
    def num_values(self) -> int:
        """Values of user losses: of all cells, or those that a chain reads on average, or fewer."""
        if self.chain is not None:
            return math.ceil(2.0 * (math.e - 1.0) * self.chain.num_trials)
        return 0 if self.route == "linear" else self.num_users * (self.cells**self.dim + 1)

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the guarantee assumes."""
        if self.chain is None:
            return ("random numbers are ideal",)
        return (
            "float64 rounds to nearest, and its elementary functions are exact to four units",
            "random numbers are ideal",
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return REPLACE

    @property
    def accounted(self) -> Any:
        """Whether the proof covers a run with these numbers; a bool, may be traced."""
        given = (self.inverse_temperature, self.regularization, self.delta, self.range)
        xp, (k, mu, delta, spent) = as_floats(*map(_wide, given))
        if self.chain is None:
            return (self.route != "chain") & (spent < xp.inf) & (mu == 0.0)
        lower, upper = _wide(self.lower), _wide(self.upper)
        half, middle = 0.5 * (upper - lower), 0.5 * (upper + lower)
        found = (
            (k, self.chain.inverse_temperature),
            (mu, self.chain.regularization),
            (
                half[..., 0] if self.ball else xp.sqrt(xp.sum(half * half, axis=-1)),
                self.chain.radius,
            ),
        )
        # A batch may hold numbers of its own; no other than those that were certified will do.
        good = (
            (self.route == "chain") & (self.variation < 1.0) & (spent < _FURTHEST) & (delta >= 0.0)
        )
        for number, certified in found:
            good = good & (abs(number - certified) <= 0.25 * TOLERANCE * certified)
        norm = xp.sqrt(xp.sum(middle * middle, axis=-1))
        good = good & (norm <= self.chain.center_norm * (1.0 + 0.25 * TOLERANCE))
        even = xp.all(half == half[..., :1], axis=-1) if self.ball else True
        return good & even

    @property
    def failure(self) -> Any:
        """δ of a chain: (1 + e^ε)·τ."""
        xp, (spent,) = as_floats(self.range)
        return xp.minimum(1.0, _UP * self.variation * (1.0 + xp.exp(xp.minimum(spent, _FURTHEST))))

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: gradients and values of losses."""
        return _costs.gradients(self.user_gradients, item) + _costs.values(self.num_values, item)

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where the proof does not cover them; may be traced."""
        xp, (spent, good) = as_floats(self.range, self.accounted)
        good = (good > 0) & (spent < xp.inf)
        spent = xp.where(good, spent, 1.0)
        if self.chain is None:
            return privacy.unbounded_unless(good, privacy.bounded_range(spent))
        return privacy.unbounded_unless(good, privacy.approximate_dp(spent, self.failure))

    def certificate(self) -> privacy.Certificate:
        """(ε, 0) of the exact routes; (ε, δ) of a chain whose failure is at most δ; infinite as ``loss`` is.

        Raises:
            ValueError: the plan is a batch of plans.
        """
        good = bool(np.asarray(self.accounted))
        if self.chain is None:
            spent = float(self.range) if good else math.inf
            return privacy.Certificate(spent, 0.0, REPLACE, "exponential mechanism", self.assumes)
        delta = float(self.delta)
        good = good and float(self.failure) <= delta
        spent = float(self.range) if good else math.inf
        by = "exponential mechanism with total variation"
        return privacy.Certificate(spent, delta, REPLACE, by, self.assumes)

    def __str__(self) -> str:
        remarks = [("values of user losses", f"{self.num_values:.4g}")]
        if self.chain is not None:
            remarks += [
                ("total variation", f"{self.variation:.3g}"),
                ("which costs of δ", f"{float(self.failure):.3g}"),
            ]
        return plans.describe("exponential mechanism", self, remarks)


def _wide(value: Any) -> Any:
    """In float64, in which ``solve`` runs: in fewer bits, or as integers, sides would be rounded or wrap."""
    traced = isinstance(value, jax.core.Tracer)
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    if traced or (wide and isinstance(value, jax.Array)):
        return jnp.asarray(value, jnp.result_type(float))
    return np.asarray(value, np.float64)
