"""Spider: a running estimate of a gradient, begun anew now and then and kept up by small differences.

What it computes: at the points x_0, x_1, ... of a run

    v_t = G·(mean of ∇f_u(x_t)/G, noised)                                    where it begins anew,
    v_t = v_{t-1} + M·‖x_t - x_{t-1}‖·(mean of clipped differences, noised)  elsewhere.

``oracles.spider`` sums the vectors in these units, in which every user adds at most one, so that all releases
are of one sensitivity; what multiplies them is public. The estimate begins anew in every ``period``-th step,
or once the points have drifted: once Σ‖x_t - x_{t-1}‖² since it began is at least ``drift``.

Source: thesis, Algorithm 17, with the noise of differences in proportion to the distance (C6-1), the drift
added to what a step that begins anew has left of it, zero (C6-3), and a cap on the number of such steps
(C6-4), which are in docs/corrections/nonconvex.md.

Formal guarantee: each update is one Gaussian release, of ``multipliers[0]`` where the estimate begins anew,
and of ``multipliers[1]`` elsewhere. How often it begins anew may depend on what was released, but there are
never more than so many releases of either kind: a step that would make one more halts the run, and from then
on nothing that is drawn leaves the transformation. So all releases together cost what ``loss`` says: the sum
of the squares of 1/multiplier is bounded whatever comes out, and a Gaussian release of that sum is what fully
adaptive composition leaves. It is charged before the first step, since what a run has used of it would depend
on the data. An update for which ``privatize`` charges an infinite loss
makes the ledger infinite. State but for ``release`` is a function of what was released.

Cost: that of ``privatize``, and two vectors of the size of the parameters.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy
from dpsco_jax._checks import (
    require,
    require_each,
    require_instance,
    require_key,
    require_positive,
    require_relation,
)
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.transforms.aggregates import summed_contributions
from dpsco_jax.transforms.privatize import PrivatizeState, privatize

__all__ = ["SpiderState", "Step", "spider"]


class Step(NamedTuple):
    """What is public of a step before it is made.

    Attributes:
        fresh: whether the estimate begins anew.
        distance: ‖x_t - x_{t-1}‖.
        drift: Σ‖x_s - x_{s-1}‖² of the steps s since the estimate began, this one included.
        halted: whether the run is over, as the step would be one of its kind too many.
    """

    fresh: jax.Array
    distance: jax.Array
    drift: jax.Array
    halted: jax.Array


class SpiderState(NamedTuple):
    """State of ``spider``.

    Attributes:
        release: of ``privatize``, with the ledger.
        estimate: v_{t-1}.
        previous: x_{t-1}.
        made: t, how many steps.
        refreshes: how often the estimate has begun anew.
        last: the step before.
    """

    release: PrivatizeState
    estimate: Any
    previous: Any
    made: jax.Array
    refreshes: jax.Array
    last: Step

    @property
    def halted(self) -> jax.Array:
        """Whether the run is over: what was released does not allow a further step."""
        return self.last.halted

    def step(self, params: Any, refresh: str, every: Any, most: tuple[int, int, int]) -> Step:
        """What is public of the step at ``params``; a function of what was released.

        Args:
            params: x_t.
            refresh: ``"periodic"``, every so many steps, or ``"drift"``, once the drift is at least so much.
            every: of the one or the other.
            most: how often the estimate may begin anew, how often it may be kept up, and both together.
        """
        moved = jax.tree.map(lambda x, y: x - y, params, self.previous)
        distance = global_norm(moved).astype(float)
        drift = self.last.drift + distance**2
        first = self.made == 0
        due = self.made % every == 0 if refresh == "periodic" else first | (drift >= every)
        kept_up = self.made - self.refreshes
        spent = jnp.where(due, self.refreshes >= most[0], kept_up >= most[1])
        halted = self.last.halted | spent | (self.made >= most[2])
        return Step(due, distance, jnp.where(due, 0.0, drift), halted)


def spider(
    key: jax.Array,
    clips: tuple[Any, Any],
    divisors: tuple[Any, Any],
    multipliers: tuple[Any, Any],
    loss: privacy.PrivacyLoss,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> optax.GradientTransformationExtraArgs:
    """The estimate, of sums of vectors of norm at most one; ``update`` takes the ``step`` of the state.

    Args:
        key: a typed key; copied into the state by ``init``.
        clips: G, and M: what a vector is over, and over the distance.
        divisors: how many users a sum is of, where the estimate begins anew and elsewhere.
        multipliers: of the noise over the sensitivity, likewise.
        loss: of the whole run.
        relation: of neighbours.

    Raises:
        ValueError: an argument is not of its kind; by ``init`` and ``update`` what ``privatize`` refuses.
    """
    require_key(key)
    for name, pair in (("clips", clips), ("divisors", divisors), ("multipliers", multipliers)):
        require_instance(name, pair, tuple)
        require(len(pair) == 2, name, pair, "two numbers")
        require_each(require_positive, **{f"{name}[{i}]": x for i, x in enumerate(pair)})
    require_instance("loss", loss, privacy.PrivacyLoss)
    require_relation("relation", relation)

    def made(fresh: Any) -> optax.GradientTransformationExtraArgs:
        def chosen(pair: tuple[Any, Any]) -> jax.Array:
            return jnp.where(fresh, jnp.asarray(pair[0], float), jnp.asarray(pair[1], float))

        mean = summed_contributions(1.0, chosen(divisors), relation)
        return privatize(mean, key, chosen(multipliers))

    def init(params: Any) -> SpiderState:
        release = privatize(summed_contributions(1.0, divisors[0], relation), key, 1.0).init(params)
        paid = release._replace(ledger=privacy.charge(release.ledger, loss))
        nothing, no = jnp.zeros([]), jnp.zeros([], bool)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(jnp.shape(x), jnp.promote_types(x.dtype, jnp.float32)), params
        )
        none = jnp.zeros([], jnp.int32)
        last = Step(no, nothing, nothing, no)
        # Copies: no two leaves of a state that may be donated are one array.
        return jax.tree.map(jnp.copy, SpiderState(paid, zeros, params, none, none, last))

    def update(
        updates: Any, state: SpiderState, params: Any = None, *, step: Step, **extra_args: Any
    ) -> tuple[Any, SpiderState]:
        released, release = made(step.fresh).update(updates, state.release, params, **extra_args)
        # What is charged here has been paid; what cannot be paid makes the ledger infinite.
        ledger = jax.tree.map(
            lambda paid, new: jnp.where(jnp.isfinite(new), paid, new),
            state.release.ledger,
            release.ledger,
        )
        factor = jnp.where(step.fresh, clips[0], clips[1] * step.distance)

        def moved(old: Any, new: Any) -> Any:
            kept = jnp.where(step.fresh, 0.0, old)
            changed = kept + factor.astype(old.dtype) * new.astype(old.dtype)
            return jnp.where(step.halted, old, changed)

        estimate = jax.tree.map(moved, state.estimate, released)
        after = SpiderState(
            release._replace(ledger=ledger),
            estimate,
            jax.tree.map(jnp.asarray, params),
            state.made + 1,
            state.refreshes + step.fresh.astype(jnp.int32),
            step,
        )
        return jax.tree.map(lambda v, u: v.astype(jnp.result_type(u)), estimate, updates), after

    return optax.GradientTransformationExtraArgs(init, update)
