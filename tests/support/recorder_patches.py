"""How the mechanisms, samplers and ledgers of the package are made to report to a tape: a wrapper for each.

``PATCHES`` lists the owner of a function, its name, and ``wrapper(tape, right) -> function``. A new mechanism
that draws noise of its own, rather than by ``additive``, needs an entry.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _effects, privacy, transforms
from dpsco_jax.mechanisms import (
    additive,
    buffered_noise,
    correlated_noise,
    noisy_iteration,
    selection,
    sparse_vector,
    tree,
)
from dpsco_jax.mechanisms.concentrated import concentrated_mean
from dpsco_jax.mechanisms.winsorized import private_range, winsorized_mean
from dpsco_jax.oracles import sampling
from dpsco_jax.privacy.concentrated._proof import SCORE_SENSITIVITY
from dpsco_jax.problems.users import mean_loss
from dpsco_jax.solvers.heavy_tailed import localized_clipped_sgd
from dpsco_jax.solvers.nonconvex import certify, gibbs
from dpsco_jax.solvers.sampling import (
    alternating_sampler,
    proximal_oracle,
    value_queries,
    zeroth_order,
)
from dpsco_jax.transforms import _agreement
from tests.support.tape import Declared, Draw, Tape


def _zeros(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)


def _additive(name: str) -> Callable[[Tape, Any], Any]:
    def make(tape: Tape, right: Any) -> Any:
        def mechanism(key: Any, tree: Any, size: Any, *bound: Any) -> Any:
            if tape.is_silent:
                return right(key, tree, size, *bound)
            tape.write(name, key, tree, size, tape.next_declared())
            return right(key, _zeros(tree) if tape.freeze else tree, size, *bound)

        return mechanism

    return make


def _privatize(tape: Tape, right: Any) -> Any:
    signature = inspect.signature(right)

    def privatize(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        chain = right(*args, **kwargs)
        aggregate, multiplier = (given.arguments[x] for x in ("aggregate", "noise_multiplier"))
        declared = Declared(aggregate.sensitivity, multiplier, given.arguments["sampling"])

        def update(*args: Any, **kwargs: Any) -> Any:
            with tape.declaring(declared):
                return chain.update(*args, **kwargs)

        return chain._replace(update=update)

    return privatize


def _last_point(tape: Tape, right: Any) -> Any:
    """Every step is written down; that none but the last leaves is for the account to know."""

    def last_point(
        key: Any, params: Any, move: Any, project: Any, steps: int, far: Any, multiplier: Any
    ) -> Any:
        with tape.declaring(Declared(far, multiplier)):
            return right(key, params, move, project, steps, far, multiplier)

    return last_point


def _winsorized_mean(tape: Tape, right: Any) -> Any:
    def mean(key: Any, vectors: Any, releases: Any) -> Any:
        # Laplace noise is on every coordinate by itself: for all of them the ℓ1 sensitivity counts.
        entries = releases.padded if releases.form == "laplace" else 1
        final = Declared(releases.sensitivity * entries, releases.noise_multiplier)
        coarse = Declared(releases.coarse_sensitivity, releases.coarse_multiplier)
        steps = (coarse, final) if releases.form in ("refined", "recentred") else (final,)
        with tape.declaring(*steps):
            return right(key, vectors, releases)

    return mean


def _outlier_removed_mean(tape: Tape, right: Any) -> Any:
    signature = inspect.signature(right)

    def transformation(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        chain = right(*args, **kwargs)
        releases, radius, reach = (given.arguments[x] for x in ("releases", "radius", "reach"))

        def update(updates: Any, *args: Any, **kwargs: Any) -> Any:
            one = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), updates
            )
            unit = radius * (1 + concentrated_mean.headroom(one, reach))
            # Bounded for those neighbours only whose scores are high: see ``ConcentratedReleases``.
            mean = Declared(
                releases.sensitivity * unit,
                releases.noise_stddev / releases.sensitivity,
                releases.scheme,
            )
            far = SCORE_SENSITIVITY
            with tape.declaring(mean, Declared(far, 1 / releases.test_epsilon)):
                return chain.update(updates, *args, **kwargs)

        return chain._replace(update=update)

    return transformation


def _add_noise(tape: Tape, right: Any) -> Any:
    def add_noise(
        self: Any, key: Any, statistic: Any, stream: Any, multiplier: Any, far: Any
    ) -> Any:
        noise = multiplier * far * self.stretch()
        tape.write("correlated", key, statistic, noise, Declared(far, multiplier))
        # Its fresh noise is drawn twice, on the statistic and in units of one: one draw for the compiler.
        tape.keep("used", key)
        with tape.silent():
            unseen = _zeros(statistic) if tape.freeze else statistic
            return right(self, key, unseen, stream, multiplier, far)

    return add_noise


def _stream(tape: Tape, right: Any) -> Any:
    def tests(threshold: Any, scales: Any, sensitivity: Any, *given: Any, **named: Any) -> Any:
        made = right(threshold, scales, sensitivity, *given, **named)

        def step(key: Any, state: Any, query: Any) -> Any:
            if tape.is_silent:
                return made.step(key, state, query)
            scale = scales[1]
            tape.write("test", key, query, scale, Declared(sensitivity, scale / sensitivity))
            unanswered = -1e30 if named.get("answer_is_above", True) else 1e30
            passing = jnp.asarray(unanswered, jnp.result_type(float))
            return made.step(key, state, passing if tape.freeze else query)

        return made._replace(step=step)

    return tests


def _certified(tape: Tape, right: Any) -> Any:
    def released(key: Any, value: Any, sensitivity: Any, multiplier: Any) -> Any:
        with tape.declaring(Declared(sensitivity, multiplier)):
            return right(key, value, sensitivity, multiplier)

    return released


def _hidden_pass(tape: Tape, right: Any) -> Any:
    """Decisions are not released, and a replaced user's own moves without bound: averages are."""

    def hidden_pass(*args: Any) -> Any:
        with tape.silent():
            average, halted = right(*args)
        return average, jnp.zeros([], bool) if tape.freeze else halted

    return hidden_pass


def _private_range(tape: Tape, right: Any) -> Any:
    def interval(key: Any, values: Any, epsilon: Any, *args: Any, **kwargs: Any) -> Any:
        tape.write("interval", key, values, epsilon, Declared(1.0, epsilon))
        return right(key, _zeros(values) if tape.freeze else values, epsilon, *args, **kwargs)

    return interval


def _noisy_argmax(tape: Tape, right: Any) -> Any:
    def argmax(
        key: Any, scores: Any, epsilon: Any, sensitivity: Any, monotone: Any, draw: Any
    ) -> Any:
        scale = (1 if monotone else 2) * sensitivity / epsilon
        tape.write("argmax", key, scores, scale, Declared(sensitivity, scale / sensitivity))
        return right(
            key, _zeros(scores) if tape.freeze else scores, epsilon, sensitivity, monotone, draw
        )

    return argmax


def _proximal_oracle(tape: Tape, right: Any) -> Any:
    """A draw is the release: what data move is the slope of its potential, over the root of the curvature."""

    def oracle(objective: Any, data: Any, center: Any, **given: Any) -> Any:
        k, convexity = given["inverse_temperature"], given["convexity"]
        plain = objective._replace(ridge=0.0)
        # Of the loss as it is written, not of the rows that the sampler makes.
        slope = jax.grad(mean_loss(plain))(center, data)
        statistic = jnp.sqrt(k / convexity) * slope
        change = 2.0 * objective.lipschitz / len(data.items.label)
        declared = Declared(change * jnp.sqrt(k / convexity), jnp.sqrt(convexity / k) / change)
        tape.draw_of = (statistic, declared)
        return right(objective, _zeros(data) if tape.freeze else data, center, **given)

    return oracle


def _value_oracle(tape: Tape, right: Any) -> Any:
    """The same of a draw by value queries: the slope at the start of the losses that it reads."""

    def oracle(plan: Any, users: Any, restricted: Any) -> Any:
        move = jnp.zeros(plan.dim)
        slopes = jax.vmap(jax.grad(users.loss), in_axes=(None, 0))(move, users.records)
        convexity = plan.setting.convexity(plan.regularization)
        statistic = jnp.sqrt(plan.inverse_temperature / convexity) * jnp.mean(slopes, axis=0)
        change = 2.0 * plan.setting.euclidean / len(slopes)
        root = jnp.sqrt(convexity / plan.inverse_temperature)
        tape.draw_of = (statistic, Declared(change / root, root / change))
        kept = users._replace(records=_zeros(users.records)) if tape.freeze else users
        return right(plan, kept, restricted)

    return oracle


def _value_moves(tape: Tape, right: Any) -> Any:
    """As for ``_proximal_oracle``, in ℓ2, which is the norm of the rows that are run."""

    def moves(plan: Any, objective: Any, data: Any, start: Any) -> Any:
        k, convexity = plan.inverse_temperature, plan.regularization
        slope = jax.grad(mean_loss(objective))(start, data)
        change = 2.0 * plan.setting.lipschitz / plan.num_users
        declared = Declared(change * jnp.sqrt(k / convexity), jnp.sqrt(convexity / k) / change)
        tape.draw_of = (jnp.sqrt(k / convexity) * slope, declared)
        return right(plan, objective, _zeros(data) if tape.freeze else data, start)

    return moves


def _proposals_that_count(tape: Tape, right: Any) -> Any:
    """Sums at public points are the release: which of them counts is drawn by exponentials of them."""

    def count(key: Any, sums: Any, offsets: Any, plan: Any) -> Any:
        far, noise = 2.0 * plan.lipschitz * plan.radius, plan.num_users / plan.inverse_temperature
        tape.write("argmax", key, sums, noise, Declared(far, noise / far))
        return right(key, _zeros(sums) if tape.freeze else sums, offsets, plan)

    return count


def _sampler_run(tape: Tape, right: Any) -> Any:
    def run(key: Any, *args: Any, **kwargs: Any) -> Any:
        tape.write("gaussian", key, tape.draw_of[0], jnp.ones(()), tape.draw_of[1])
        return right(key, *args, **kwargs)

    return run


def _charge(tape: Tape, right: Any) -> Any:
    def charge(ledger: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        tape.charged(loss)
        return right(ledger, loss, *args, **kwargs)

    return charge


def _unchanged(tape: Tape, right: Any) -> Any:
    """A sum is what its own checksum says: what is charged depends on data only where a stage changed it."""
    return lambda *args: True if tape.freeze else right(*args)


def _effects_allowed(tape: Tape, right: Any) -> Any:
    """Losses may not call back, and a tape does."""
    return lambda name, program: None


def _with_user(sample: Any, name: str, population: int, user: Any) -> Any:
    """The sample with the user in it: in the place of another, or one more where its size is random."""
    indices, size = sample.indices, sample.size
    there = (indices == user) & (jnp.arange(len(indices)) < size)
    force = (user >= 0) & (user < population) & ~jnp.any(there)
    place = size if name == "poisson" else 0
    forced = jnp.where(force, indices.at[place].set(user.astype(indices.dtype)), indices)
    return sample._replace(
        indices=forced, size=size + force.astype(jnp.int32) if name == "poisson" else size
    )


def _sampler(tape: Tape, right: Any) -> Any:
    name, depth = right.__name__, [0]

    @functools.wraps(right)
    def sampler(key: Any, *arguments: Any) -> Any:
        if depth[0]:  # a sampler that calls itself
            return right(key, *arguments)
        numbers = tuple(float(np.asarray(x)) for x in arguments)
        tape.drawn(key, Draw(name, numbers))
        depth[0] += 1
        try:
            sample = right(key, *arguments)
        finally:
            depth[0] -= 1
        return (
            sample if tape.forced is None else _with_user(sample, name, arguments[0], tape.forced)
        )

    return sampler


def _batch_of(tape: Tape, right: Any) -> Any:
    def batch_of(num_users: int, batch_size: int) -> Any:
        tape.draws.add(Draw("without_replacement", (float(num_users), float(batch_size))))
        return right(num_users, batch_size)

    return batch_of


def _draw_batch(tape: Tape, right: Any) -> Any:
    def draw_batch(key: Any, batch: Any) -> Any:
        tape.keep("samples", key)
        sample = right(key, batch)
        if tape.forced is None:
            return sample
        return _with_user(sample, "without_replacement", batch.num_users, tape.forced)

    return draw_batch


def _of_key(kind: str) -> Callable[[Tape, Any], Any]:
    def make(tape: Tape, right: Any) -> Any:
        @functools.wraps(right)
        def function(key: Any, *args: Any, **kwargs: Any) -> Any:
            if not tape.is_silent:
                tape.keep(kind, key)
            return right(key, *args, **kwargs)

        return function

    return make


# Of ``jax.random``, what the package draws by; a test reads the sources for others.
DRAWN_BY = (
    "bernoulli",
    "bits",
    "gamma",
    "normal",
    "permutation",
    "rademacher",
    "randint",
    "uniform",
)

PATCHES: tuple[tuple[Any, str, Callable[[Tape, Any], Any]], ...] = (
    (additive, "gaussian", _additive("gaussian")),
    (additive, "laplace", _additive("laplace")),
    (additive, "bounded_laplace", _additive("bounded_laplace")),
    (noisy_iteration, "last_point", _last_point),
    (transforms, "privatize", _privatize),
    (winsorized_mean, "winsorized_mean", _winsorized_mean),
    (transforms, "outlier_removed_mean", _outlier_removed_mean),
    (buffered_noise.BufferedCorrelation, "add_noise", _add_noise),
    (correlated_noise.NoiseCorrelation, "add_noise", _add_noise),
    (tree.TreeCorrelation, "add_noise", _add_noise),
    (sparse_vector, "_stream", _stream),
    (private_range, "private_range", _private_range),
    (certify, "_released", _certified),
    (localized_clipped_sgd, "_hidden_pass", _hidden_pass),
    (selection, "_noisy_argmax", _noisy_argmax),
    (proximal_oracle, "proximal_oracle", _proximal_oracle),
    (value_queries, "_oracle", _value_oracle),
    (zeroth_order, "_moves", _value_moves),
    (alternating_sampler, "run", _sampler_run),
    (gibbs, "_count", _proposals_that_count),
    (privacy, "charge", _charge),
    (_agreement, "_unchanged", _unchanged),
    (_effects, "require_none", _effects_allowed),
    (sampling, "poisson", _sampler),
    (sampling, "with_replacement", _sampler),
    (sampling, "batch_of", _batch_of),
    (sampling, "draw_batch", _draw_batch),
    *((jax.random, name, _of_key("used")) for name in DRAWN_BY),
    *((jax.random, name, _of_key("parents")) for name in ("split", "fold_in")),
)
