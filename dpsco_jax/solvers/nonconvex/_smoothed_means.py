"""Private means of estimates of smoothed gradients, begun anew every period, kept up by differences.

- ``OnePass``: every user takes part in one step; the noise of the steps of a period is correlated, so that
  the sum that is the estimate has little of it.
- ``EveryStep``: everybody takes part in every step; noise in proportion to the distance of two points.

Source: thesis, Algorithms 24 to 26, with corrections C8-1 to C8-3 in docs/corrections/nonconvex.md.

Formal guarantee: a user's estimate is clipped, whatever it is, so that no property of the loss and no number
of directions matters. ``OnePass``: users are read by position, nobody twice. In each step a user's share of
what is released has norm at most c, its own part of one mean: replacing a user moves one step by at most 2c.
A period's steps are one stream of ``privatize`` with correlated noise, of ``noise_multiplier``; streams are
of disjoint users, so the run costs what one of them does. The estimate is a sum of released steps, and the
exact sum is nowhere: the thesis keeps it as a secret and covers it anew, which is the same in law.
``EveryStep``: that of ``_spider_mean.Spider``.

Cost: 4m values, or 2m + 1 gradients, of every user of a step, whether it begins anew or not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpsco_jax import _checks
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import ByState, Estimate, sampling
from dpsco_jax.oracles import spider as differences
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _planning, means
from dpsco_jax.solvers.nonconvex._spider_mean import Spider
from dpsco_jax.solvers.nonconvex._stream_mean import StreamMean, Streams
from dpsco_jax.solvers.work import Work

__all__ = ["ORDERS", "EveryStep", "OnePass", "StreamReleases"]

ORDERS = ("zeroth", "first")


@pytree
class StreamReleases(Streams):
    """All releases of a pass over the users, with the numbers that it uses.

    Attributes:
        period: Σ, steps of a stream.
        batch_sizes: users of the first step of a period, and of any other.
    """

    period: int = static(kw_only=True)
    batch_sizes: tuple[int, int] = static(kw_only=True)

    def __post_init__(self) -> None:
        _checks.require(min(self.batch_sizes) >= 1, "batch_sizes", self.batch_sizes, "at least 1")
        read, there = self.first_of(self.num_steps), self.population_size
        wanted = f"such that all steps are of at most {there} users"
        _checks.require(read <= there, "batch_sizes", self.batch_sizes, wanted)

    def first_of(self, step: Any) -> Any:
        """The position of the first user of a step t = 0, 1, ...; may be traced."""
        first, later = self.batch_sizes
        begun = (step + self.period - 1) // self.period
        return begun * first + (step - begun) * later

    @property
    def batch_size(self) -> int:
        """Users of a step, on average over the run, rounded up."""
        return -(-int(self.first_of(self.num_steps)) // self.num_steps)


class PeriodState(NamedTuple):
    """State of the estimate of a pass.

    Attributes:
        release: of ``privatize``, with the ledger.
        estimate: the sum of what was released in this period.
        previous: the point of the last step.
        made: t, how many steps.
    """

    release: Any
    estimate: Any
    previous: Any
    made: jax.Array


def _summed(
    release: optax.GradientTransformationExtraArgs, period: int, share: Any
) -> optax.GradientTransformationExtraArgs:
    """Releases in units of a user's share, summed over a period."""

    def init(params: Any) -> PeriodState:
        zeros = jax.tree.map(
            lambda x: jnp.zeros(jnp.shape(x), jnp.promote_types(x.dtype, jnp.float32)), params
        )
        copy, none = jax.tree.map(jnp.copy, params), jnp.zeros([], jnp.int32)
        return PeriodState(release.init(params), zeros, copy, none)

    def update(
        updates: Any, state: PeriodState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, PeriodState]:
        released, inner = release.update(updates, state.release, params, **extra_args)
        fresh = state.made % period == 0
        estimate = jax.tree.map(
            lambda old, new: jnp.where(fresh, 0.0, old) + share * new.astype(old.dtype),
            state.estimate,
            released,
        )
        estimate = jax.tree.map(lambda new, old: new.astype(old.dtype), estimate, state.estimate)
        previous = jax.tree.map(jnp.asarray, params)
        after = PeriodState(inner, estimate, previous, optax.safe_increment(state.made))
        return jax.tree.map(lambda v, u: v.astype(jnp.result_type(u)), estimate, updates), after

    return optax.GradientTransformationExtraArgs(init, update)


class _OfDraws:
    """What both means say of their estimates."""

    order: str
    draws: int
    smoothing_radius: Any

    @property
    def gradients_per_user(self) -> int:
        """Values, or gradients, of a user in a step."""
        return 4 * self.draws if self.order == "zeroth" else 2 * self.draws + 1

    @property
    def smoothing(self) -> differences.Smoothing:
        """For the oracle."""
        return differences.Smoothing(self.order, self.smoothing_radius, self.draws)


@pytree
class OnePass(_OfDraws, StreamMean):
    """Means of batches of users who take part once.

    Attributes:
        chunk_size: users whose estimates are held at once.
        order: ``"zeroth"``, from values, or ``"first"``, from gradients.
        draws: m of an estimate.
        releases: sizes and noise.
        share_norm: c, to which a user's share of a mean is clipped: the estimate to c·B_1 in the first step
            of a period, a difference to c·B_2 in any other.
        smoothing_radius: α.
    """

    chunk_size: int = static()
    order: str = static(choices=ORDERS)
    draws: int = static()
    releases: StreamReleases
    share_norm: Number
    smoothing_radius: Number

    kind = StreamReleases

    def work_for(self, item: _costs.Item) -> Work:
        """What one step costs."""
        users = self.releases.batch_size
        estimates = _costs.gradients(users * self.gradients_per_user, item)
        return estimates + _costs.release(item.dim)

    def open(
        self, key: jax.Array, objective: Objective, data: UserData, start: Any
    ) -> means.Opened:
        """See ``means.Mean.open``."""
        of = self.releases
        _planning.require_accounted(of.population_size, data)
        _checks.require_positive("share_norm", self.share_norm)
        form = differences.sum_form(objective, start, self.chunk_size, self.smoothing)
        oracle_of, prepare = form
        sizes = jnp.asarray(of.batch_sizes, jnp.int32)
        most = max(of.batch_sizes)

        def at(opt_state: Any, params: Any) -> Any:
            state = _state(opt_state)
            fresh = state.made % of.period == 0
            size = jnp.where(fresh, sizes[0], sizes[1])
            asked = differences.Query(params, state.previous, fresh, self.share_norm * size)
            first = of.first_of(state.made)
            ask = oracle_of(sampling.one_pass(of.population_size, first, size, most))

            def oracle(key: jax.Array, params: Any, rows: Any) -> Estimate:
                del params
                found = ask(key, asked, rows)
                return found._replace(num_gradients=self.gradients_per_user * found.num_gradients)

            return oracle

        summed = _summed(self._release(key, of.period), of.period, self.share_norm)
        return means.Opened(ByState(at), prepare(data), summed)


def _state(opt_state: Any) -> PeriodState:
    is_one = lambda node: isinstance(node, PeriodState)  # noqa: E731
    (found,) = [node for node in jax.tree.leaves(opt_state, is_leaf=is_one) if is_one(node)]
    return found


@pytree
class EveryStep(_OfDraws, Spider):  # type: ignore[override]
    """Means over everybody in every step, begun anew every so many steps.

    Attributes:
        order: ``"zeroth"``, from values, or ``"first"``, from gradients.
        draws: m of an estimate.
        smoothing_radius: α.
    """

    order: str = static(choices=ORDERS, kw_only=True)
    draws: int = static(kw_only=True)
    smoothing_radius: Number = None

    def work_for(self, item: _costs.Item) -> Work:
        """What one step costs."""
        users = self.releases.batch_size
        estimates = _costs.gradients(users * self.gradients_per_user, item)
        return estimates + _costs.release(item.dim)

    def form(self, objective: Objective, start: Any) -> Any:
        """The oracle of a step, for any sampler, and what makes data into its form."""
        of = self.releases
        made = of.most_refreshes + of.most_differences
        _checks.require(
            of.num_steps == made, "num_steps", of.num_steps, f"the {made} accounted for"
        )
        return differences.sum_form(objective, start, self.chunk_size, self.smoothing)
