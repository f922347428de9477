"""Privatize: Gaussian noise on an aggregate, with the key and the ledger in the optimizer state.

What it computes: the aggregate's statistic plus Gaussian noise of standard deviation
``noise_multiplier * aggregate.sensitivity``, and the running privacy loss of all statistics
released. With ``noise_correlation`` the noise of later steps takes back part of earlier noise.

Source: the Gaussian mechanism; the loss of one step is the curve of the sampling scheme; noise
correlated over steps is Kairouz et al. 2021 and Denisov et al. 2022, see docs/theory/correlated_noise.md.

Formal guarantee: with the ledger's loss, under ``aggregate.relation``, for everything that
``update`` has returned, however it is used (adaptive composition). Assumed: the users in each step
were drawn by ``sampling``, anew and independently of all other draws (a user is anyone who may be
drawn; who was drawn stays secret; with ``PoissonUsers`` the sensitivity is that of one unit, and
the aggregate has clipped each user's sum to the cap; with ``PoissonItems`` the sensitivity is that of one
item, and no user has more items than it says), the key is secret and starts one state only, and
no state is used for two different updates. Where the updates are a sum that somebody else has clipped,
``update`` is told to what (``clipped_to``, among the ``extra_args`` of our oracles), and what these say of
bound, draw and sum is compared with what is charged here, as are rows with a batch of a fixed number:
``ValueError`` if it is concrete and does not agree, an infinite loss if it is traced. A step with several
releases from one random draw is not covered by the sum of their losses, and ``privacy_spent`` is unbounded
then: clip layers by norms of their own in one aggregate (``clipped_mean``). Wrappers that throw away the
state of an update (``optax.apply_if_finite``) forget a charge: put them inside of the chain, after this
transformation.
``optax.MultiSteps`` around it averages batches before the noise, which only ``FullBatch`` accounts for.
In both cases the ledger is unbounded (docs/theory/ledger.md), as it is for an aggregate of which
nothing is ``proven``.

Cost: one Gaussian draw per parameter; the curve of a step is computed once, when the
transformation is made. With correlated noise, memory of ``bands - 1`` copies of the parameters.
"""

from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import _keys, _sharding, privacy
from dpsco_jax._checks import require, require_instance, require_key, require_positive
from dpsco_jax._conditions import drawable
from dpsco_jax.mechanisms import additive
from dpsco_jax.mechanisms.buffered_noise import BufferedCorrelation
from dpsco_jax.mechanisms.correlated_noise import NoiseCorrelation
from dpsco_jax.mechanisms.tree import TreeCorrelation
from dpsco_jax.privacy.sampling import (
    FullBatch,
    Poisson,
    PoissonItems,
    PoissonUsers,
    Proven,
    WithoutReplacement,
    WithReplacement,
)
from dpsco_jax.transforms import _agreement
from dpsco_jax.transforms.aggregate import Aggregate

Drawn = FullBatch | Poisson | PoissonItems | PoissonUsers | WithoutReplacement | WithReplacement
Scheme = Drawn | Proven


class PrivatizeState(NamedTuple):
    """State of ``privatize``.

    Attributes:
        key: what the noise of the next update is drawn from.
        ledger: the loss of all updates so far.
        inner: the state of the aggregate, a function of what was released.
        stream: the noise to be taken back (secret), if noise is correlated over steps.
    """

    key: jax.Array
    ledger: privacy.Ledger
    inner: Any
    stream: Any = ()


def privatize(
    aggregate: Aggregate,
    key: jax.Array,
    noise_multiplier: jax.typing.ArrayLike,
    sampling: Scheme = FullBatch(),  # noqa: B008
    noise_correlation: BufferedCorrelation | NoiseCorrelation | TreeCorrelation | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Adds noise to an aggregate and charges each release to the ledger in its state.

    Updates go to ``aggregate`` as they are, with all extra arguments: pass on ``**estimate.extra_args`` of an
    oracle. With a sum of your own say ``clipped_to=C``, the norm to which you clipped each user's share. The
    arguments ``value``, ``grad``, ``value_fn`` and ``loss`` are refused: line searches, ``reduce_on_plateau``
    and Polyak steps behind a release would read raw losses. The result has the shapes of
    what the aggregate makes of its noised statistic (``Aggregate.finish``) and the dtypes of the
    updates (narrow dtypes are rounded after the noise).

    Args:
        aggregate: what is released, with its sensitivity and neighbouring relation.
        key: a typed key; copied into the state by ``init``.
        noise_multiplier: standard deviation of the noise over ``aggregate.sensitivity``; may be
            traced, and may be scheduled by ``optax.inject_hyperparams``: each update is charged
            for the multiplier that it used. It must not depend on what was released. A traced zero
            adds no noise and makes the ledger infinite.
        sampling: how the users of a step are drawn: ``FullBatch()``, ``Poisson(...)``,
            ``PoissonItems(...)``, ``PoissonUsers(...)``, ``WithoutReplacement(...)`` or
            ``WithReplacement(...)`` of ``privacy``; or ``privacy.sampling.Proven(...)`` of one of these.
        noise_correlation: for streams in which a user takes part in few steps, known beforehand:
            ``buffered(...)`` of ``mechanisms.buffered_noise``, best where users take part once;
            ``banded_square_root(...)`` of ``mechanisms.correlated_noise``, better where they return; or a
            ``mechanisms.tree.TreeCorrelation``. One release of
            ``noise_multiplier`` then pays for the whole stream of ``num_steps`` updates, at the first
            of them, and the noise of each is larger; a new stream begins after them, or where ``update`` is
            told ``new_stream=True`` (may be traced; a function of releases only), and is paid for
            again unless streams are ``disjoint``. A schedule of
            the multiplier is read at the beginning of a stream, of the first one if they are disjoint. An
            update with a ``draw`` of an oracle is
            refused: who takes part in which step may not be drawn.

    Raises:
        ValueError: ``aggregate`` is no ``Aggregate``, ``noise_multiplier`` is not positive, ``key`` is
            not a typed key, ``noise_correlation`` is none of these three or one without a proof (its
            ``stretch``), ``sampling`` is no scheme, has
            no curve under ``aggregate.relation``, needs of the aggregate what is not proven of it, or is
            random although noise is correlated.
    """
    require(isinstance(aggregate, Aggregate), "aggregate", aggregate, "an Aggregate")
    require_key(key)
    require_positive("noise_multiplier", noise_multiplier)
    require(
        isinstance(sampling, get_args(Scheme)), "sampling", sampling, "a sampling scheme of privacy"
    )
    if noise_correlation is not None:
        kinds = BufferedCorrelation | NoiseCorrelation | TreeCorrelation
        require_instance("noise_correlation", noise_correlation, kinds)
        noise_correlation.stretch()  # One that is not proven is refused here, not at the first update.
        require(
            isinstance(sampling, FullBatch),
            "sampling",
            sampling,
            "FullBatch() with noise_correlation, which counts participations instead",
        )
    try:
        loss = sampling.gaussian_loss(noise_multiplier, aggregate.relation)
    except ValueError as refusal:
        made = f"aggregate.relation is {aggregate.relation.name}, as the aggregate was made"
        raise ValueError(f"{refusal}; {made} (relation=...)") from None
    drawn = sampling.scheme if isinstance(sampling, Proven) else sampling
    _require_what_sampling_needs(aggregate, drawn)
    sampled = not isinstance(drawn, FullBatch)
    # A replaced user has three means, of which no order of the releases makes two.
    added = aggregate.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    shareable = isinstance(drawn, Poisson) and added

    def init(params: Any) -> PrivatizeState:
        # A copy: the state may be donated, the caller's key may not vanish with it.
        stream = () if noise_correlation is None else noise_correlation.init(params)
        ledger = privacy.open_ledger(aggregate.relation, sampled, shareable)
        return PrivatizeState(jnp.copy(key), ledger, aggregate.init(params), stream)

    @_sharding.transformation
    def update(
        updates: Any,
        state: PrivatizeState,
        params: Any = None,
        *,
        new_stream: jax.typing.ArrayLike = False,
        **extra_args: Any,
    ) -> tuple[Any, PrivatizeState]:
        bounded, scheme, multiplier, cost = _sharding.here(
            (aggregate, drawn, noise_multiplier, loss)
        )
        counted = noise_correlation is not None
        agreed = _agreement.agreed(bounded, scheme, updates, extra_args, counted)
        next_key, noise_key = jax.random.split(state.key)
        # In two parts where the aggregate has them: one float would be rounded before the noise is on it.
        extra_args["in_parts"] = True
        statistic, inner = bounded.update(updates, state.inner, params, **extra_args)
        # In full precision even where a schedule hands over a bfloat16 multiplier: the product has
        # to be the standard deviation that the ledger is charged for.
        sensitivity = jnp.asarray(bounded.sensitivity, float)
        used: Any = jnp.asarray(multiplier, float)
        paid: Any = False
        stream = state.stream
        if noise_correlation is not None:
            stream = stream._replace(step=jnp.where(new_stream, 0, stream.step))
            # A later step of a stream is paid for, and has the noise for which its first one has paid.
            paid = stream.is_paid(noise_correlation.disjoint)
            used = jnp.where(paid, stream.multiplier, used)
        # A sensitivity out of its range (traced) says nothing of the noise that it makes, nor does noise
        # that float32 cannot hold.
        valid = (sensitivity > 0) & jnp.isfinite(sensitivity)
        valid &= drawable(used * sensitivity)
        valid &= bounded.proven
        valid &= agreed
        if noise_correlation is None:
            released = additive.gaussian(noise_key, statistic, used * sensitivity)
        else:
            released, stream = noise_correlation.add_noise(
                noise_key, statistic, stream, multiplier, sensitivity
            )
        valid &= _keys.noise_is_own(noise_key, released)
        charged = privacy.unbounded_unless(valid, cost)
        if noise_correlation is not None:
            # Only what is valid has been paid for: any other step costs infinity, the first or a later one.
            charged = jax.tree.map(lambda x: jnp.where(paid & valid, 0, x), charged)
        released, inner = bounded.finish(released, inner)
        # As JAX holds them: without x64 it would warn of float64, which NumPy updates have.
        released = jax.tree.map(lambda x, u: x.astype(jnp.result_type(u)), released, updates)
        ledger = privacy.charge(state.ledger, charged)
        return released, PrivatizeState(next_key, ledger, inner, stream)

    return optax.GradientTransformationExtraArgs(init, update)


def _require_what_sampling_needs(aggregate: Aggregate, sampling: Drawn) -> None:
    """``ValueError`` where the curve of the scheme assumes more of a contribution than the sensitivity."""
    capped = False
    if isinstance(sampling, PoissonUsers):
        known = not isinstance(sampling.cap, jax.core.Tracer)
        capped = not (known and np.all(np.isinf(np.asarray(sampling.cap))))
        wanted = "known with a finite cap, which nothing here enforces: sum and clip users first"
        summed = aggregate.clipped_to is not None
        require(summed or not capped, "aggregate.clipped_to", None, wanted)
    if aggregate.relation is NeighboringRelation.REPLACE_ONE and (
        capped or isinstance(sampling, Poisson)
    ):
        # Whoever is not drawn adds nothing: each of the two contributions counts by its own length.
        wanted = "True under REPLACE_ONE, one user adding at most half of the sensitivity"
        wanted += "; else take ADD_OR_REMOVE_ONE or WithoutReplacement(...)"
        good = aggregate.within_half
        require(good, "aggregate.within_half", good, wanted)
