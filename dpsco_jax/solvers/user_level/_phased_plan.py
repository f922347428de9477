"""The plan of phased SGD: its numbers, its cost, its table.

``loss`` and ``certificate`` hold for what ``phased_sgd.solve`` releases, under REPLACE_ONE, whenever the run
halts; assumed: the key stays secret.
"""

import functools
import math
import operator
from typing import Any

from dpsco_jax import _checks, privacy
from dpsco_jax._numerics import array_namespace
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.privacy.releases import GaussianReleases, Releases, parallel_certificate
from dpsco_jax.solvers import _costs, _planning, _sequence, means, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers._schedules import phased_sgd as schedule
from dpsco_jax.solvers.work import Work


def clipped_releases(noise_multiplier: Any, delta: Any) -> GaussianReleases:
    """What a phase without a test releases: one mean of all its groups, one of which may be replaced."""
    return GaussianReleases(
        population_size=1,
        batch_size=1,
        num_steps=1,
        sampling="fixed",
        noise_multiplier=noise_multiplier,
        delta=delta,
    )


def reach(phase: schedule.Phase) -> float:
    """The least power of 2, in radii, that holds all honest averages: static, shared by many radii."""
    least = max(concentrated_mean.REACH, 1.01 * phase.farthest / phase.radius)
    return 2.0 ** math.ceil(math.log2(least))


def with_noise(
    phase: schedule.Phase, num_groups: int, dim: int, releases: Any, noise_multiplier: float
) -> schedule.Phase:
    """The phase with the noise of its mean."""
    if phase.void:
        return phase._replace(stddev=noise_multiplier * 2 * phase.farthest / num_groups)
    stddev = means.tested_stddev(releases, phase.radius, reach(phase), dim)
    return phase._replace(stddev=float(stddev))


@pytree
class Plan(MadeFor):
    """What ``solve`` will do. Sizes are static, numbers are leaves of the pytree (may be batched).

    Attributes:
        num_users: n.
        items_per_user: m.
        dim: number of parameters.
        group_users: users in a group, one number for each phase.
        constants: ``"tight"`` or ``"paper"``.
        clipped: by phase, whether the mean is that of clipped averages, as the radius would test nothing.
        reaches: of ``concentrated_mean``, by phase: no honest average is farther from the phase's start.
        releases: of the outlier-removed mean, for every phase; they hold C, the number of groups.
        noise_multiplier: σ over the sensitivity 2·clip_norm/C of a mean of clipped averages.
        radii: bounds on the distance of groups' averages from their mean, by phase; the scores count pairs
            that are within twice as much of each other.
        clip_norms: how far honest averages can be from the phase's start, by phase.
        step_sizes: η, by phase.
        epsilon: ε of the budget, of each phase and of all together.
        delta: δ of the budget, of each phase and of all together.
        failure: probability, for groups within the radii of each other, that the run halts.
        concentration_failure: bound on the probability that some are not, for i.i.d. items.
        excess_bound: proven bound on the expected excess population risk, ``inf`` where none applies.
        assumed_concentration: whether the bound takes the radii on trust; 0 or 1.
    """

    num_users: int = static()
    items_per_user: int = static()
    dim: int = static()
    group_users: tuple[int, ...] = static()
    constants: str = static(choices=("tight", "paper"))
    clipped: tuple[bool, ...] = static()
    reaches: tuple[float, ...] = static()
    releases: Any
    noise_multiplier: Number
    radii: Number
    clip_norms: Number
    step_sizes: Number
    epsilon: Number
    delta: Number
    failure: Number
    concentration_failure: Number
    excess_bound: Number
    assumed_concentration: Number

    def __post_init__(self) -> None:
        _planning.require_replacement(self.releases)
        phases = len(self.group_users)
        _checks.require(
            len(self.clipped) == phases, "clipped", self.clipped, f"{phases} of True, False"
        )

    @property
    def num_groups(self) -> int:
        """C, in every phase."""
        return self.releases.population_size

    @property
    def phase_users(self) -> tuple[int, ...]:
        """Users of each phase; the others are left out, by position."""
        return tuple(self.num_groups * users for users in self.group_users)

    @property
    def user_gradients(self) -> int:
        """User gradients of the whole run: one for each user who is in a group."""
        return sum(self.phase_users)

    @property
    def item_gradients(self) -> int:
        """Item gradients of the whole run: Σ C·N_i·m."""
        return self.user_gradients * self.items_per_user

    @property
    def noise_stddevs(self) -> tuple[Any, ...]:
        """Noise on each coordinate of the result of each phase."""
        return tuple(
            self.noise_multiplier * 2 * clip / self.num_groups
            if clipped
            else means.tested_stddev(self.releases, 2 * radius, span, self.dim)
            for clipped, radius, clip, span in zip(
                self.clipped, self.radii, self.clip_norms, self.reaches, strict=True
            )
        )

    @property
    def break_even_radii(self) -> tuple[Any, ...]:
        """Radii at which the noise would be that of a mean of clipped averages, which pays for no test."""
        return tuple(
            self.noise_multiplier
            * 2
            * clip
            / self.num_groups
            / means.tested_stddev(self.releases, 2.0, span, self.dim)
            for clip, span in zip(self.clip_norms, self.reaches, strict=True)
        )

    @property
    def assumes(self) -> tuple[str, ...]:
        """What the bound on the excess risk assumes; privacy assumes none of it."""
        assumed = [
            "losses are convex and Lipschitz as the objective says",
            f"users are independent, each with {self.items_per_user} i.i.d. items",
        ]
        if float(self.assumed_concentration):
            assumed.append(
                "the averages of all groups of a phase are within its radius of their mean"
            )
        return tuple(assumed)

    def work_for(self, item: _costs.Item) -> Work:
        """What the whole run costs: a pass over all items, one after the other in every group."""
        walked = _costs.walks(self.num_groups, self.user_gradients * item.slots, item)
        means_of_groups = [
            _costs.release(item.dim) if clipped else _costs.near_most(self.num_groups, item.dim)
            for clipped in self.clipped
        ]
        return functools.reduce(operator.add, means_of_groups, walked)

    def loss(self) -> privacy.PrivacyLoss:
        """The loss of the run, whenever it halts."""
        lengths, stddevs = self._lengths
        losses = [_planning.bounded_loss(lengths, stddevs, kind) for kind in self._kinds]
        return _sequence.parallel_loss(losses)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of the run: of phases on users of their own.

        Raises:
            ValueError: if a number is out of the range in which there is a proof.
        """
        _planning.require_accounted_length("clip_norms and radii", *self._lengths)
        return parallel_certificate([kind.certificate() for kind in self._kinds])

    @property
    def _lengths(self) -> tuple[Any, Any]:
        """What sensitivities are in proportion to, and the noise before rounding is paid for, by phase."""
        xp = array_namespace(self.clip_norms, self.radii)
        each = xp.where(
            xp.asarray(self.clipped),
            2 * xp.asarray(self.clip_norms) * self.noise_multiplier / self.num_groups,
            2 * xp.asarray(self.radii) * self.releases.noise_stddev,
        )
        return xp.stack([self.clip_norms, self.radii]), each

    @property
    def _kinds(self) -> list[Releases]:
        """What the phases release; those with the same mean release the same."""
        kinds = {True: clipped_releases(self.noise_multiplier, self.delta), False: self.releases}
        return [kinds[clipped] for clipped in dict.fromkeys(self.clipped)]

    def __str__(self) -> str:
        because = "the radius holds any two averages: it tests nothing"
        remarks = [("clipped because", because)] if any(self.clipped) else []
        return plans.describe("phased SGD with outlier iterates removed", self, remarks)
