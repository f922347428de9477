"""A small transformer for tweets: words of public tweets, next words first, then which telephone.

What it computes: tokens of a fixed vocabulary, the words that are most frequent in the tweets before the
campaign (public here); a causal transformer in plain JAX that is trained to predict the next word of those;
and the score of a tweet, linear in the mean of the last hidden states, of which queries, values and the head
are tuned.

Source: the protocol is that of T §11.4.2 at a small size: pre-trained, then only query and value matrices
(with biases) fine-tuned, here with a head in the place of a template.

Formal guarantee: none. Vocabulary and frozen weights are functions of the tweets before the campaign alone.

Cost: pre-training 45 s of one core.
"""

import collections
import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from dpsco_jax.problems.datasets import trump_tweets
from dpsco_jax.problems.users import UserData

_LINK = re.compile(r"https?://\S+|&amp;")
_TOKEN = re.compile(r"[@#]\w+|[a-z']+|\d+|[!?.,:\"]")
PAD, START, WORD, NUMBER, TAG, NAME = range(6)  # what a token is that has no number of its own


class Size(NamedTuple):
    """Of the model: words that have a number, tokens of a tweet, layers, width, heads."""

    vocabulary: int = 2000
    length: int = 32
    layers: int = 2
    width: int = 32
    heads: int = 4


class Tweets(NamedTuple):
    """A tweet is a user with one item: tokens ``[1, length]`` and label ``[1]`` for each."""

    train: UserData
    public: UserData
    test_tokens: jax.Array
    test_labels: np.ndarray


class Model(NamedTuple):
    """Parameters: those that stay as pre-trained, and those that are tuned."""

    frozen: Any
    tuned: Any


def vocabulary(texts: pd.Series, size: int) -> dict[str, int]:
    """The most frequent tokens of public texts, in that order, ties by the alphabet; numbers from 6."""
    counts = collections.Counter(token for text in texts for token in _tokens(text))
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: i + NAME + 1 for i, token in enumerate(ranked[:size])}


def encode(texts: pd.Series, known: dict[str, int], length: int) -> np.ndarray:
    """Tokens ``[tweets, length]``: START, the first words, PAD. Each row is a function of its text alone."""
    found = np.full((len(texts), length), PAD, np.int32)
    for row, text in zip(found, texts, strict=True):
        numbers = [START, *(known.get(token, _kind(token)) for token in _tokens(text))][:length]
        row[: len(numbers)] = numbers
    return found


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(_LINK.sub(" ", text.lower().replace("’", "'")))


def _kind(token: str) -> int:
    return {"#": TAG, "@": NAME}.get(token[0], NUMBER if token[0].isdigit() else WORD)


def initial(key: jax.Array, size: Size) -> Model:
    """Weights before any training; the head is zero."""
    keys = iter(jax.random.split(key, 2 + 6 * size.layers))
    width = size.width

    def matrix(rows: int, columns: int) -> jax.Array:
        return jax.random.normal(next(keys), (rows, columns)) * rows**-0.5

    frozen: dict[str, Any] = {
        "words": 0.1 * jax.random.normal(next(keys), (size.vocabulary + NAME + 1, width)),
        "places": 0.1 * jax.random.normal(next(keys), (size.length, width)),
    }
    tuned: dict[str, Any] = {"head": {"b": jnp.zeros(()), "w": jnp.zeros(width)}}
    for i in range(size.layers):
        frozen[f"layer {i}"] = {
            "k": matrix(width, width),
            "o": matrix(width, width),
            "in": matrix(width, 4 * width),
            "out": matrix(4 * width, width),
        }
        tuned[f"layer {i}"] = {
            name: {"b": jnp.zeros(width), "w": matrix(width, width)} for name in ("q", "v")
        }
    return Model(frozen, tuned)


def _normed(x: jax.Array) -> jax.Array:
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5)


def hidden(model: Model, tokens: jax.Array, size: Size) -> jax.Array:
    """The last hidden states ``[length, width]`` of one tweet."""
    frozen, tuned = model
    length, head_width = size.length, size.width // size.heads
    there = tokens != PAD
    seen = jnp.tril(jnp.ones((length, length), bool)) & (
        there[None, :] | jnp.eye(length, dtype=bool)
    )
    x = frozen["words"][tokens] + frozen["places"]
    for i in range(size.layers):
        fixed, own = frozen[f"layer {i}"], tuned[f"layer {i}"]
        inside = _normed(x)

        def split(values: jax.Array) -> jax.Array:
            return values.reshape(length, size.heads, head_width)

        q = split(inside @ own["q"]["w"] + own["q"]["b"])
        v = split(inside @ own["v"]["w"] + own["v"]["b"])
        scores = jnp.einsum("ahd,bhd->hab", q, split(inside @ fixed["k"])) * head_width**-0.5
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        x = x + jnp.einsum("hab,bhd->ahd", weights, v).reshape(length, -1) @ fixed["o"]
        x = x + jax.nn.gelu(_normed(x) @ fixed["in"]) @ fixed["out"]
    return _normed(x)


def score(model: Model, tokens: jax.Array, size: Size) -> jax.Array:
    """The log odds of the first telephone for one tweet."""
    there = (tokens != PAD)[:, None]
    mean = jnp.sum(jnp.where(there, hidden(model, tokens, size), 0), axis=0) / jnp.sum(there)
    return mean @ model.tuned["head"]["w"] + model.tuned["head"]["b"]


def _next_word_loss(model: Model, tokens: jax.Array, size: Size) -> jax.Array:
    states = jax.vmap(lambda row: hidden(model, row, size))(tokens)[:, :-1]
    logits = states @ model.frozen["words"].T
    target = tokens[:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
    counted = target != PAD
    return jnp.sum(jnp.where(counted, losses, 0)) / jnp.sum(counted)


@functools.partial(jax.jit, static_argnames=("size", "num_steps", "batch_size"))
def pretrained(
    key: jax.Array, tokens: jax.Array, size: Size, num_steps: int, batch_size: int
) -> tuple[Model, jax.Array]:
    """Weights trained to predict the next word of public tweets, and the loss of each step."""
    start_key, batch_key = jax.random.split(key)
    optimizer = optax.adam(optax.cosine_decay_schedule(3e-3, num_steps))

    def step(carry: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        model, state = carry
        at = jax.random.choice(jax.random.fold_in(batch_key, t), len(tokens), (batch_size,))
        value, slope = jax.value_and_grad(_next_word_loss)(model, tokens[at], size)
        moves, state = optimizer.update(slope, state)
        return (optax.apply_updates(model, moves), state), value

    model = initial(start_key, size)
    (model, _), losses = jax.lax.scan(step, (model, optimizer.init(model)), jnp.arange(num_steps))
    return model, losses


@functools.cache
def prepared(size: Size, num_train: int, pretraining_steps: int) -> tuple[Tweets, Model]:
    """Data, ``num_train`` tweets to tune on and the rest to test on, and weights of public ones."""
    labelled, before = trump_tweets.by_phone()
    known = vocabulary(before["text"], size.vocabulary)

    def tokens(texts: pd.Series) -> jax.Array:
        return jnp.asarray(encode(texts, known, size.length))

    def data(rows: pd.DataFrame) -> UserData:
        labels = jnp.asarray(rows["label"].to_numpy(), jnp.float32)
        return UserData((tokens(rows["text"])[:, None], labels[:, None]))

    order = np.random.default_rng(0).permutation(len(labelled))
    train, test = (labelled.iloc[part] for part in np.split(order, [num_train]))
    half = num_train // 2
    both = [
        before[before["source"] == source].tail(half).assign(label=label)
        for source, label in ((trump_tweets.PHONES[0], 1), ("Twitter Web Client", 0))
    ]
    public = pd.concat(both)
    tweets = Tweets(data(train), data(public), tokens(test["text"]), test["label"].to_numpy())
    key = jax.random.key(1)
    model, _ = pretrained(key, tokens(before["text"]), size, pretraining_steps, 64)
    return tweets, model
