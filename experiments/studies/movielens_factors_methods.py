"""Four ways to the shared rows of ``movielens-factors``: ghost sums, jax_privacy, film means, no privacy.

What it computes: gradient methods share one optimizer, velocity 0.9 and steps that fall linearly, and return
the last point and the average of the second half of the points. They differ in the noisy mean of clipped
gradients alone:

- ``ghost_sums``: ``ghost.clipped_gradient_sum``, ``summed_contributions``, ``privatize``;
- ``jax_privacy``: its ``clipped_grad`` and ``gaussian_privatizer``;
- ``no_privacy``: the mean gradient.

``film_means`` releases, once, noisy sums of a rater's centred stars for every row of films, and noisy counts.

Source: McMahan et al. 2018 (DP-SGD for users); jax_privacy 2.0; De et al. 2022 (rates over the clip norm).

Formal guarantee: (ε, δ)-DP for raters under ADD_OR_REMOVE_ONE, at the noise multiplier (over the clip
norm) that ``noise_multiplier`` gives for the Poisson rate. The number of raters is public.

Cost: of a step, the gradients of the raters who take part.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NeighboringRelation

from dpsco_jax import privacy, transforms
from dpsco_jax._extra import needs
from dpsco_jax.oracles import ghost, sampling
from dpsco_jax.privacy.releases import GaussianSteps, poisson
from dpsco_jax.problems.users import UserData
from experiments.studies import movielens_factors_data as data
from experiments.studies import movielens_factors_model as model
from experiments.studies.movielens_factors_data import Films, Ratings

OURS, PEER, MEANS, NONE = "dpsco_jax", "jax_privacy", "film means", "no privacy"
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
MOMENTUM, CHUNK = 0.9, 48


class Trial(NamedTuple):
    """The numbers of a run, all of which may be traced.

    Attributes:
        rate: step size over the clip norm; of ``film_means``, what is added to counts.
        clip_norm: of a rater's gradient, or of a rater's sums.
        probability: with which a rater takes part in a step.
        noise_multiplier: over the clip norm.
    """

    rate: Any
    clip_norm: Any
    probability: Any
    noise_multiplier: Any


class Points(NamedTuple):
    """Two sets of parameters that a run returns: at the end, and the average of the second half."""

    last: Any
    average: Any


def ghost_sums(films: Films, rank: int, steps: int) -> Callable[..., Points]:
    """``solve(key, raters, trial)`` as README's first example makes a private step."""
    objective = model.objective(films)

    def solve(key: jax.Array, raters: Ratings, trial: Trial) -> Points:
        number = len(raters.stars)
        users = UserData(jax.tree.map(lambda x: x[:, None], raters))  # one item: all ratings
        draw = functools.partial(sampling.poisson, num_users=number, probability=trial.probability)
        oracle = ghost.clipped_gradient_sum(objective, trial.clip_norm, draw, CHUNK)
        divisor = trial.probability * number
        mean = transforms.summed_contributions(trial.clip_norm, divisor, RELATION)
        scheme = privacy.Poisson(trial.probability)
        noise_key, sample_key = jax.random.split(key)
        noised = transforms.privatize(mean, noise_key, trial.noise_multiplier, scheme)
        start = model.initial_params(films, rank)

        def gradient(state: Any, step: jax.Array, params: Any) -> tuple[Any, Any]:
            sums = oracle(jax.random.fold_in(sample_key, step), params, users)
            return noised.update(sums.gradient, state, params, **sums.extra_args)

        return _descend(gradient, noised.init(start), start, trial, steps)

    return solve


def jax_privacy(films: Films, rank: int, steps: int) -> Callable[..., Points]:
    """The same with the peer's clipped sum and privatizer; an example of its batch is a rater.

    Who takes part is drawn as for ghost sums, since the peer draws on the host. Places that nobody has are
    padding, in the order in which its microbatches of padding alone are skipped.
    """
    with needs("bench"):
        from jax_privacy import clipping, noise_addition, sharding_utils

    def solve(key: jax.Array, raters: Ratings, trial: Trial) -> Points:
        number = len(raters.stars)
        clipped = clipping.clipped_grad(
            lambda params, rater: model.rater_loss(films, params, rater),
            l2_clip_norm=trial.clip_norm,
            keep_batch_dim=False,
            microbatch_size=CHUNK,
        )
        stddev = trial.noise_multiplier * clipped.sensitivity(RELATION)
        noise_key, sample_key = jax.random.split(key)
        privatizer = noise_addition.gaussian_privatizer(stddev=stddev, prng_key=noise_key)
        order = sharding_utils.compute_early_stopping_order(number, CHUNK)
        start = model.initial_params(films, rank)

        def gradient(state: Any, step: jax.Array, params: Any) -> tuple[Any, Any]:
            step_key = jax.random.fold_in(sample_key, step)
            sample = sampling.poisson(step_key, number, trial.probability)
            nobody = jnp.arange(number)[order] >= sample.size
            batch = jax.tree.map(lambda x: x[sample.indices[order]], raters)
            total, state = privatizer.update(
                clipped(params, batch, is_padding_example=nobody), state
            )
            return jax.tree.map(lambda x: x / (trial.probability * number), total), state

        return _descend(gradient, privatizer.init(start), start, trial, steps)

    return solve


def no_privacy(films: Films, rank: int, steps: int) -> Callable[..., Points]:
    """The same with the mean gradient of all raters; of a trial it reads the rate."""

    def solve(key: jax.Array, raters: Ratings, trial: Trial) -> Points:
        del key
        start = model.initial_params(films, rank)

        def mean(params: Any) -> jax.Array:
            return jnp.mean(jax.vmap(lambda r: model.rater_loss(films, params, r))(raters))

        def gradient(state: Any, step: jax.Array, params: Any) -> tuple[Any, Any]:
            return jax.grad(mean)(params), state

        return _descend(gradient, (), start, trial._replace(clip_norm=1.0), steps)

    return solve


def film_means(films: Films, rank: int, steps: int) -> Callable[..., Points]:
    """Means of centred stars for every row of films, from one release of sums and counts.

    A rater adds to each row the sum of stars less the rater's own mean, and the number of ratings; the two
    together are clipped. The bias of a row is its sum over its count, at least zero, plus the rate.
    """
    del steps

    def solve(key: jax.Array, raters: Ratings, trial: Trial) -> Points:
        number = len(raters.stars)
        start = model.initial_params(films, rank)
        rows = jnp.asarray(films.rows)

        def of_rater(rater: Ratings) -> Any:
            count = jnp.maximum(jnp.sum(rater.there), 1.0)
            centred = (rater.stars - jnp.sum(rater.stars * rater.there) / count) * rater.there
            empty = jnp.zeros(films.num_rows)
            place = rows[rater.films]
            return empty.at[place].add(centred), empty.at[place].add(rater.there)

        mean = transforms.clipped_mean(trial.clip_norm, number, relation=RELATION)
        noised = transforms.privatize(mean, key, trial.noise_multiplier)
        released, _ = noised.update(
            jax.vmap(of_rater)(raters), noised.init((start["films"][:, 0],) * 2)
        )
        sums, counts = (number * x for x in released)
        biases = sums / (jnp.maximum(counts, 0.0) + trial.rate)
        params = start | {"films": start["films"].at[:, 0].set(biases)}
        return Points(params, params)

    return solve


METHODS: dict[str, Callable[..., Callable[..., Points]]] = {
    OURS: ghost_sums,
    PEER: jax_privacy,
    MEANS: film_means,
    NONE: no_privacy,
}


def _descend(gradient: Any, state: Any, start: Any, trial: Trial, steps: int) -> Points:
    """Velocity 0.9 and steps that fall linearly, from noisy means as they come."""
    velocity = optax.chain(optax.trace(MOMENTUM), optax.scale(1 - MOMENTUM))
    later = steps - steps // 2

    def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
        params, state, memory, mean = carry
        found, state = gradient(state, number, params)
        moves, memory = velocity.update(found, memory)
        size = trial.rate / trial.clip_norm * (steps - number) / (steps + 1)
        params = jax.tree.map(lambda w, v: w - size * v, params, moves)
        kept = jnp.where(number >= steps // 2, 1.0 / later, 0.0)
        mean = jax.tree.map(lambda m, w: m + kept * w, mean, params)
        return (params, state, memory, mean), None

    nothing = jax.tree.map(jnp.zeros_like, start)
    begin = start, state, velocity.init(start), nothing
    (params, _, _, mean), _ = jax.lax.scan(step, begin, jnp.arange(steps))
    return Points(params, mean)


@functools.cache
def releases(method: str, steps: int, batch_size: int) -> GaussianSteps:
    """What a run releases, without its noise."""
    return poisson(data.TRAINED, batch_size, 1 if method == MEANS else steps, RELATION)


@functools.cache
def noise_multiplier(
    method: str, steps: int, batch_size: int, epsilon: float, delta: float
) -> float:
    """The least noise over the clip norm by the library's certificate; the peer's by its own accountant."""
    if method != PEER:
        return float(releases(method, steps, batch_size).noise_multiplier(epsilon, delta, "pld"))
    with needs("bench"):
        from jax_privacy.accounting import accountants, analysis, calibrate
    accountant = analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig())
    return float(
        calibrate.calibrate_noise_multiplier(
            target_epsilon=epsilon,
            accountant=accountant,
            batch_sizes=batch_size,
            num_updates=steps,
            num_samples=data.TRAINED,
            target_delta=delta,
            tol=1e-3,
        )
    )
