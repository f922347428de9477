"""Memory of one clipped gradient sum against the number of users: temporaries must stay flat."""

import jax
import jax.numpy as jnp

from dpsco_jax.oracles import gradients
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from experiments.benchmarks.timing import Row


def temporary_bytes(num_users: int, dim: int = 256, items: int = 4, chunk_size: int = 64) -> int:
    """Bytes of temporaries of the compiled sum, as the compiler reports them (inputs not counted)."""
    objective = losses.logistic(feature_bound=1.0)
    oracle = gradients.clipped_gradient_sum(
        gradients.user_gradient(objective), 1.0, chunk_size=chunk_size
    )
    data = UserData(
        Example(
            jax.ShapeDtypeStruct((num_users, items, dim), jnp.float32),
            jax.ShapeDtypeStruct((num_users, items), jnp.float32),
        )
    )
    point = jax.ShapeDtypeStruct((dim,), jnp.float32)
    step = jax.jit(lambda params, data: oracle(jax.random.key(0), params, data).gradient)
    analysis = step.lower(point, data).compile().memory_analysis()
    return analysis.temp_size_in_bytes if analysis else 0


def rows() -> list[Row]:
    """Temporaries for 2^17 users against those for 2^12."""
    few, many = temporary_bytes(2**12), temporary_bytes(2**17)
    return [
        Row(
            "temporaries of a clipped sum, dim 256",
            "131,072 users",
            many / 1e6,
            "4,096 users",
            few / 1e6,
            0.99,
            f"all gradients at once would be {2**17 * 256 * 4 / 1e6:.0f} MB",
            unit="MB",
        )
    ]
