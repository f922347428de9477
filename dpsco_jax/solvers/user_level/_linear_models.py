"""What solvers of smooth linear models share: plans of Gaussian sums, releases, what a link is like.

Releases of multipliers s_i are together as private as one of the multiplier (Σ 1/s_i²)^(-1/2), which is what
is calibrated. Losses and certificates are those of the multipliers that run, and infinite where a number of
the plan is out of its range. The sensitivity of a sum is the one that ``transforms.summed_contributions``
proves for terms of a bounded norm under REPLACE_ONE; the bound may be a function of what was released before.

Slopes and curvatures of a link are what public numbers let expect where bounds are too far off: no data are
read, and none of these numbers bounds anything. A softmax of K classes bends by at most ½, and by 1/K at even
odds (Böhning 1992); a link of one margin counts with its largest curvature.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Array

from dpsco_jax import privacy, transforms
from dpsco_jax._pytrees import pytree
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.problems.objective import LinearModel, Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.solvers import _planning
from dpsco_jax.solvers._plan_base import MadeFor

_MARGIN = 0.5


@pytree
class GaussianSums(MadeFor):
    """What plans inherit that have ``releases``: pairs of a multiplier and how often it is used."""

    excess_bound = math.inf  # none is proven

    @property
    def event(self: Any) -> events.DpEvent:
        """What is released."""
        return events.composed(
            *(events.repeated(events.gaussian(float(s)), count) for s, count in self.releases)
        )

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours: one user is replaced."""
        return NeighboringRelation.REPLACE_ONE

    def loss(self: Any) -> privacy.PrivacyLoss:
        """What a run of these numbers costs, infinite where one is out of its range; may be traced.

        Raises:
            ValueError: a multiplier is known not to be positive, or is none where one is needed.
        """
        losses = [privacy.scale(privacy.gaussian(s), count) for s, count in self.releases]
        return privacy.unbounded_unless(self.accounted, privacy.compose(*losses))

    def certificate(self: Any) -> privacy.Certificate:
        """The (ε, δ) of a run of these numbers, by the tightest accountant; infinite as ``loss`` is.

        Raises:
            ValueError: ``delta`` is not in (0, 1), or a multiplier is none.
        """
        event = self.event if bool(self.accounted) else events.NonPrivateDpEvent()
        return privacy.certificate(
            event, float(self.delta), self.relation, ("the key stays secret",)
        )

    def ledger_epsilon(self: Any) -> float:
        """ε of the run by its Rényi curve."""
        return float(privacy.epsilon(self.loss(), float(self.delta)))


def whole_multiplier(problem: Problem, budget: privacy.Budget, accountant: str) -> float:
    """The multiplier of one release that takes all of the budget: 1/σ² of several adds up to that of it."""
    once = _planning.fixed_size(problem.num_users, problem.num_users, 1)
    return once.noise_multiplier(budget.epsilon, budget.delta, accountant)


def smooth_linear_model(objective: Objective, matrix: bool = False) -> tuple[LinearModel, float]:
    """The linear model, of a matrix of parameters if asked for, and the smoothness; or ``ValueError``."""
    model = objective.linear_model if matrix else objective.vector_model
    if model is None or objective.smoothness is None:
        of_vectors = "" if matrix else " whose parameters are a vector"
        raise ValueError(
            f"objective must be a smooth linear model{of_vectors}, got "
            f"linear_model = {objective.linear_model}, smoothness = {objective.smoothness}"
        )
    return model, objective.smoothness


class Release(NamedTuple):
    """What was released.

    Attributes:
        mean: of the users' terms, with noise.
        stddev: of the noise on each number of the mean.
        loss: what it cost.
    """

    mean: Array
    stddev: Any
    loss: privacy.PrivacyLoss


def released(
    key: jax.Array, num_users: int, total: Array, bound: Any, multiplier: Any, nonnegative: bool
) -> Release:
    """The mean of terms from their sum, each of which has a norm of at most ``bound``.

    Where no two terms have a negative product the sensitivity is √2 times the bound instead of twice that.
    """
    aggregate = transforms.summed_contributions(bound, num_users, nonnegative=nonnegative)
    release = transforms.privatize(aggregate, key, multiplier)
    mean, state = release.update(total, release.init(jnp.zeros_like(total)), clipped_to=bound)
    return Release(mean, multiplier * aggregate.sensitivity, privacy.privacy_spent(state))


class Bends(NamedTuple):
    """Curvatures of a link.

    Attributes:
        largest: at any margin and label.
        flatness: the largest over that at margins of zero.
        mean: at most ``largest``; the mean over rows is taken to stay below it. An intercept of a rare class
            makes it smaller, and steps longer (``_first_intercept``).
    """

    largest: Any
    flatness: Any
    mean: Any


def slope(model: LinearModel, objective: Objective) -> jax.Array:
    """The slope of the link that users may be expected to have: where the search for a radius starts."""
    largest = objective.lipschitz / model.feature_bound
    known = objective.label_range
    if model.outputs is not None or known is None or not np.isfinite([known.low, known.high]).all():
        return jnp.asarray(largest)
    ends = jnp.asarray([known.low, known.high], jnp.float32)
    return jnp.minimum(largest, 2.0 * jnp.max(jnp.abs(model.derivative(jnp.zeros(2), ends))))


def bends(model: LinearModel, largest: float) -> Bends:
    """Known before anything is released; flatness is at most the number of outputs, 1 for a vector."""
    if model.outputs is None:
        return Bends(largest, 1.0, largest)
    found = jax.jacfwd(model.derivative)(jnp.zeros(model.outputs), jnp.zeros(()))
    flatness = jnp.clip(largest / jnp.linalg.norm(found, 2), 1.0, model.outputs)
    return Bends(largest, flatness, largest)


def margin_scale(model: LinearModel, objective: Objective) -> float:
    """Half of the largest margin that a label asks for, in the units of labels; 0.5 where none asks for one.

    A label asks for the margin at which its loss is flat: with the squared loss for itself. Classes ask for
    infinite ones, and of labels whose range the objective does not say nothing is known.
    """
    known = objective.label_range
    curvature = (objective.smoothness or 0.0) / model.feature_bound**2
    if model.outputs is not None or known is None or curvature == 0.0:
        return _MARGIN
    ends = np.asarray([known.low, known.high], np.float32)
    if not np.isfinite(ends).all():
        return _MARGIN
    steep = np.asarray(model.derivative(jnp.zeros(2), jnp.asarray(ends)))
    asked = -steep / np.float32(curvature)
    left = np.asarray(model.derivative(jnp.asarray(asked), jnp.asarray(ends)))
    largest = float(np.max(np.abs(asked)))
    flat = bool(np.all(np.abs(left) <= 1e-3 * np.max(np.abs(steep))))
    return _MARGIN * largest if flat and largest > 0.0 else _MARGIN
