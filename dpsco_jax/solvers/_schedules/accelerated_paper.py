"""The schedule of accelerated phased ERM as the paper prints it.

What it computes: users, regularizers, steps, batches, radii and noise of all phases.

Source: F, Algorithms 2 and 3, section 4; T, Algorithms 32 and 33, section 10.4. What they leave open in O(·)
is taken with the constant one.

Formal guarantee: none. Batches may exceed the blocks that they are drawn from, which plans refuse, and the
noise is accepted only where the accountant asks for no more.

Cost: none.
"""

import math

from dpsco_jax.solvers._schedules import accelerated_bounds as bounds
from dpsco_jax.solvers._schedules.accelerated import Size, base_regularization


def phases(
    setting: bounds.Setting,
    num_users: int,
    *,
    ratio: float,
    decay: float | None = None,
    num_phases: int | None = None,
) -> list[Size]:
    """The paper's phases, batches included; batches may be larger than blocks.

    Constants that the paper leaves open: T = ⌈(1 + √(β/λ))·ln(ndm)⌉ in one stage.

    Args:
        setting: the public numbers.
        num_users: n.
        ratio: q.
        decay: p; the least that the paper allows, 3q + 5/2 + log_n √m, if left out.
        num_phases: ⌊log2 n⌋ if left out.
    """
    n, m, d = num_users, setting.items_per_user, setting.dim
    decay = 3 * ratio + 2.5 + math.log(m) / (2 * math.log(n)) if decay is None else decay
    count = math.floor(math.log2(n)) if num_phases is None else num_phases
    base, log_delta = base_regularization(setting, n), math.log(1 / setting.delta)
    sizes = []
    for i in range(1, count + 1):
        users = math.floor((1 - 2.0**-ratio) * n * 2.0 ** (-i * ratio))
        lam = base * 2.0 ** (decay * i)
        length = math.ceil((1 + math.sqrt(setting.smoothness / lam)) * math.log(n * d * m))
        batch = batch_size(users, m, length, setting.epsilon, log_delta)
        sizes.append(Size(users, lam, length, 1, batch))
    return sizes


def batch_size(
    num_users: int, items_per_user: int, num_steps: int, epsilon: float, log_delta: float
) -> int:
    """K = 500·ln(n²m²e^ε/δ)·(1/ε + nε/√(T·ln(1/δ))), which is not compared with n there."""
    level = 2 * math.log(max(num_users, 1) * items_per_user) + epsilon + log_delta
    rate = 1 / epsilon + num_users * epsilon / math.sqrt(num_steps * log_delta)
    return math.ceil(500 * level * rate)


def gradient_radius(lipschitz: float, num_users: int, dim: int, items_per_user: int) -> float:
    """τ = L·ln(ndm)/√m, with the constant 1 in place of the paper's O(·)."""
    return lipschitz * math.log(num_users * dim * items_per_user) / math.sqrt(items_per_user)


def noise_stddev(setting: bounds.Setting, size: Size, radius: float) -> float:
    """The noise of a coordinate, σ = 1000·τ√T·ln(nde^ε/δ)/(εn)."""
    level = math.log(size.num_users * setting.dim / setting.delta) + setting.epsilon
    return 1000 * radius * math.sqrt(size.num_steps) * level / (setting.epsilon * size.num_users)


def smoothing_radius(
    num_users: int, items_per_user: int, dim: int, epsilon: float, distance: float
) -> float:
    """The smoothing radius √d·R/(εn√m)."""
    return math.sqrt(dim / items_per_user) * distance / (epsilon * num_users)
