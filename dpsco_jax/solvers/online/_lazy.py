"""A run of lazy draws: what plans of Algorithm 44 and of its relatives share, and the loop, written once.

In round t the play is x_s, s the batch of t. ``observe`` looks at a loss, with the points that stood when it
came; once a batch is over, ``move`` draws the points of the next one: the coin of x_s has the sum of what was
observed in batch s - 1 with x_{s-1} and y_{s-1}, and y_s is drawn after it.
"""

import functools
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import _checks, _counts, _keys, privacy
from dpsco_jax._pytrees import Number, pytree, static
from dpsco_jax.mechanisms.lazy_draws import lazy_draw
from dpsco_jax.solvers import _costs, plans
from dpsco_jax.solvers._plan_base import MadeFor
from dpsco_jax.solvers.plans import Remarks
from dpsco_jax.solvers.solution import Solution, Status
from dpsco_jax.solvers.work import Work

UNIT = 2**24


class Measure(NamedTuple):
    """The laws ν_s of a lazy run, as functions.

    Attributes:
        init: ``init() -> statistic``, of no losses.
        update: ``update(statistic, loss) -> statistic``, with the loss of one round more.
        sample: ``sample(key, statistic) -> point``, a fresh draw.
        loss_at: ``loss_at(loss, point) -> []``, of one round.
    """

    init: Callable[[], Any]
    update: Callable[[Any, Any], Any]
    sample: Callable[[jax.Array, Any], Any]
    loss_at: Callable[[Any, Any], Any]


@pytree
class LazyPlan(MadeFor):
    """What plans of lazy draws share. Sizes are static, numbers are leaves of the pytree (may be batched).

    A plan of a kind has ``clip``, κ, what a round may add to the exponent of a coin, and ``draw_zcdp``, ρ
    of a fresh draw.

    Attributes:
        num_rounds: T.
        dim: d.
        batch_size: B.
        reference: ``"none"`` or ``"lagged"``.
        learning_rate: the factor of losses in the laws: η of multiplicative weights, β of others.
        redraw_probability: p.
        reference_probability: p_y; not used without a reference.
        envelope_factor: E over B·κ, at least 1; not used without a reference.
        epsilon: the budget that was planned for.
        delta: δ of the budget.
        regret_bound: what is proven of the expected regret.
        title: first line of the table.
        remarks: further lines of it.
    """

    num_rounds: int = static()
    dim: int = static()
    batch_size: int = static()
    reference: str = static(choices=("none", "lagged"))
    learning_rate: Number
    redraw_probability: Number
    reference_probability: Number
    envelope_factor: Number
    epsilon: Number
    delta: Number
    regret_bound: Number
    if typing.TYPE_CHECKING:

        @property
        def clip(self) -> Any:
            """Of a kind of plans."""

        @property
        def draw_zcdp(self) -> Any:
            """Of a kind of plans."""

    title: str = static(default="lazy draws", kw_only=True)
    remarks: Remarks = static(default=Remarks(), kw_only=True)

    @property
    def variation(self) -> Any:
        """Total variation distance of a draw from an exact one; ``None`` if it is exact."""
        return None

    @property
    def assumes(self) -> tuple[str, ...]:
        """What privacy, or the bound on the regret, assumes."""
        return ("losses of a round do not depend on what is drawn in it",)

    @property
    def num_batches(self) -> int:
        """⌈T/B⌉."""
        return -(-self.num_rounds // self.batch_size)

    @property
    def envelope(self) -> Any:
        """E, in the exponent of every coin with a reference."""
        return self.envelope_factor * (self.batch_size * self.clip)

    @property
    def releases(self) -> privacy.LazyReleases:
        """All that a run of these numbers releases: of those that are next to them in float32."""
        run = jax.tree.map(_narrow, self)
        return privacy.LazyReleases(
            num_batches=self.num_batches,
            batch_size=self.batch_size,
            reference=self.reference,
            clip=run.clip,
            envelope=run.envelope,
            redraw_probability=run.redraw_probability,
            reference_probability=run.reference_probability,
            draw_zcdp=run.draw_zcdp,
            delta=self.delta,
            variation=run.variation,
        )

    @property
    def relation(self) -> NeighboringRelation:
        """The losses of one round are replaced."""
        return self.releases.relation

    @property
    def user_gradients(self) -> int:
        """None: losses are looked at."""
        return 0

    @property
    def floating_point_operations(self) -> Any:
        """Operations of the whole run."""
        return self.work().floating_point_operations

    def loss(self) -> privacy.PrivacyLoss:
        """What a run of these numbers costs; may be traced."""
        return self.releases.loss()

    def certificate(self) -> privacy.Certificate:
        """The (ε, δ) of everything that a run plays, at the best real order."""
        found = self.releases.certificate()
        return found._replace(assumptions=(*self.assumes, *found.assumptions))

    def work(self) -> Work:  # type: ignore[override]
        """What the whole run costs, with a fresh draw in every batch; losses themselves are the caller's."""
        seen = Work(0.0, 8.0 * self.num_rounds * self.dim, 12.0 * self.num_rounds * self.dim, 1.0)
        return seen + _costs.release(self.dim) * self.num_batches

    def __str__(self) -> str:
        return plans.describe(self.title, self, self.remarks)


class At(NamedTuple):
    """Where a run stands: the points, what was seen, the exponent so far, and the loss of this batch.

    The exponent is in units of the clip, as an integer and 2^-24 of another: floats lose p beside a sum of
    many rounds, and with it what hides the coin.
    """

    play: Any
    reference: Any
    statistic: Any
    exponent: Any
    suffered: Any


class State(NamedTuple):
    """The state of an online run.

    Attributes:
        plan: what is run.
        round: how many losses were seen.
        play: x_s, for the next round: all that may be shown.
        ledger: the loss of the whole run, charged before the first round.
        key: of the run; secret.
        secret: reference, sums of losses and exponent; secret.
    """

    plan: Any
    round: Any
    play: Any
    ledger: privacy.Ledger
    key: jax.Array
    secret: At


def start(key: jax.Array, measure: Measure) -> tuple[jax.Array, At]:
    """The key of the run, and the points before any loss was seen."""
    run_key, play_key, reference_key = jax.random.split(key, 3)
    statistic = measure.init()
    play = measure.sample(play_key, statistic)
    reference = measure.sample(reference_key, statistic)
    return run_key, At(play, reference, statistic, _nothing(), jnp.zeros(()))


def _nothing() -> Any:
    return jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)


def observe(plan: LazyPlan, measure: Measure, at: At, loss: Any) -> At:
    """One round: what it adds to the exponent is clipped, so that the coin of one record is bounded."""
    here = jnp.asarray(measure.loss_at(loss, at.play), float)
    low, difference = 0.0, here
    if plan.reference == "lagged":
        difference = here - jnp.asarray(measure.loss_at(loss, at.reference), float)
        low = -1.0
    added = jnp.clip(plan.learning_rate / plan.clip * difference, low, 1.0)
    units = jnp.round(jnp.where(jnp.isnan(added), 0.0, added) * UNIT).astype(jnp.int32)
    whole, part = at.exponent[0], at.exponent[1] + units
    return At(
        at.play,
        at.reference,
        measure.update(at.statistic, loss),
        (whole + (part >> 24), part & (UNIT - 1)),
        at.suffered + here,
    )


def coin_exponent(plan: LazyPlan, exponent: tuple[Any, Any], more: Any = 0.0) -> Any:
    """Minus the logarithm of the chance that the play is kept, of what was seen in a batch."""
    whole, part = exponent
    more = more - jnp.log1p(-plan.redraw_probability)
    if plan.reference == "lagged":
        # B of the envelope's clips are added as integers: as floats they would cancel with the sum.
        whole = whole + plan.batch_size
        more = more + (plan.envelope_factor - 1.0) * (plan.batch_size * plan.clip)
    return plan.clip * (whole.astype(float) + part.astype(float) / UNIT) + more


def reference_exponent(plan: LazyPlan) -> Any:
    """The same for the reference, whose coin sees nothing."""
    return -jnp.log1p(-plan.reference_probability)


def move(
    plan: LazyPlan, measure: Measure, key: jax.Array, at: At, more: Any = 0.0
) -> tuple[At, Any]:
    """The points of the next batch, and whether the play is new; ``more`` is added to its exponent."""
    draw = functools.partial(_sampled, measure, at.statistic)
    play_key, reference_key = jax.random.split(key)
    reference = at.reference
    if plan.reference == "lagged":
        reference = lazy_draw(reference_key, reference, reference_exponent(plan), draw).point
    exponent = coin_exponent(plan, at.exponent, more)
    drawn = lazy_draw(play_key, at.play, exponent, draw)
    return At(drawn.point, reference, at.statistic, _nothing(), jnp.zeros(())), drawn.fresh


def _narrow(number: Any) -> Any:
    """The float32 that is next to a number, on the host as a float64."""
    if isinstance(number, jax.Array):
        return number.astype(jnp.float32).astype(float)
    return np.asarray(np.float32(number), np.float64)[()]


def as_run(plan: LazyPlan) -> LazyPlan:
    """The numbers that are accounted for, whether ``jax_enable_x64`` is on or not."""
    return jax.tree.map(lambda leaf: jnp.asarray(_narrow(leaf), float), plan)


def _sampled(measure: Measure, statistic: Any, key: jax.Array) -> Any:
    return measure.sample(key, statistic)


def init(key: jax.Array, plan: LazyPlan, measure: Measure) -> State:
    """The state before the first round, with the whole run charged."""
    _checks.require_key(key)
    numbers = as_run(plan)
    run_key, at = start(key, measure)
    ledger = privacy.charge(privacy.open_ledger(plan.relation), numbers.loss())
    return State(numbers, jnp.zeros((), jnp.int32), at.play, ledger, run_key, at)


def step(state: State, measure: Measure, loss: Any) -> tuple[State, Any]:
    """One round of an online run. After T of them nothing is seen, and nothing moves."""
    plan = state.plan

    def seen(at: At) -> tuple[Any, At]:
        at, count = observe(plan, measure, at, loss), state.round + 1
        part = _keys.of_part(state.key, count // plan.batch_size)
        ended = (count % plan.batch_size == 0) & (count < plan.num_rounds)
        moved = jax.lax.cond(ended, lambda at: move(plan, measure, part, at)[0], lambda at: at, at)
        return count, moved

    over = state.round >= plan.num_rounds
    count, at = jax.lax.cond(over, lambda at: (state.round, at), seen, state.secret)
    return state._replace(round=count, play=at.play, secret=at), at.play


def solve(
    key: jax.Array,
    plan: LazyPlan,
    measure: Measure,
    losses: Callable[[Any], Any],
    keep: bool,
    extra: Callable[[At, At], Any] | None = None,
) -> Solution:
    """A whole stream: a scan over batches, of whose losses one at a time is there.

    ``extra`` is added to the exponent of a coin: a function of where the run stands after the batch and
    before.
    """
    _checks.require_key(key)
    _checks.require_callable("losses", losses)
    plan = as_run(plan)
    key, at = start(key, measure)
    last = plan.num_batches - 1

    def rounds(at: At, batch: Any, count: int) -> At:
        def one(place: Any, at: At) -> At:
            return observe(plan, measure, at, losses(batch * plan.batch_size + place))

        return jax.lax.fori_loop(0, count, one, at)

    def whole(at: At, batch: Any) -> tuple[At, Any]:
        before, at = at, rounds(at, batch, plan.batch_size)
        more = 0.0 if extra is None else extra(at, before)
        after, fresh = move(plan, measure, _keys.of_part(key, batch + 1), at, more)
        return after, (at.play if keep else (), at.suffered, fresh)

    at, (plays, suffered, fresh) = jax.lax.scan(whole, at, jnp.arange(last))
    at = rounds(at, jnp.int32(last), plan.num_rounds - last * plan.batch_size)
    final = at.play if keep else ()
    plays = jax.tree.map(lambda some, one: jnp.concatenate([some, one[None]]), plays, final)
    return finished(plan, at, plays if keep else None, suffered, fresh)


def finished(plan: LazyPlan, at: At, plays: Any, suffered: Any, fresh: Any) -> Solution:
    """What a run returns, of where it has ended and of all batches before the last."""
    good = jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(at.play)])
    return Solution(
        params=at.play,
        privacy=plan.loss(),
        status=jnp.where(jnp.all(good), int(Status.OK), int(Status.DIVERGED)).astype(jnp.int32),
        gradients=_counts.count(0),
        unprivate={
            "gradients": _counts.count(0),
            "trace": {"loss": jnp.append(suffered, at.suffered), "fresh": fresh},
            "statistic": at.statistic,
        },
        released=None if plays is None else {"plays": plays},
    )


def rounded_down(number: float) -> float:
    """In float32, in which a run uses it: not above what was accounted for."""
    narrow = np.float32(number)
    # Compared as float64: NumPy would compare with a float in float32.
    return float(np.nextafter(narrow, np.float32(0.0)) if float(narrow) > number else narrow)
