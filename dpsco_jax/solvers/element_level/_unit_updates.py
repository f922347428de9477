"""The private mean of unit updates: an update of every unit, clipped, summed, divided by users, covered.

This is one step of E, Algorithm 1. An update is the gradient of the unit's mean loss,
the gradient mapping (w - Π(w - η·g))/η of it, or whatever a client makes of its items.

The guarantee is that of ``ElementReleases``, whatever the update is: every update is a function of the items
of its unit and of public values, is clipped, and counts as zero if it is not finite. A step takes one update
for every unit, and memory of ``chunk_size`` of them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpsco_jax import _checks, _compensated, _record_keys, _sharding, transforms
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.geometry import clipping, norms
from dpsco_jax.geometry.domains import Domain
from dpsco_jax.oracles import (
    ByStep,
    Estimate,
    Oracle,
    _convolutions,
    gradients,
    sampling,
    user_gradients,
)
from dpsco_jax.oracles._summed import summed
from dpsco_jax.oracles.chunks import most_rows, split_sum_over_users
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData, user_loss
from dpsco_jax.solvers import _costs, _planning
from dpsco_jax.solvers.element_level._releases import ElementReleases
from dpsco_jax.solvers.means import OfLength, Opened
from dpsco_jax.solvers.work import Work

Update = Callable[[Any, Any, Any, Any], Any]
"""``(step, params, items, mask) -> update`` of one unit."""


@pytree
class UnitUpdates(OfLength):
    """The mean of the updates of a step: gradients, or gradient mappings for the length of a method's steps.

    Attributes:
        chunk_size: units whose updates are held at once.
        releases: sizes, sampling, relation and noise.
        clip_norm: C, of one unit's update.
    """

    chunk_size: int = static()
    releases: ElementReleases
    clip_norm: Number

    kind = ElementReleases
    takes_method = True

    @property
    def passes(self) -> int:
        """Gradients of a unit that its update takes."""
        return 1

    def noise_stddev(self, dim: int) -> Any:
        """σ of the noise on each coordinate of the mean update, whatever their number ``dim``."""
        del dim
        return self.releases.noise_multiplier * self.releases.per_clip_norm * self.clip_norm

    def work_for(self, item: _costs.Item) -> Work:
        """What one release costs."""
        # Items are those of a user, and units share them.
        items = max(1, round(item.slots / self.releases.elements_per_user))
        units = self.releases.batch_size * self.releases.elements_per_user
        updates = _costs.clipped_losses(units, item._replace(slots=items), self.passes)
        sample = _costs.poisson_sample(self.releases.num_units, units)
        return sample + updates + _costs.release(item.dim)

    def update(self, objective: Objective, start: Any, method: Any) -> Update | None:
        """What a unit makes of its items; ``None`` for its gradient."""
        if is_whole_space(objective.domain, start) or not hasattr(method, "length"):
            return None
        return gradient_mapping(objective, method.length)

    def open(
        self, key: jax.Array, objective: Objective, data: UserData, start: Any, method: Any = None
    ) -> Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise.

        Raises:
            ValueError: if the data have not the number of units that the releases are for.
        """
        releases, update = self.releases, self.update(objective, start, method)
        _planning.require_accounted(releases.num_units, data)
        steps = releases.steps
        bound = releases.bound * self.clip_norm
        aggregate = transforms.summed_contributions(bound, releases.batch_size, steps.relation)
        release = transforms.privatize(aggregate, key, releases.noise_multiplier, steps.scheme)
        if releases.sums_users:
            of_unit = update or gradient_update(objective)
            return Opened(ByStep(lambda t: _user_sums(self, of_unit, t)), data, release)
        drawn = _planning.sampler(steps.scheme, releases.num_units)
        if update is None:
            oracle, rows = user_gradients.clipped_sum_oracle(
                objective, data, start, self.clip_norm, drawn, self.chunk_size
            )
            return Opened(oracle, rows, release)

        def at_step(t: jax.Array) -> Oracle:
            return gradients.clipped_gradient_sum(
                lambda _, params, items, mask: update(t, params, items, mask),
                self.clip_norm,
                drawn,
                self.chunk_size,
            )

        return Opened(ByStep(at_step), data, release)


def gradient_update(objective: Objective) -> Update:
    """The gradient of a unit's mean loss; zero for a unit without items."""
    loss = user_loss(objective)
    gradient = _convolutions.kept_apart(jax.grad(loss), loss)
    return lambda _, params, items, mask: gradient(params, items, mask)


def gradient_mapping(objective: Objective, step_size: Callable[[Any], Any]) -> Update:
    """(w - Π(w - η_t·g))/η_t for the gradient g of a unit's mean loss; zero for a unit without items.

    Args:
        objective: static; the loss and the domain.
        step_size: of the number of the step.
    """
    gradient, domain = gradient_update(objective), objective.domain

    def update(step: Any, params: Any, items: Any, mask: Any) -> Any:
        eta = step_size(step)
        move = jax.tree.map(
            lambda g: (-eta * g).astype(g.dtype), gradient(step, params, items, mask)
        )
        moved = _projected_move(domain, params, move)
        # Of an empty unit nothing may be left, not even the rounding of a projection.
        there = True if mask is None else jnp.any(mask)
        return jax.tree.map(lambda m: jnp.where(there, (-m / eta).astype(m.dtype), 0), moved)

    return update


def is_whole_space(domain: Domain, params: Any) -> bool:
    """Whether the projection gives back its very argument, so that gradient mappings are gradients."""
    return domain.project(params) is params


def _projected_move(domain: Domain, params: Any, move: Any) -> Any:
    if domain.moves is not None and isinstance(params, jax.Array) and params.ndim == 1:
        return domain.moves(params)(move)
    moved = domain.project(jax.tree.map(jnp.add, params, move))
    return jax.tree.map(jnp.subtract, moved, params)


def _rounding(params: Any, slots: int) -> float:
    """What a group's sum of projected users is off by at most, over 2^-24 of their length.

    Groups are rounded on a CPU, and users to a grid elsewhere; the factor that projects is rounded too. See
    docs/theory/sums.md, section 2.
    """
    dim = sum(leaf.size for leaf in jax.tree.leaves(params))
    factors = slots * (1 - norms.head_room(params)) ** 2 * 2.0**23
    return max(float(_compensated.GROUP**2), dim**0.5 / 2) + factors


def _user_sums(mean: UnitUpdates, update: Update, step: jax.Array) -> Oracle:
    """Σ over the users drawn of the projected sum of the user's clipped updates, a few users at a time."""
    releases, clip_norm = mean.releases, mean.clip_norm
    users, slots = releases.num_users, releases.elements_per_user
    _checks.require_positive("clip_norm", clip_norm)
    everybody = releases.sampling == "full"

    def one_unit(params: Any, unit: UserData) -> Any:
        return update(step, params, unit.items, unit.mask)

    def oracle(key: jax.Array, params: Any, data: UserData) -> Estimate:
        drawn = None if everybody else sampling.poisson(key, users, releases.batch_size / users)

        def chosen(rows: Any) -> Any:
            if spread is not None:
                return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
            places = (rows[:, None] * slots + jnp.arange(slots)).ravel()
            return jax.tree.map(lambda x: jnp.asarray(x)[places], data)

        def chunk_sum(rows: Any, counted: jax.Array, position: jax.Array) -> Any:
            del position
            units = chosen(rows)
            per_unit = _record_keys.over_users(lambda unit: one_unit(_sharding.here(params), unit))
            made = jax.lax.optimization_barrier(per_unit(units))
            clipped = jax.vmap(lambda g: norms.clip_to_norm(g, room * clip_norm))(made)
            of_users = jax.tree.map(
                lambda x: jnp.sum(x.reshape(-1, slots, *x.shape[1:]), axis=1), clipped
            )
            longest = room * releases.longest * clip_norm
            total = clipping.split_sum_of_clipped(of_users, longest, counted)
            return total, gradients.count_items(units, jnp.repeat(counted, slots))

        # By their numbers: units that are reshaped by user would be copied as a whole. A device that holds
        # some users only reads no others.
        spread = _sharding.found(data)
        everyone: Any = jnp.arange(users, dtype=jnp.int32)
        if spread is not None:
            everyone = jax.tree.map(lambda x: x.reshape(users, slots, *x.shape[1:]), data)
        at_once = max(1, mean.chunk_size // slots)
        sizes = most_rows(everyone, drawn), at_once, slots
        room = _compensated.room(*sizes, group_rounding=_rounding(params, slots))
        total, count = split_sum_over_users(chunk_sum, everyone, drawn, at_once)
        # Of one unit, which is what is protected.
        return summed(total, count, releases.bound * clip_norm, drawn)

    return oracle
