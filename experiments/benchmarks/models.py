"""Models of the ghost steps, written without a library: a loss of one example, parameters, a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from optax.losses import softmax_cross_entropy_with_integer_labels as cross_entropy


class Case(NamedTuple):
    """What a step is timed on.

    Attributes:
        name: with sizes.
        loss: ``(params, example) -> scalar``.
        params: pytree.
        batch: pytree of arrays with a leading axis of examples.
    """

    name: str
    loss: Callable[[Any, Any], jax.Array]
    params: Any
    batch: Any

    @property
    def number(self) -> int:
        """Of examples."""
        return int(jax.tree.leaves(self.batch)[0].shape[0])


def _matrix(key: jax.Array, *shape: int) -> jax.Array:
    return jax.random.normal(key, shape) / shape[-2] ** 0.5


def perceptron(number: int = 1024) -> Case:
    """784-128-10 with softmax loss."""
    keys = jax.random.split(jax.random.key(3), 4)
    params = {
        "hidden": _matrix(keys[0], 784, 128),
        "bias": jnp.zeros(128),
        "output": _matrix(keys[1], 128, 10),
        "offset": jnp.zeros(10),
    }
    batch = jax.random.normal(keys[2], (number, 784)), jax.random.randint(keys[3], (number,), 0, 10)

    def loss(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden = jax.nn.relu(example[0] @ params["hidden"] + params["bias"])
        return cross_entropy(hidden @ params["output"] + params["offset"], example[1])

    return Case(f"network 784-128-10, {number} examples", loss, params, batch)


def convolutional(number: int = 512) -> Case:
    """Convolutions of 16 kernels 8 × 8 (stride 2) and 32 kernels 4 × 4 (stride 2), two dense layers.

    The network of DP-SGD tutorials for images of 28 × 28: average pools of 2 × 2 after both convolutions.
    """
    keys = jax.random.split(jax.random.key(4), 6)
    params = {
        "first": jax.random.normal(keys[0], (8, 8, 1, 16)) / 8,
        "first_bias": jnp.zeros(16),
        "second": jax.random.normal(keys[1], (4, 4, 16, 32)) / 16,
        "second_bias": jnp.zeros(32),
        "dense": _matrix(keys[2], 4 * 4 * 32, 32),
        "dense_bias": jnp.zeros(32),
        "output": _matrix(keys[3], 32, 10),
        "output_bias": jnp.zeros(10),
    }
    images = jax.random.normal(keys[4], (number, 28, 28, 1))
    batch = images, jax.random.randint(keys[5], (number,), 0, 10)

    def convolved(images: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            images, kernel, (stride, stride), padding, dimension_numbers=numbers
        )

    def pooled(images: jax.Array) -> jax.Array:
        whole = lax.reduce_window(images, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
        return whole / 4

    def loss(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        x = convolved(example[0][None], params["first"], 2, "SAME") + params["first_bias"]
        x = pooled(jax.nn.relu(x))
        x = convolved(x, params["second"], 2, "VALID") + params["second_bias"]
        x = pooled(jax.nn.relu(x)).reshape(-1)
        x = jax.nn.relu(x @ params["dense"] + params["dense_bias"])
        return cross_entropy(x @ params["output"] + params["output_bias"], example[1])

    return Case(f"two convolutions on 28 x 28, {number} examples", loss, params, batch)


def transformer(
    number: int = 128, length: int = 64, width: int = 128, layers: int = 2, vocabulary: int = 256
) -> Case:
    """A causal language model: layer norms, attention of four heads, feed-forward layers of four widths."""
    heads = 4
    keys = iter(jax.random.split(jax.random.key(5), 6 * layers + 4))
    blocks = [
        {
            "queries": _matrix(next(keys), width, 3 * width),
            "result": _matrix(next(keys), width, width),
            "wide": _matrix(next(keys), width, 4 * width),
            "narrow": _matrix(next(keys), 4 * width, width),
            "scale": jnp.ones((2, width)),
            "shift": jnp.zeros((2, width)),
            "bias": jnp.zeros(4 * width),
        }
        for _ in range(layers)
    ]
    params = {
        "words": jax.random.normal(next(keys), (vocabulary, width)) * 0.1,
        "places": jax.random.normal(next(keys), (length, width)) * 0.1,
        "blocks": blocks,
        "output": _matrix(next(keys), width, vocabulary),
    }
    batch = jax.random.randint(next(keys), (number, length + 1), 0, vocabulary)
    later = jnp.tril(jnp.ones((length, length), bool))

    def normalized(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
        centred = x - jnp.mean(x, -1, keepdims=True)
        return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * scale + shift

    def attended(x: jax.Array, block: Any) -> jax.Array:
        mixed = (x @ block["queries"]).reshape(length, 3, heads, -1)
        queries, keys, values = mixed[:, 0], mixed[:, 1], mixed[:, 2]
        scores = jnp.einsum("qhd,khd->hqk", queries, keys) / (width / heads) ** 0.5
        weights = jax.nn.softmax(jnp.where(later, scores, -1e9))
        return jnp.einsum("hqk,khd->qhd", weights, values).reshape(length, width) @ block["result"]

    def loss(params: Any, example: jax.Array) -> jax.Array:
        x = params["words"][example[:-1]] + params["places"]
        for block in params["blocks"]:
            scale, shift = block["scale"], block["shift"]
            x = x + attended(normalized(x, scale[0], shift[0]), block)
            wide = normalized(x, scale[1], shift[1]) @ block["wide"] + block["bias"]
            x = x + jax.nn.gelu(wide) @ block["narrow"]
        return jnp.mean(cross_entropy(x @ params["output"], example[1:]))

    name = f"transformer, {layers} layers of {width}, {length} tokens, {number} sequences"
    return Case(name, loss, params, batch)


def factorization(users: int, items: int, number: int = 1024, width: int = 32) -> Case:
    """Ratings as products of a row for the user and a row for the item, with offsets."""
    keys = jax.random.split(jax.random.key(6), 5)
    params = {
        "users": jax.random.normal(keys[0], (users, width)) * 0.1,
        "items": jax.random.normal(keys[1], (items, width)) * 0.1,
        "user_offsets": jnp.zeros(users),
        "item_offsets": jnp.zeros(items),
    }
    batch = (
        jax.random.randint(keys[2], (number,), 0, users),
        jax.random.randint(keys[3], (number,), 0, items),
        jax.random.normal(keys[4], (number,)),
    )

    def loss(params: Any, example: tuple[jax.Array, ...]) -> jax.Array:
        user, item, rating = example
        product = jnp.vdot(params["users"][user], params["items"][item])
        predicted = product + params["user_offsets"][user] + params["item_offsets"][item]
        return jnp.square(predicted - rating)

    return Case(f"factorization, {users:,} x {items:,}, {number} ratings", loss, params, batch)


def bags(rows: int, number: int = 256, look_ups: int = 128, width: int = 16) -> Case:
    """Sequences of many tokens: a table that every example looks up again and again, in front of a sum."""
    keys = jax.random.split(jax.random.key(7), 4)
    params = {
        "table": jax.random.normal(keys[0], (rows, width)) * 0.1,
        "out": jax.random.normal(keys[1], (width,)) * 0.1,
    }
    batch = (
        jax.random.randint(keys[2], (number, look_ups), 0, rows),
        jax.random.normal(keys[3], (number,)),
    )

    def loss(params: Any, example: tuple[jax.Array, ...]) -> jax.Array:
        tokens, target = example
        hidden = jnp.tanh(params["table"][tokens])
        return jnp.square(jnp.mean(hidden, axis=0) @ params["out"] - target)

    return Case(
        f"bags of {look_ups} look-ups, {rows:,} rows, {number} examples", loss, params, batch
    )
