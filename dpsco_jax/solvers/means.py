"""The private mean of user gradients, step after step: who takes part, how a user is bounded, what covers it.

What it computes: a mean is a value that a plan makes of its fields. ``open`` gives what enters the loop: the
oracle that asks users, the data in the form that it takes, and the release at the head of the chain. A
first-order solver is a mean and a method (``first_order``).

- ``Clipped``: every user's gradient is clipped to a norm; their sum over a public number, plus noise.
- ``ClippedItems``: every item's gradient is clipped; a user counts with all slots, or as often as drawn.
- ``OutlierRemoved``: the mean of users who are near most others, while a noisy test says that most are.
- ``Winsorized``: the mean of gradients whose coordinates, rotated, are clipped to private intervals.

Source: thesis, Algorithm 2 (the private oracle of META).

Formal guarantee: that of ``transforms.privatize`` and ``transforms.outlier_removed_mean`` for the releases
given, whatever data, starting point and method are: the gradient of one user is bounded here, and samples,
shifts and noise have streams of keys of their own.

Cost: one gradient for every item of the users of a step; memory of one chunk of users, and of all rows of a
step for ``OutlierRemoved`` and ``Winsorized``. For linear models ``open`` prepares the data of everybody
once: a second copy, which the loop holds.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, privacy, transforms
from dpsco_jax._argument_kinds import Count, Positive, checked, one_of
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.mechanisms.winsorized import private_range
from dpsco_jax.mechanisms.winsorized.winsorized_releases import (
    BOXED,
    TWO_STEPS,
    WinsorizedReleases,
)
from dpsco_jax.oracles import ByState, ByStep, Oracle, gradients, sampling, smoothed, user_gradients
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases
from dpsco_jax.privacy.releases import GaussianReleases, fixed_size, poisson
from dpsco_jax.privacy.sampling import FullBatch, WithReplacement
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.problem import Problem
from dpsco_jax.problems.stored import StoredUsers
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import _costs, _planning
from dpsco_jax.solvers.work import Work

__all__ = [
    "Clipped",
    "ClippedItems",
    "Mean",
    "OfLength",
    "Opened",
    "OutlierRemoved",
    "Part",
    "Winsorized",
    "clipped",
    "tested_stddev",
]


Sampling = Annotated[str, one_of("poisson", "fixed", "full")]
Selection = Annotated[str, one_of("weighted", "bernoulli")]


class Opened(NamedTuple):
    """What enters the loop.

    Attributes:
        oracle: estimates a gradient at a point.
        data: what the oracle takes.
        release: the head of the chain; makes the estimate private.
        may_halt: static; whether ``transforms.until_halted`` has to watch the release.
    """

    oracle: Oracle | ByStep | ByState
    data: Any
    release: optax.GradientTransformationExtraArgs
    may_halt: bool = False


class Part(NamedTuple):
    """Some of the users, by position, of data that are prepared once for all of them: a turn of a sequence.

    Attributes:
        rows: what ``prepared`` of the mean returns.
        shapes: of the data themselves.
        block: which users, and how many of them take part in a step; may be traced.
    """

    rows: Any
    shapes: UserData
    block: sampling.Block


@runtime_checkable
class Mean(Protocol):
    """Whatever ``first_order.run`` can drive a method with.

    Those that users can choose among are asked for by their type: ``plan(..., mean=means.Clipped)``. A mean
    with an attribute ``kind`` has releases of this class in every plan: a plan refuses others.
    """

    def open(self, key: jax.Array, objective: Objective, data: UserData, start: Any) -> Opened:
        """Oracle, data and release of a run from ``start``; the key is that of the noise.

        Raises:
            ValueError: if the data have not the number of users that the releases are for.
        """


class OfLength:
    """What means have in common whose sensitivity is in proportion to a length."""

    @property
    def _length(self: Any) -> tuple[str, Any, Any]:
        """The name of the length, its value, and the deviation of the noise on a coordinate."""
        return "clip_norm", self.clip_norm, self.noise_stddev(1)

    def loss(self: Any) -> privacy.PrivacyLoss:
        """What releases cost, whenever a test fails; infinite for no length or no noise. May be traced."""
        _, length, stddev = self._length
        return _planning.bounded_loss(length, stddev, self.releases)

    def certificate(self: Any) -> privacy.Certificate:
        """The (ε, δ) of all releases by the tightest accountant; ``ValueError`` for no positive length."""
        _planning.require_accounted_length(*self._length)
        certificate: privacy.Certificate = self.releases.certificate()
        return certificate


class OfUsers(OfLength):
    """The same of means of users' gradients, of which parts of the users are turns of one program."""

    def block(self: Any) -> sampling.Block | None:
        """Who takes part in a step."""
        return sampling.block(self.releases.population_size, self.releases.batch_size)

    def prepared(self: Any, objective: Objective, data: UserData, start: Any) -> Any:
        """The data in the form that runs on parts of them take."""
        return self._form(objective, start, None)[1](data)


@pytree
class Clipped(OfUsers):
    """Gradients clipped to a norm, summed over the users of a step, divided by a public number.

    Attributes:
        chunk_size: users whose gradients are held at once.
        shift: where gradients are taken if there is a smoothing radius: at a point shifted for each
            ``"user"``, each ``"item"`` or each ``"round"`` independently.
        releases: ``GaussianReleases``: sampling, relation and noise of all steps. Of one of several runs in
            a program ``GaussianRun``.
        clip_norm: C.
        smoothing_radius: of the shifts; ``None`` for none.
    """

    chunk_size: int = static()
    shift: str = static(choices=("user", "item", "round"))
    releases: Any
    clip_norm: Number
    smoothing_radius: Number | None

    kind = GaussianReleases

    def noise_stddev(self, dim: int) -> Any:
        """σ of the noise on each coordinate of the mean, whatever their number ``dim``."""
        del dim
        replaced = self.releases.relation == _planning.REPLACE_ONE
        per_norm = self.releases.noise_multiplier * (2 if replaced else 1)
        return per_norm * self.clip_norm / self.releases.batch_size

    def work_for(self, item: _costs.Item) -> Work:
        """What one release costs."""
        drawn, everybody = self.releases.batch_size, self.releases.population_size
        if self.releases.sampling == "poisson":
            sample = _costs.poisson_sample(everybody, drawn)
        else:
            sample = _costs.fixed_sample(drawn, everybody)
        return sample + _costs.clipped_sum(drawn, item) + _costs.release(item.dim)

    def block(self) -> sampling.Block | None:
        """Who takes part in a step; ``None`` for Poisson samples, whose program is of their own size."""
        return None if self.releases.sampling == "poisson" else super().block()

    def lowered(self) -> "Clipped":
        """The mean with sizes that are numbers, for several runs in a program; refuses what those do not."""
        _checks.require_positive("clip_norm", self.clip_norm)
        _checks.require_given(_checks.require_nonnegative, smoothing_radius=self.smoothing_radius)
        return dataclasses.replace(self, releases=self.releases.lowered())

    def prepared(self, objective: Objective, data: UserData, start: Any) -> Any:
        """The data in the form that runs on parts of them take."""
        return self._form(objective, data, start, None, self.chunk_size)[1](data)

    def open(
        self, key: jax.Array, objective: Objective, data: UserData | StoredUsers | Part, start: Any
    ) -> Opened:
        """See ``Mean.open``."""
        run, sampler = self.releases.lowered(), _sampler(self.releases, data)
        chunk = self.chunk_size
        shapes = data.shapes if isinstance(data, StoredUsers | Part) else data
        single = jax.tree.leaves(shapes.items)[0].shape[1] == 1
        if single and self.smoothing_radius is None and isinstance(data, Part):
            # No gradient is held of users with one item: as many at once as no row is read in vain for.
            chunk = max(chunk, data.block.least) if data.block.batch is None else chunk
        oracle, prepare = self._form(objective, shapes, start, sampler, chunk)
        # Rows beyond the users of a step are zeros, and add nothing.
        combine = transforms.clipped_mean if self._by_item else transforms.summed_contributions
        aggregate = combine(self.clip_norm, run.batch_size, run.relation)
        release = transforms.privatize(aggregate, key, run.noise_multiplier, run.proven)
        return Opened(_shifted(self, oracle), _rows(data, prepare), release)

    @property
    def _by_item(self) -> bool:
        """Whether shifts are drawn for every item, which is done by the oracle of rows only."""
        return self.shift == "item" and self.smoothing_radius is not None

    def _form(
        self,
        objective: Objective,
        shapes: UserData,
        start: Any,
        sampler: gradients.Sampler | None,
        chunk: int,
    ) -> tuple[Oracle, Callable[[UserData], Any]]:
        clip, radius = self.clip_norm, _inner(self)
        if self._by_item:
            return user_gradients.rows_form(objective, start, clip, sampler, chunk, radius)
        return user_gradients.clipped_sum_form(
            objective, shapes, start, clip, sampler, chunk, radius
        )


@pytree
class ClippedItems(OfLength):
    """Gradients of items clipped one by one; the guarantee is for users, with all their slots.

    Attributes:
        chunk_size: items whose gradients are held at once.
        items_per_user: m, item slots of a user.
        releases: ``GaussianReleases`` of everybody, with all items, or of draws of one item with
            ``"replacement"``. The noise multiplier is σ over 2mC, or over 2C for a single draw.
        clip_norm: C, of an item.
    """

    chunk_size: int = static()
    items_per_user: int = static()
    releases: Any
    clip_norm: Number

    kind = GaussianReleases

    @property
    def items_per_record(self) -> int:
        """Items of what is drawn: a single one, or all of a user."""
        return 1 if self.releases.sampling == "replacement" else self.items_per_user

    def noise_stddev(self, dim: int) -> Any:
        """σ of the noise on each coordinate of the mean, whatever their number ``dim``."""
        del dim
        return 2 * self.releases.noise_multiplier * self.clip_norm / self.releases.batch_size

    def work_for(self, item: _costs.Item) -> Work:
        """What one release costs."""
        drawn, single = self.releases.batch_size * self.items_per_record, item._replace(slots=1)
        return _costs.clipped_sum(drawn, single) + _costs.release(item.dim)

    def open(self, key: jax.Array, objective: Objective, data: UserData, start: Any) -> Opened:
        """See ``Mean.open``.

        Raises:
            ValueError: if the data have not the number of users, or of slots, that the releases are for,
                these are of another sampling, or the clip norm is an array of integers or narrower than
                float32, in which ``slots`` times it may wrap around.
        """
        scheme = self.releases.scheme
        _checks.require_instance("releases.scheme", scheme, FullBatch | WithReplacement)
        _checks.require_wide_numbers("clip_norm", self.clip_norm)
        _planning.require_accounted(self.releases.population_size, data)
        users, slots = jax.tree.leaves(data.items)[0].shape[:2]
        planned = f"of {self.items_per_user} item slots a user, as planned"
        _checks.require(slots == self.items_per_user, "data", slots, planned)
        draws, total = getattr(scheme, "num_draws", None), users * slots
        # Every slot is a user with one item, so each item's gradient is clipped by itself.
        items = jax.tree.map(lambda leaf: leaf.reshape(total, 1, *leaf.shape[2:]), data)
        sampler = None if draws is None else lambda k: sampling.with_replacement(k, total, draws)
        oracle, rows = user_gradients.clipped_sum_oracle(
            objective, items, start, self.clip_norm, sampler, self.chunk_size
        )
        largest, divisor = (
            (slots * self.clip_norm, total) if draws is None else (self.clip_norm, draws)
        )
        aggregate = transforms.summed_contributions(largest, divisor, _planning.REPLACE_ONE)
        release = transforms.privatize(aggregate, key, self.releases.noise_multiplier, scheme)
        return Opened(oracle, rows, release)


@pytree
class OutlierRemoved(OfUsers):
    """The mean of users who are near most others, released while a noisy test says that most are.

    Attributes:
        chunk_size: users whose items are read at once.
        reach: no honest gradient is farther from the origin, in score radii.
        shift: where gradients are taken if there is a smoothing radius: at a point shifted for each
            ``"item"`` or each ``"round"`` independently.
        releases: ``ConcentratedReleases``: sizes, tests and noise of all steps. Of one of several runs in a
            program ``ConcentratedRun``.
        score_radius: users are near each other within it; twice the distance from a common centre.
        clip_norm: to which gradients are clipped first.
        smoothing_radius: of the shifts; ``None`` for none.
    """

    chunk_size: int = static()
    reach: float = static()
    shift: str = static(choices=("item", "round"))
    releases: Any
    score_radius: Number
    clip_norm: Number
    smoothing_radius: Number | None

    kind = ConcentratedReleases

    @property
    def radius(self) -> Any:
        """How far users may be from a common centre: half of the score radius."""
        return self.score_radius / 2

    @property
    def _length(self) -> tuple[str, Any, Any]:
        return "score_radius", self.score_radius, self.score_radius * self.releases.noise_stddev

    def noise_stddev(self, dim: int) -> Any:
        """σ of the noise on each of ``dim`` coordinates of the mean."""
        return tested_stddev(self.releases, self.score_radius, self.reach, dim)

    def work_for(self, item: _costs.Item) -> Work:
        """What one release costs, n² in the users of a step."""
        drawn = self.releases.batch_size
        sample = _costs.fixed_sample(drawn, self.releases.population_size)
        return sample + _costs.rows(drawn, item) + _costs.near_most(drawn, item.dim)

    def lowered(self) -> "OutlierRemoved":
        """The mean with sizes that are numbers, for several runs in a program; refuses what those do not."""
        _checks.require_positive("clip_norm", self.clip_norm)
        _checks.require_given(_checks.require_nonnegative, smoothing_radius=self.smoothing_radius)
        _checks.require_positive("radius", self.score_radius)
        level = self.releases.keep_level
        _checks.require_within("keep_level", level, 0.5, 1.0, open_low=True, open_high=True)
        _checks.require_finite("threshold", self.releases.threshold)
        _checks.require_positive("test_epsilon", self.releases.test_epsilon)
        _checks.require_nonnegative("noise_stddev", self.releases.noise_stddev)
        return dataclasses.replace(self, releases=self.releases.lowered())

    def open(
        self, key: jax.Array, objective: Objective, data: UserData | Part, start: Any
    ) -> Opened:
        """See ``Mean.open``."""
        oracle, prepare = self._form(objective, start, _sampler(self.releases, data))
        # Around the origin all clipped gradients are in reach, wherever the last release was.
        release = transforms.outlier_removed_mean(
            self.releases, self.score_radius, key, anchor=None, reach=self.reach
        )
        return Opened(_shifted(self, oracle), _rows(data, prepare), release, may_halt=True)

    def _form(
        self, objective: Objective, start: Any, sampler: gradients.Sampler | None
    ) -> tuple[Oracle, Callable[[UserData], Any]]:
        return user_gradients.rows_form(
            objective, start, self.clip_norm, sampler, self.chunk_size, _inner(self)
        )


@pytree
class Winsorized(OfUsers):
    """The mean of gradients whose coordinates, rotated, are clipped to intervals that are found privately.

    Attributes:
        chunk_size: users whose items are read at once.
        releases: ``WinsorizedReleases``: sizes, intervals and noise of all steps. Of one of several runs in
            a program ``WinsorizedRun``.
    """

    chunk_size: int = static()
    releases: Any

    kind = WinsorizedReleases

    def loss(self) -> privacy.PrivacyLoss:
        """What all releases cost. Numbers may be traced."""
        return self.releases.loss()

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of all releases by the tightest accountant."""
        return self.releases.certificate()

    def noise_stddev(self, dim: int) -> Any:
        """σ of the noise on each coordinate of the mean, whatever their number ``dim``."""
        del dim
        return self.releases.noise_stddev

    def work_for(self, item: _costs.Item) -> Work:
        """What one release costs."""
        users, boxed = self.releases.num_users, self.releases.form in BOXED
        mean = _costs.winsorized(users, item.dim, self.releases.padded, boxed)
        return _costs.rows(users, item) + mean

    def lowered(self) -> "Winsorized":
        """The mean with sizes that are numbers, for several runs in a program; refuses what those do not."""
        of = self.releases
        _checks.require_positive("noise_multiplier", of.noise_multiplier)
        _checks.require_positive("bound", of.bound)
        if of.form in BOXED:
            private_range.require_numbers(
                of.range_epsilon, of.coordinate_radius, of.bound, of.bin_width
            )
        if of.form in TWO_STEPS:
            _checks.require_nonnegative("coarse_multiplier", of.coarse_multiplier)
            _checks.require_positive("ball_radius", of.ball_radius)
        return dataclasses.replace(self, releases=of.lowered())

    def open(
        self, key: jax.Array, objective: Objective, data: UserData | Part, start: Any
    ) -> Opened:
        """See ``Mean.open``."""
        oracle, prepare = self._form(objective, start, _sampler(self.releases, data))
        release = transforms.winsorized_mean(self.releases, key)
        return Opened(oracle, _rows(data, prepare), release)

    def _form(
        self, objective: Objective, start: Any, sampler: gradients.Sampler | None
    ) -> tuple[Oracle, Callable[[UserData], Any]]:
        return user_gradients.rows_form(
            objective, start, self.releases.bound, sampler, self.chunk_size
        )


@checked
def clipped(
    problem: Problem,
    budget: privacy.Budget,
    *,
    num_steps: Count,
    batch_size: int | None = None,
    sampling: Sampling = "poisson",
    clip_norm: Positive | None = None,
    accountant: _planning.Accountant = "pld",
    chunk_size: Count = 64,
    relation: NeighboringRelation | None = None,
) -> Clipped:
    """The mean of clipped gradients whose noise keeps a budget. All arguments are public.

    Args:
        problem: for the Lipschitz constant and N.
        budget: (ε, δ) of the run, δ > 0.
        num_steps: T ≥ 1.
        batch_size: users per step, in [1, N]; to be left out for ``"full"`` only.
        sampling: ``"poisson"``, ``"fixed"`` (without replacement) or ``"full"``.
        clip_norm: the objective's Lipschitz constant if left out.
        accountant: what is calibrated to ε: ``"pld"`` the certificate (least noise), ``"rdp"`` the ledger.
        chunk_size: users whose gradients are held at once.
        relation: ADD_OR_REMOVE_ONE (if left out), REPLACE_ONE or REPLACE_SPECIAL under Poisson sampling;
            REPLACE_ONE, left out or not, else.

    Raises:
        ValueError: an argument is out of range.
    """
    problem, budget = _planning.require_request(problem, budget, least_users=1)
    everybody, users = sampling == "full", problem.num_users
    batch_size = users if everybody and batch_size is None else batch_size
    batch = _checks.require_integer("batch_size", batch_size, users if everybody else 1, users)
    clip = problem.lipschitz if clip_norm is None else clip_norm
    clip = _checks.require_real("clip_norm", clip, 0)
    if sampling == "poisson":
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE if relation is None else relation
        steps: Any = poisson(users, batch, num_steps, relation)
    else:
        steps = fixed_size(users, batch, num_steps)
        good = relation is None or relation is steps.relation
        _checks.require(good, "relation", relation, f"REPLACE_ONE for sampling={sampling!r}")
    releases = GaussianReleases(
        users,
        batch,
        num_steps,
        "poisson" if sampling == "poisson" else "fixed",
        steps.noise_multiplier(budget.epsilon, budget.delta, accountant),
        budget.delta,
        **({"poisson_relation": steps.relation} if sampling == "poisson" else {}),
    )
    return Clipped(chunk_size, "user", releases, clip, None)


def tested_stddev(releases: ConcentratedReleases, score_radius: Any, reach: float, dim: int) -> Any:
    """σ of the noise on each coordinate of an outlier-removed mean.

    Args:
        releases: for the noise, in score radii.
        score_radius: users are near each other within it.
        reach: no honest vector is farther from the origin, in score radii; rounding grows with it.
        dim: number of coordinates.

    Raises:
        ValueError: naming the argument that is out of its range.
    """
    _checks.require_instance("releases", releases, ConcentratedReleases)
    _checks.require_positive("score_radius", score_radius)
    _checks.require_count("dim", dim)
    vector = jax.ShapeDtypeStruct((dim,), np.float32)
    return releases.noise_stddev * score_radius * (1 + concentrated_mean.headroom(vector, reach))


def tested_reach(farthest: float, score_radius: float) -> float:
    """The least power of 2, in score radii, that holds all honest vectors: static, shared by many radii."""
    least = max(concentrated_mean.REACH, 1.01 * farthest / score_radius)
    return 2.0 ** math.ceil(math.log2(least))


def _inner(mean: Clipped | OutlierRemoved) -> Any:
    """The radius of the shifts that the oracle makes by itself."""
    return None if mean.shift == "round" else mean.smoothing_radius


def _shifted(mean: Clipped | OutlierRemoved, oracle: Oracle) -> Oracle:
    if mean.shift == "round" and mean.smoothing_radius is not None:
        return smoothed.at_shifted_point(oracle, mean.smoothing_radius)
    return oracle


def _sampler(releases: Any, data: Any) -> gradients.Sampler | None:
    """Who takes part in a step; ``ValueError`` unless the data are of the users accounted for."""
    if isinstance(data, Part):
        return data.block.sampler()
    users = getattr(releases, "population_size", None) or releases.num_users
    _planning.require_accounted(users, data)
    return _planning.sampler(getattr(releases, "scheme", FullBatch()), users)


def _rows(data: Any, prepare: Callable[[UserData], Any]) -> Any:
    """What the oracle takes."""
    if isinstance(data, Part):
        return data.rows
    return data.mapped(prepare) if isinstance(data, StoredUsers) else prepare(data)
