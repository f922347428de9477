"""How far apart the gradients of two items can be at one point: twice the Lipschitz constant, or less.

What it computes: for the logistic loss with features of norm at most 1 a bound on ‖∇f(w, z) - ∇f(w, z')‖ over
all items z, z' and all ‖w‖ ≤ R. It is 1 for w = 0, where gradients have the norm ½, and tends to 2: where w
classifies everything with great confidence, two rows that are both wrong are nearly alike.

Source: own.

Formal guarantee: the gradient is affine in the label, so that its extremes have labels 0 and 1, and with
v = x for label 1 and v = -x for label 0 it is -σ(-⟨w, v⟩)·v. Let θ be the angle between v and -w and S(θ) =
σ(R·max(cos θ, 0)). The length of the gradient is σ(‖w‖·‖v‖·cos θ)·‖v‖ ≤ S(θ). So all gradients at w, their
means, and zero are in the convex hull of the points τ·u, u a unit vector at the angle θ from -w and 0 ≤ τ ≤
S(θ). Two of these points are farthest apart at the ends of their segments, since a distance is convex, and,
of given angles, on opposite sides of w: S(θ)² + S(θ')² - 2·S(θ)·S(θ')·cos(θ + θ'). A convex hull has the
diameter of its points. The maximum over θ and θ' is taken on a grid; between its points the curve S(θ)·u
moves by at most √(1 + R²/16) for a unit of angle, which is added.

Cost: some ten milliseconds, once for each R.
"""

import functools
import math

import numpy as np

_CELLS = 1200
_ROUNDING = 1.0 + 2.0**-40


@functools.lru_cache(maxsize=256)
def logistic(radius: float) -> float:
    """The bound, for features of norm at most 1.

    Args:
        radius: R, at least 0; ``inf`` gives 2.
    """
    if not radius < 1e3:
        return 2.0
    angles = np.linspace(0.0, math.pi, _CELLS + 1)
    lengths = 1.0 / (1.0 + np.exp(-radius * np.maximum(np.cos(angles), 0.0)))
    first, second = lengths[:, None], lengths[None, :]
    towards = np.cos(angles[:, None] + angles[None, :])
    farthest = math.sqrt(np.max(first**2 + second**2 - 2.0 * first * second * towards))
    between = math.pi / _CELLS * math.sqrt(1.0 + radius**2 / 16.0)
    return min(2.0, _ROUNDING * (farthest + between))
