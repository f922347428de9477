"""Gradients of private fine-tuning: how fast singular values fall, and what the leading directions hold.

What it computes: a small transformer, pre-trained on the tweets before the campaign (public here), is
fine-tuned privately to tell the two telephones of the campaign apart. The average clipped gradients of such a
run, before noise, are the rows of H, and the study reports their singular values. Then it is fine-tuned anew
with each average projected onto leading directions, with isotropic noise in all coordinates. The directions
are those of

- ``private gradients``: H. These runs are an ANALYSIS and not private (ε = inf): H has no noise, and the
  directions are functions of the very tweets that are to be protected;
- ``public gradients``: the same of tweets before the campaign, from the Android telephone or the web client;
- ``own releases``: what the run itself has released in its first half, noise included; its second half is
  projected. Post-processing: the budget is that of the whole run.

Source: T §11.4.2 and Figure 11.2 (DistilRoBERTa on SST-2, 7 million parameters, 2,000 gradients); the
re-training described there is the first of the three.

Formal guarantee: a record is a tweet, added or removed. Runs without projection, with public directions and
with their own releases are (ε, δ)-DP with δ = n^-1.1, n the number of tweets that are tuned on; test AUC,
singular values and the choice of constants are not private (tuned non-privately).

Cost: some ten seconds of one core for a cell, 42 cells; a minute for pre-training.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pandas as pd
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpsco_jax import privacy, transforms
from dpsco_jax.geometry import subspaces
from dpsco_jax.geometry.domains import whole_space
from dpsco_jax.oracles import gradients, sampling
from dpsco_jax.privacy.ledger import privacy_spent
from dpsco_jax.privacy.releases import GaussianSteps
from dpsco_jax.privacy.sampling import Poisson
from dpsco_jax.problems.objective import Objective
from dpsco_jax.problems.users import UserData
from dpsco_jax.solvers import loop
from dpsco_jax.sweeps.cells import Setting, Settings, axis
from dpsco_jax.sweeps.experiment import Program
from experiments.studies import gradient_subspaces_report as report
from experiments.studies import tweet_transformer as transformer
from experiments.studies.gradient_subspaces_report import (
    ALL,
    HISTORY,
    KINDS,
    PRIVATE,
    PROVENANCE,
    PUBLIC,
    SPECTRUM,
)
from experiments.studies.metrics import roc_auc

_RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE


class Shared(NamedTuple):
    """What all cells read: data, weights before fine-tuning, and a basis ``[dim, largest rank]``."""

    data: UserData
    model: transformer.Model
    basis: Any
    negatives: jax.Array
    positives: jax.Array


@dataclasses.dataclass(frozen=True)
class GradientSubspaces:
    """Spectrum of the gradients of private fine-tuning, and fine-tuning in their leading directions.

    Attributes:
        kinds: of runs: without projection, for the spectrum, and for three sources of directions.
        ranks: how many directions.
        seeds: repetitions: samples and noise.
        largest_rank: of the spectrum and of all bases.
        num_steps: of each run.
        probability: of a tweet to take part in a step.
        clip_norm: of a tweet's gradient.
        step_size: of Adam, falling linearly to zero.
        epsilon: ε; δ is n^-1.1.
        num_train: tweets that are tuned on, of 4,508; the others are the test set.
        layers: of the transformer.
        width: of the transformer.
        length: tokens of a tweet.
        vocabulary: words that have a number.
        pretraining_steps: of Adam, on batches of 64 tweets.
    """

    name: ClassVar[str] = "gradient-subspaces"
    version: ClassVar[int] = 1
    kinds: tuple[str, ...] = axis("kind", KINDS, static=True, choices=KINDS)
    ranks: tuple[int, ...] = axis("rank", (1, 10, 20, 100))
    seeds: int = axis("seed", 3)
    largest_rank: int = 100
    num_steps: int = 200
    probability: float = 0.05
    clip_norm: float = 0.5
    step_size: float = 0.02
    epsilon: float = 8.0
    num_train: int = 3608
    layers: int = 2
    width: int = 32
    length: int = 32
    vocabulary: int = 2000
    pretraining_steps: int = 1000

    def cells(self) -> list[dict[str, Setting]]:
        found: list[dict[str, Setting]] = []
        for kind in self.kinds:
            ranks = (0,) if kind in (ALL, SPECTRUM) else self.ranks
            found += [
                {"kind": kind, "rank": rank, "seed": seed}
                for rank in ranks
                for seed in range(self.seeds)
            ]
        return found

    def build(self, static: Settings) -> Program:
        kind = str(static["kind"])
        tweets, model = transformer.prepared(self.size(), self.num_train, self.pretraining_steps)
        basis = None
        if kind in (PRIVATE, PUBLIC):
            rows = tweets.train if kind == PRIVATE else tweets.public
            basis = self._collected(jax.random.key(0), model, rows).basis
        scores = (tweets.test_tokens[tweets.test_labels == label] for label in (0, 1))
        shared = Shared(tweets.train, model, basis, *scores)

        def run(shared: Shared, key: jax.Array, rank: jax.Array) -> dict[str, Any]:
            if kind == SPECTRUM:
                values = self._collected(key, shared.model, shared.data).singular_values
                return {report.sigma(i): value for i, value in enumerate(values, 1)}
            tuned, spent = self._tuned(kind, key, shared, rank)
            size, after = self.size(), transformer.Model(shared.model.frozen, tuned)

            def scored(tokens: jax.Array) -> jax.Array:
                return jax.lax.map(
                    lambda t: transformer.score(after, t, size), tokens, batch_size=64
                )

            charged = privacy.epsilon(spent, self.delta())
            # The reciprocal is a number for an unbounded loss too.
            auc = roc_auc(scored(shared.negatives), scored(shared.positives))
            return {"auc": auc, "inverse_epsilon": 1 / charged}

        return Program(run, shared, inputs=lambda cell: jnp.asarray(int(cell["rank"])))

    def report(self, frame: pd.DataFrame, folder: Path) -> None:
        report.write(frame, folder, self.certificates(), self.largest_rank)

    def size(self) -> transformer.Size:
        """Of the transformer."""
        return transformer.Size(self.vocabulary, self.length, self.layers, self.width)

    def delta(self) -> float:
        """n^-1.1."""
        return float(self.num_train**-1.1)

    def noise_multiplier(self) -> float:
        """Of all steps of a run, with or without projection."""
        steps = GaussianSteps(Poisson(self.probability), _RELATION, self.num_steps)
        return steps.noise_multiplier(self.epsilon, self.delta(), "pld")

    def certificates(self) -> dict[str, privacy.Certificate]:
        """What is proven of each kind of run; of the spectrum, which has no noise, nothing."""
        steps = GaussianSteps(Poisson(self.probability), _RELATION, self.num_steps)
        plain = steps.certificate(self.noise_multiplier(), self.delta())
        return {
            kind: plain if kind == ALL else transforms.projected_certificate(plain, provenance)
            for kind, provenance in PROVENANCE.items()
        }

    def _collected(
        self, key: jax.Array, model: transformer.Model, data: UserData
    ) -> subspaces.Subspace:
        """The leading directions of the average clipped gradients of a run, before their noise."""
        basis_key, run_key = jax.random.split(key)
        rows = _steps(self, run_key, model, model.tuned, data, (0, self.num_steps)).gradients
        return subspaces.orthogonal_iteration(basis_key, rows, self.largest_rank, spare=40)

    def _tuned(
        self, kind: str, key: jax.Array, shared: Shared, rank: jax.Array
    ) -> tuple[Any, privacy.PrivacyLoss]:
        """Tuned parameters and the loss that the ledger holds."""
        steps = functools.partial(_steps, self)
        model, data = shared.model, shared.data
        if kind != HISTORY:
            basis = None if kind == ALL else (shared.basis, rank, PROVENANCE[kind])
            found = steps(key, model, model.tuned, data, (0, self.num_steps), basis)
            return found.params, privacy_spent(found.opt_state)
        first_key, basis_key, second_key = jax.random.split(key, 3)
        half = self.num_steps // 2
        first = steps(first_key, model, model.tuned, data, (0, half))
        own = subspaces.orthogonal_iteration(
            basis_key, first.released, min(half, self.largest_rank)
        )
        kept = (own.basis, rank, PROVENANCE[kind])
        last = steps(second_key, model, first.params, data, (half, self.num_steps), kept)
        # Every step draws its tweets with a key of its own, in both halves.
        both = (first.opt_state, last.opt_state)
        return last.params, privacy_spent(both, independent_draws=True)


class _Run(NamedTuple):
    """Parameters and state after some steps; of each step the gradient before its noise, and the release."""

    params: Any
    opt_state: Any
    gradients: jax.Array
    released: jax.Array


def _steps(
    study: GradientSubspaces,
    key: jax.Array,
    model: transformer.Model,
    start: Any,
    data: UserData,
    between: tuple[int, int],
    basis: Any = None,
) -> _Run:
    """DP-Adam from one step to another, projected if there is a basis with its rank and provenance."""
    size, total = study.size(), study.num_steps
    first, last = between
    count = jax.tree.leaves(data.items)[0].shape[0]
    oracle_key, noise_key = jax.random.split(key)

    def loss(tuned: Any, item: Any) -> jax.Array:
        tokens, label = item
        score = transformer.score(transformer.Model(model.frozen, tuned), tokens, size)
        return optax.sigmoid_binary_cross_entropy(score, label)

    # No solver is told of this objective: it is not convex, and nothing but the clip bounds its gradients.
    objective = Objective(loss, lipschitz=study.clip_norm, smoothness=None, domain=whole_space())
    oracle = gradients.clipped_gradient_sum(
        gradients.user_gradient(objective),
        study.clip_norm,
        lambda k: sampling.poisson(k, count, study.probability),
    )
    batch = study.probability * count
    aggregate = transforms.summed_contributions(study.clip_norm, batch, _RELATION)
    if basis is not None:
        directions, rank, provenance = basis
        aggregate = transforms.project_subspace(
            aggregate, directions, provenance=provenance, rank=rank
        )
    optimizer = optax.chain(
        transforms.privatize(
            aggregate, noise_key, study.noise_multiplier(), Poisson(study.probability)
        ),
        _remembered(),
        optax.adam(lambda t: study.step_size * (1 - (t + first) / total)),
    )

    def trace(params: Any, state: Any, estimate: Any) -> tuple[jax.Array, jax.Array]:
        del params
        return ravel_pytree(estimate.gradient)[0] / batch, ravel_pytree(state[1])[0]

    found = loop.run(oracle_key, oracle, optimizer, start, data, last - first, trace)
    return _Run(found.params, found.opt_state, *found.trace)


def _remembered() -> optax.GradientTransformation:
    """Holds the last update, here a release, in its state."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda updates, state, params=None: (updates, updates),
    )
