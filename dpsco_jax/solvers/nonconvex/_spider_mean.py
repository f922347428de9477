"""The private mean of user gradients whose noise is kept small by differences, step after step.

What it computes: see ``transforms.spider``. Users are all there are, in every step; or each step has users of
its own, in the order of the data, and nobody takes part twice.

Source: thesis, Algorithm 17 with the oracles (6.2), of everybody, and (6.3), of one pass; corrections C6-1 to
C6-4 and C6-6 in docs/corrections/nonconvex.md.

Formal guarantee: that of ``transforms.spider``, under ``relation``. With everybody in every step the squares
of 1/multiplier add up, over the dearest steps there may be. In one pass every user
is in one release at most, so that the run costs what its dearest release does.

Cost: two gradients of every user of a step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax._numerics import as_floats
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.oracles import ByState, Estimate, sampling
from dpsco_jax.oracles import spider as differences
from dpsco_jax.privacy.releases import fixed_size
from dpsco_jax.privacy.sampling import FullBatch
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _planning, means
from dpsco_jax.solvers.work import Work

__all__ = ["Spider", "SpiderReleases"]

REFRESH = ("periodic", "drift")
_NO_NOISE = 1e-15


@pytree
class SpiderReleases:
    """All releases of a run, with the numbers that it uses.

    Attributes:
        population_size: n, users of the run.
        num_steps: T.
        most_refreshes: how often the estimate begins anew, at most; a step does either.
        most_differences: how often it is kept up, at most.
        batch_sizes: users of a step that begins anew and of any other; n, n for everybody in every step.
        refresh_multiplier: standard deviation over the sensitivity where the estimate begins anew.
        difference_multiplier: the same of all other steps.
        delta: δ of the certificate.
        neighbours: REPLACE_ONE, or REPLACE_SPECIAL, where a user is replaced by one who adds nothing.
    """

    population_size: int = static()
    num_steps: int = static()
    most_refreshes: int = static()
    most_differences: int = static(least=0)
    batch_sizes: tuple[int, int] = static()
    refresh_multiplier: Number
    difference_multiplier: Number
    delta: Number
    neighbours: NeighboringRelation = static(default=NeighboringRelation.REPLACE_ONE)

    def __post_init__(self) -> None:
        if self.sampling == "one_pass":
            read, there = self._users_of_all_steps, self.population_size
            wanted = f"such that all steps are of at most {there} users"
            _checks.require(read <= there, "batch_sizes", self.batch_sizes, wanted)

    @property
    def relation(self) -> NeighboringRelation:
        """Which data sets are neighbours."""
        return self.neighbours

    @property
    def _users_of_all_steps(self) -> int:
        first, other = self.batch_sizes
        return max(anew * first + kept_up * other for anew, kept_up in self._ends)

    @property
    def _ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """How often it begins anew and is kept up: as often the one as may be, and the other."""
        steps = self.num_steps
        anew, kept_up = min(self.most_refreshes, steps), min(self.most_differences, steps)
        return (anew, min(kept_up, steps - anew)), (min(anew, steps - kept_up), kept_up)

    @property
    def sampling(self) -> str:
        """``"full"``, or ``"one_pass"``."""
        everybody = self.batch_sizes == (self.population_size,) * 2
        return "full" if everybody else "one_pass"

    @property
    def batch_size(self) -> int:
        """Users of a step, on average over a run with all the releases that it may make, rounded up."""
        return -(-self._users_of_all_steps // max(map(sum, self._ends)))

    @property
    def joint_multiplier(self) -> Any:
        """The multiplier of one Gaussian release that costs as much as all of them; may be traced."""
        if self.sampling == "one_pass":
            return jnp.minimum(self.refresh_multiplier, self.difference_multiplier)
        xp, given = as_floats(self.refresh_multiplier, self.difference_multiplier)
        # No noise, or what is none, costs more than is ever allowed; ``loss`` says that it is infinite.
        first, other = (xp.where(one > 0, one, _NO_NOISE) for one in given)
        of_both = [anew / first**2 + kept_up / other**2 for anew, kept_up in self._ends]
        traced = any(isinstance(end, jax.core.Tracer) for end in of_both)
        return (jnp.maximum if traced else np.maximum)(*of_both) ** -0.5  # in float64 on the host

    def loss(self) -> privacy.PrivacyLoss:
        """What all releases cost; infinite unless both multipliers are positive. May be traced."""
        numbers = jnp.asarray([self.refresh_multiplier, self.difference_multiplier])
        good = jnp.all((numbers > 0) & jnp.isfinite(numbers))
        return privacy.unbounded_unless(
            good, FullBatch().gaussian_loss(self.joint_multiplier, self.relation)
        )

    @property
    def event(self) -> Any:
        """The joint Gaussian release, for an accountant on the host."""
        return FullBatch().gaussian_event(float(self.joint_multiplier))

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all releases; ``ValueError`` for a multiplier that is no positive number."""
        for name in ("refresh_multiplier", "difference_multiplier"):
            _checks.require_real(name, getattr(self, name), 0.0)
        one = fixed_size(self.population_size, self.population_size, 1)
        return one._replace(relation=self.relation).certificate(
            float(self.joint_multiplier), self.delta
        )


@pytree
class Spider:
    """Clipped gradients where the estimate begins anew, clipped differences elsewhere.

    Attributes:
        chunk_size: users whose gradients are held at once.
        refresh: when the estimate begins anew: ``"periodic"``, every ``every`` steps, or ``"drift"``, once
            the squared lengths of the steps since then add up to ``every``.
        releases: sizes and noise.
        gradient_clip: G.
        difference_clip: M, of a difference of gradients over the distance of the points.
        every: of the refreshes.
    """

    gradients_per_user = 2
    kind = SpiderReleases

    chunk_size: int = static()
    refresh: str = static(choices=REFRESH)
    releases: SpiderReleases
    gradient_clip: Number
    difference_clip: Number
    every: Number

    def noise_stddev(self, dim: int) -> Any:
        """σ on each coordinate of the mean gradient where the estimate begins anew."""
        del dim
        per_norm = self._per_norm * self.releases.refresh_multiplier
        return per_norm * self.gradient_clip / self.releases.batch_sizes[0]

    @property
    def _per_norm(self) -> float:
        return 2.0 if self.releases.relation is NeighboringRelation.REPLACE_ONE else 1.0

    def loss(self) -> privacy.PrivacyLoss:
        """What a run costs, by the most that it may release; infinite for no length or no noise."""
        of = self.releases
        lengths = jnp.asarray([self.gradient_clip, self.difference_clip])
        noise = jnp.asarray([of.refresh_multiplier, of.difference_multiplier]) * lengths
        noise = noise * self._per_norm / jnp.asarray(of.batch_sizes)
        return _planning.bounded_loss(jnp.max(lengths), jnp.min(noise), of)

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all releases; ``ValueError`` for a number that proves nothing."""
        for name in ("gradient_clip", "difference_clip"):
            _checks.require_real(name, getattr(self, name), 0.0)
        return self.releases.certificate()

    def work_for(self, item: _costs.Item) -> Work:
        """What one step costs."""
        users = self.releases.batch_size
        sums = _costs.clipped_sum(users, item) + _costs.gradients(users, item)
        return sums + _costs.release(item.dim)

    def open(
        self, key: jax.Array, objective: Objective, data: UserData, start: Any
    ) -> means.Opened:
        """See ``means.Mean.open``."""
        of = self.releases
        _planning.require_accounted(of.population_size, data)
        oracle_of, prepare = self.form(objective, start)
        clips = (self.gradient_clip, self.difference_clip)
        most = (of.most_refreshes, of.most_differences, of.num_steps)

        def at(opt_state: Any, params: Any) -> Any:
            state = _state(opt_state)
            step = state.step(params, self.refresh, self.every, most)
            asked = differences.query(params, state.previous, step.fresh, *clips, step.distance)
            ask = oracle_of(self._sampler(state, step.fresh))

            def oracle(key: jax.Array, params: Any, rows: Any) -> Estimate:
                del params
                found = ask(key, asked, rows)
                return found._replace(
                    extra_args=found.extra_args | {"step": step},
                    num_gradients=self.gradients_per_user * found.num_gradients,
                )

            return oracle

        multipliers = (of.refresh_multiplier, of.difference_multiplier)
        release = transforms.spider(
            key, clips, of.batch_sizes, multipliers, self.loss(), of.relation
        )
        return means.Opened(ByState(at), prepare(data), release, may_halt=True)

    def form(self, objective: Objective, start: Any) -> Any:
        """The oracle of a step, for any sampler, and what makes data into its form."""
        return differences.sum_form(objective, start, self.chunk_size)

    def _sampler(self, state: transforms.SpiderState, fresh: jax.Array) -> Any:
        """Everybody; or the users after those who have taken part, by position."""
        of = self.releases
        if of.sampling == "full":
            return None
        first, other = of.batch_sizes
        taken = state.refreshes * first + (state.made - state.refreshes) * other
        size = jnp.where(fresh, first, other)
        return sampling.one_pass(of.population_size, taken, size, max(of.batch_sizes))


def _state(opt_state: Any) -> transforms.SpiderState:
    found = [
        node
        for node in jax.tree.leaves(
            opt_state, is_leaf=lambda x: isinstance(x, transforms.SpiderState)
        )
        if isinstance(node, transforms.SpiderState)
    ]
    return found[0]
