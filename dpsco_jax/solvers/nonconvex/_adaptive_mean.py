"""The private mean of a pass over the users whose batches are as large as the step before was long.

What it computes: an estimate v_t that begins anew from a batch of b users, and is kept up by the differences
of batches of ⌈max(r/c, rκ/a²)⌉ users, r = M·‖x_t - x_{t-1}‖; see ``adaptive_spider``.

Source: thesis, Algorithms 21 and 22, with corrections C7-1 to C7-5 in docs/corrections/nonconvex.md.

Formal guarantee: users are read by position, nobody twice: the size of a batch is a function of what was
released, and a step for which too few users are left halts the run, and reads none. A user's part of a batch
of B is clipped to c·B, so that each share of a mean is at most c long, whatever the loss is. From one
beginning to the next, at most ``longest`` steps, the shares are one stream of ``privatize`` with correlated
noise, of ``noise_multiplier``; no user is in two streams, so the run costs what one of them does. The
estimate is a sum of released steps, and the exact sum, which the thesis keeps as a secret and covers anew, is
nowhere.

Cost: two gradients of every user, once.
"""

from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.oracles import ByState, Estimate, sampling
from dpsco_jax.oracles import spider as differences
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _planning, means
from dpsco_jax.solvers.nonconvex._stream_mean import StreamMean, Streams
from dpsco_jax.solvers.work import Work

__all__ = ["Adaptive", "AdaptiveReleases"]


@pytree
class AdaptiveReleases(Streams):
    """All releases of a pass over the users, with the numbers that it uses.

    Attributes:
        longest: steps of a stream, at most.
        first_batch: b, users of a step that begins anew.
    """

    longest: int = static(kw_only=True)
    first_batch: int = static(kw_only=True)

    def __post_init__(self) -> None:
        there = self.population_size
        wanted = f"at most population_size = {there}"
        _checks.require(self.first_batch <= there, "first_batch", self.first_batch, wanted)

    @property
    def batch_size(self) -> int:
        """Users of a step, on average over a run that reads everybody, rounded up."""
        return -(-self.population_size // self.num_steps)


@pytree
class Adaptive(StreamMean):
    """Means of batches of users who take part once.

    Attributes:
        chunk_size: users whose gradients are held at once.
        releases: sizes and noise.
        share_norm: c, of a user's share of a mean.
        difference_clip: M.
        drift: κ, at which the estimate begins anew.
        accuracy: a: the users of a step are such that what they add to the error has a variance of about a².
    """

    gradients_per_user = 2
    kind = AdaptiveReleases

    chunk_size: int = static()
    releases: AdaptiveReleases
    share_norm: Number
    difference_clip: Number
    drift: Number
    accuracy: Number

    def work_for(self, item: _costs.Item) -> Work:
        """What one step costs."""
        users = self.releases.batch_size
        sums = _costs.clipped_sum(users, item) + _costs.gradients(users, item)
        return sums + _costs.release(item.dim)

    def next_step(
        self, state: transforms.AdaptiveSpiderState, params: Any
    ) -> transforms.AdaptiveStep:
        """What is public of the step at ``params``; a function of what was released."""
        of = self.releases
        moved = jax.tree.map(lambda x, y: x - y, params, state.previous)
        reach = self.difference_clip * global_norm(moved).astype(float)
        drift = state.last.drift + reach
        fresh = (state.made == 0) | (drift >= self.drift) | (state.position >= of.longest)
        # Rounded up: fewer users would be clipped, or their mean farther off.
        wanted = jnp.ceil(
            jnp.maximum(reach / self.share_norm, reach * self.drift / self.accuracy**2)
        )
        few = wanted < 2.0**30  # and a number
        wanted = jnp.where(few, jnp.maximum(wanted, 1.0), 1.0).astype(jnp.int32)
        wanted = jnp.where(fresh, jnp.int32(of.first_batch), wanted)
        # As integers: float32 takes 2^24 + 3 for 2^24 + 4 users, one of whom there is not.
        enough = (fresh | few) & (wanted <= of.population_size - state.taken)
        halted = state.last.halted | ~enough | (state.made >= of.num_steps)
        size = jnp.where(halted, 0, wanted)
        return transforms.AdaptiveStep(fresh, size, jnp.where(fresh, 0.0, drift), halted)

    def open(
        self, key: jax.Array, objective: Objective, data: UserData, start: Any
    ) -> means.Opened:
        """See ``means.Mean.open``."""
        of = self.releases
        _planning.require_accounted(of.population_size, data)
        _checks.require_positive("share_norm", self.share_norm)
        oracle_of, prepare = differences.sum_form(objective, start, self.chunk_size)
        users = of.population_size

        def at(opt_state: Any, params: Any) -> Any:
            state = transforms.adaptive_state(opt_state)
            step = self.next_step(state, params)
            unit = self.share_norm * jnp.maximum(step.size, 1)
            asked = differences.Query(params, state.previous, step.fresh, unit)

            ask = oracle_of(sampling.one_pass(users, state.taken, step.size, users))

            def oracle(key: jax.Array, params: Any, rows: Any) -> Estimate:
                del params
                found = ask(key, asked, rows)
                return found._replace(
                    extra_args=found.extra_args | {"step": step},
                    num_gradients=self.gradients_per_user * found.num_gradients,
                )

            return oracle

        release = self._release(key, of.longest)
        return means.Opened(
            ByState(at),
            prepare(data),
            transforms.adaptive_spider(release, self.share_norm),
            may_halt=True,
        )
