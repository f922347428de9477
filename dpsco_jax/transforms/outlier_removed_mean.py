"""Outlier-removed mean: the noisy mean of users whose vectors are close to each other, or a halt.

What it computes: per step, from one vector of each user, the concentration score; a noisy test
whether it is high; if so, the mean without outliers plus Gaussian noise, whose size is that of the
radius, not of the vectors. After the first failed test, and after ``num_steps`` updates, zeros.

Source: Algorithm 1 of Asi and Liu (Algorithm 28 of the thesis), Algorithms 31 and 32 of the thesis;
the test goes on while the score is high, with one noisy threshold for the whole phase (Algorithm 27).

Formal guarantee: (ε, δ)-DP as stated by ``releases``, under ``releases.relation``, for the
transcript of the whole phase: which tests passed, and all means released. It holds for any vectors:
neither bounded, nor independent, nor close. Derivation in docs/theory/concentrated_mean.md; the
sensitivity there is in units of the radius, here of radius · (1 + ``concentrated_mean.headroom``),
which is what comparisons in floating point guarantee. The ledger holds the loss of all
``num_steps`` steps from the first update on, whenever the phase halts: when it halts depends on the
data, so a smaller charge would be a random variable. Assumed: a batch is a uniform subset of fixed
size ``releases.batch_size`` drawn without replacement (or everybody); the radius and the anchor are
no functions of the data but through earlier releases; the key is secret and starts one state only,
and no state is used for two different updates.

Cost: N²·d multiplications a step (``mechanisms.concentrated``), one Gaussian draw a parameter.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import ArrayLike

from dpsco_jax import _keys, _sharding, privacy
from dpsco_jax._checks import (
    require,
    require_instance,
    require_key,
    require_mask,
    require_positive,
    require_real_leaves,
    require_wide_numbers,
)
from dpsco_jax._conditions import drawable, positive_and_finite
from dpsco_jax._numerics import as_floats
from dpsco_jax.mechanisms import additive, sparse_vector
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.privacy.concentrated.threshold_phase import ConcentratedReleases, ConcentratedRun
from dpsco_jax.privacy.sampling import FullBatch
from dpsco_jax.transforms import _agreement
from dpsco_jax.transforms._states import wide_copy
from dpsco_jax.transforms.adaptive_spider import AdaptiveSpiderState
from dpsco_jax.transforms.spider import SpiderState


class OutlierRemovedState(NamedTuple):
    """State of ``outlier_removed_mean``.

    Attributes:
        key: what the noise of the next update is drawn from.
        test: the stream of tests; its noisy threshold is secret. Empty if every test is fresh.
        halted: whether a test has failed, or an update was asked for beyond the last; bool, public.
        steps: how many updates have been made, int32.
        ledger: the loss of the whole phase from the first update on.
        last: the last mean that was released, in at least float32; zeros before the first.
    """

    key: jax.Array
    test: Any
    halted: jax.Array
    steps: jax.Array
    ledger: privacy.Ledger
    last: Any


def outlier_removed_mean(
    releases: ConcentratedReleases | ConcentratedRun,
    radius: ArrayLike,
    key: jax.Array,
    anchor: Literal["last release"] | None = "last release",
    reach: float = concentrated_mean.REACH,
) -> optax.GradientTransformationExtraArgs:
    """Releases the noisy mean of concentrated users, step by step, until a test fails.

    Updates have a leading axis of ``releases.batch_size`` users on every leaf, ``[users, ...]``; the
    result has none, is in the dtypes of the updates, and is zero once halted. ``update`` takes
    ``user_mask`` (bool ``[users]``, False for a user who counts as absent) as an extra argument.

    Args:
        releases: sizes, test and noise of the phase, with its budget; leaves may be traced. Of
            ``ConcentratedRun``, whose sizes may be traced too, the first ``num_users`` of ``capacity`` rows
            are users, the others nobody.
        radius: ρ, the distance below which two users count as close (twice the distance to a common
            centre); any public number is private, honest users closer than it are needed for
            utility. May be traced, and scheduled if the schedule sees releases only. The standard
            deviation of the noise is ``releases.noise_stddev * radius * (1 + headroom)``.
        key: a typed key; copied into the state by ``init``.
        anchor: the public point from which distances are computed: the last mean released, as long
            as its noise is small (a norm of a quarter of ``reach`` radii), or the origin if None.
            It changes rounding and reach only.
        reach: a vector farther than ``reach * radius`` from the anchor counts as an outlier.

    Raises:
        ValueError: ``releases`` is no ``ConcentratedReleases``, ``radius`` or ``reach`` is not positive,
            ``key`` is not a typed key, ``anchor`` is unknown, or (by ``update``) the number of users is not
            ``releases.batch_size``, an update is not real floating, ``user_mask`` is no array of booleans
            of shape ``[users]``, an oracle's ``draw`` is another than ``releases.scheme``, or there is an
            argument ``value``, ``grad``, ``value_fn`` or ``loss``, which stages behind would read.
    """
    require_instance("releases", releases, ConcentratedReleases | ConcentratedRun)
    if isinstance(releases, ConcentratedReleases):
        require_wide_numbers("releases", releases)
    run = releases.lowered()
    live, rows, sampled = run.live, run.capacity, not isinstance(run.scheme, FullBatch)
    require_key(key)
    require_positive("radius", radius)
    require_positive("reach", reach)
    require(anchor in ("last release", None), "anchor", anchor, '"last release" or None')
    # Traced numbers cannot raise: nothing is promised of a radius that is no length.
    _, (length, noise) = as_floats(radius, run.noise_stddev)
    drawn = positive_and_finite(length) & drawable(length * noise)
    loss = privacy.unbounded_unless(drawn, run.charged)
    stream = sparse_vector.below_threshold(run.threshold, run.test_epsilon, run.score_sensitivity)

    def init(params: Any) -> OutlierRemovedState:
        # The one noisy threshold of the phase. The caller's key stays usable, for another ``init``.
        own_key, threshold_key = jax.random.split(jax.random.clone(key))
        return OutlierRemovedState(
            key=own_key,
            test=stream.init(threshold_key) if run.test == "stream" else (),
            halted=jnp.zeros([], bool),
            steps=jnp.zeros([], jnp.int32),
            # Nothing is proven of other looks at the batches of a phase: its bits depend on all of them.
            ledger=privacy.open_ledger(run.relation, sampled=sampled),
            last=jax.tree.map(jnp.zeros_like, wide_copy(params)),
        )

    def passes(key: jax.Array, test: Any, score: jax.Array) -> tuple[jax.Array, Any]:
        if run.test == "stream":
            return stream.step(key, test, score)
        scale = jnp.asarray(run.score_sensitivity / run.test_epsilon, float)
        noisy = additive.laplace(key, score, scale)
        return noisy >= jnp.asarray(run.threshold, noisy.dtype), test

    @_sharding.transformation
    def update(
        updates: Any,
        state: OutlierRemovedState,
        params: Any = None,
        *,
        user_mask: jax.Array | None = None,
        **extra_args: Any,
    ) -> tuple[Any, OutlierRemovedState]:
        del params
        _agreement.require_no_raw(extra_args)
        length, cost = _sharding.here((radius, loss))
        covered = _agreement.covered(run.scheme, extra_args, run.relation)
        require_real_leaves("updates", updates)
        if user_mask is not None:
            user_mask = require_mask("user_mask", user_mask, (rows,))
        for leaf in jax.tree.leaves(updates):
            require(leaf.shape[0] == rows, "number of users", leaf.shape[0], str(rows))
        key, test_key, select_key, noise_key = jax.random.split(state.key, 4)
        centre = jax.tree.map(jnp.zeros_like, state.last)
        if anchor == "last release":
            dim = sum(leaf.size for leaf in jax.tree.leaves(centre))
            near = jnp.asarray(run.noise_stddev) * dim**0.5 <= 0.25 * reach
            centre = jax.tree.map(lambda last: jnp.where(near, last, 0), state.last)
        found = concentrated_mean.concentration(
            updates, length, anchor=centre, user_mask=user_mask, reach=reach, num_users=live
        )
        weights = concentrated_mean.inlier_weights(
            found.degrees, rows if live is None else live, run.keep_level
        )
        if run.selection == "bernoulli":
            weights = concentrated_mean.select(select_key, weights)
        deviation = concentrated_mean.mean_deviation(updates, weights, centre, live)
        head = 1 + concentrated_mean.headroom(centre, reach)
        stddev = jnp.asarray(run.noise_stddev, float) * jnp.asarray(length, float) * head
        # Noise on the difference to the anchor: adding a public point is post-processing.
        noised = additive.gaussian(noise_key, deviation, stddev)
        released = jax.tree.map(jnp.add, centre, noised)

        passed, test = passes(test_key, state.test, found.score)
        over = state.steps >= run.num_steps
        halted = state.halted | over | ~passed
        # Beyond the last step nothing may depend on the data.
        test = jax.tree.map(lambda old, new: jnp.where(over, old, new), state.test, test)
        # The first step pays for the phase, as far as later ones keep to it and lanes have their own noise.
        kept = jnp.asarray(covered, bool) & _keys.noise_is_own(noise_key, (noised, passed))
        pays = (state.steps == 0) | ~kept
        ledger = jax.tree.map(
            lambda old, new: jnp.where(pays, new, old),
            state.ledger,
            privacy.charge(state.ledger, privacy.unbounded_unless(kept, cost)),
        )
        last = jax.tree.map(lambda old, new: jnp.where(halted, old, new), state.last, released)
        steps = jnp.minimum(state.steps + 1, run.num_steps)
        # A selection, not a product: nothing of a mean that failed its test may pass.
        out = jax.tree.map(
            lambda u, new: jnp.where(halted, 0, new).astype(u.dtype), updates, released
        )
        return out, OutlierRemovedState(
            key=key, test=test, halted=halted, steps=steps, ledger=ledger, last=last
        )

    return optax.GradientTransformationExtraArgs(init, update)


def halted(opt_state: Any) -> jax.Array:
    """Whether any release in an optimizer state that can end a run has done so (public), bool.

    Args:
        opt_state: any nesting of optax states.
    """
    kinds = OutlierRemovedState | SpiderState | AdaptiveSpiderState
    can_halt = lambda node: isinstance(node, kinds)  # noqa: E731
    stopped = [x.halted for x in jax.tree.leaves(opt_state, is_leaf=can_halt) if can_halt(x)]
    return jnp.any(jnp.stack([jnp.zeros([], bool), *stopped]))
