"""ℓp and Schatten norms, what attains their duals, and the strongly convex functions that go with them.

What it computes: ‖x‖_p over all entries together and the Schatten norm of a matrix (the ℓp norm of its
singular values), for p in [1, inf]; the point of the unit ball on which a linear function is largest; and

    r(x) = (w/2)·‖x - x₀‖_q²,    1-strongly convex in the ℓp (or Schatten-p) norm,

with the exponent q and the weight w of least range over a ball (``rates.norms``), and its gradient.

Source: Ball, Carlen and Lieb 1994 (vectors and matrices); thesis (4.2), Proposition 4.4.7, Corollaries 4.4.10
to 4.4.13. Corrected where docs/corrections.md says so: r is centred at x₀, a point of the domain, and not at
the origin; q is legal for every dimension.

Formal guarantee: r(y) >= r(x) + <∇r(x), y - x> + ½·‖y - x‖_p² for all x and y, and r ranges over [0, Θ] on
the ball of radius R around x₀, Θ = ``range(R)``. The proofs stand in ``rates.norms``. The privacy of a draw
from exp(-k(F + μr)) rests on the first, its risk on the second; x₀ must be chosen without looking at data.

Cost: a few passes; a singular value decomposition for matrices.

Example:
    >>> from dpsco_jax.geometry import lp
    >>> r = lp.Regularizer(p=1.0, dim=100)
    >>> round(r.exponent, 3), round(r.range(1.0), 2)
    (1.141, 11.07)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from dpsco_jax._checks import (
    require,
    require_count,
    require_number,
    require_real_leaves,
)
from dpsco_jax.geometry import _powers
from dpsco_jax.geometry.norms import global_norm
from dpsco_jax.rates import norms as by_numbers
from dpsco_jax.rates.norms import require_exponent

Matrix = Float[Array | np.ndarray, "rows columns"]


def lp_norm(tree: PyTree, p: float) -> Float[Array, ""]:
    """‖x‖_p over all entries of all leaves together.

    Args:
        tree: real floating leaves of any shapes.
        p: in [1, inf].

    Returns:
        The norm, in the widest dtype among the leaves and float32; NaN if an entry is. No power of a large or
        small entry overflows or vanishes. Differentiable, with gradient zero at zero.

    Example:
        >>> [round(float(lp_norm(jnp.asarray([3.0, -4.0]), p)), 4) for p in (1, 2, jnp.inf)]
        [7.0, 5.0, 4.0]
    """
    require_real_leaves("tree", tree)
    p = require_exponent("p", p)
    if p == 2.0:
        return global_norm(tree)
    return _powers.norm(_wide(ravel_pytree(tree)[0]), p)


def schatten_norm(matrix: Matrix, p: float) -> Float[Array, ""]:
    """The ℓp norm of the singular values.

    Args:
        matrix: ``[rows, columns]``.
        p: in [1, inf]; 1 is the nuclear norm, 2 the Frobenius norm, ``inf`` the spectral norm.

    Returns:
        The norm, in float32 or wider; as differentiable as ``lp_norm``.

    Example:
        >>> float(schatten_norm(jnp.diag(jnp.asarray([3.0, -4.0])), 1))
        7.0
    """
    require_matrix("matrix", matrix)
    p = require_exponent("p", p)
    wide = _wide(matrix)
    if p == 2.0:
        return global_norm(wide)
    return _powers.norm(jnp.linalg.svd(wide, compute_uv=False), p)


def attaining(vector: Float[Array | np.ndarray, "dim"], p: float) -> Float[Array, "dim"]:
    """A point u of the unit ℓp ball with <u, vector> = ‖vector‖ in the dual norm, the largest there is.

    Args:
        vector: ``[dim]``.
        p: of the ball, in [1, inf].

    Returns:
        ``[dim]``, of norm 1; zero for the zero vector.

    Example:
        >>> [attaining(jnp.asarray([3.0, -4.0]), p).tolist() for p in (1, jnp.inf)]
        [[0.0, -1.0], [1.0, -1.0]]
    """
    require_number("vector", vector)
    p = require_exponent("p", p)
    wide = _wide(vector)
    return jnp.sign(wide) * _powers.attaining(jnp.abs(wide), p)


def attaining_matrix(matrix: Matrix, p: float) -> Float[Array, "rows columns"]:
    """The same for matrices: U of Schatten-p norm 1 with <U, matrix> equal to its dual Schatten norm.

    Args:
        matrix: ``[rows, columns]``.
        p: of the ball, in [1, inf].

    Returns:
        ``[rows, columns]``; zero for the zero matrix.

    Example:
        >>> attaining_matrix(jnp.diag(jnp.asarray([3.0, 4.0])), 1).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    require_matrix("matrix", matrix)
    p = require_exponent("p", p)
    left, values, right = jnp.linalg.svd(_wide(matrix), full_matrices=False)
    return (left * _powers.attaining(values, p)) @ right


@dataclasses.dataclass(frozen=True)
class Regularizer:
    """r(x) = (w/2)·‖x - x₀‖_q²: 1-strongly convex in the ℓp norm, and of least range over its balls.

    Hashable and static: a field of a plan, or an argument of ``jax.jit`` by ``static_argnums``.

    Attributes:
        p: exponent of the norm, in [1, inf].
        dim: d, the number of entries.

    Example:
        >>> r = Regularizer(1.5, 100)
        >>> x = jnp.zeros(100).at[0].set(1.0)
        >>> r.exponent, float(r.value(x)), r.range(1.0), float(r.gradient(x)[0])
        (1.5, 1.0, 1.0, 2.0)
    """

    p: float
    dim: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", require_exponent("p", self.p))
        object.__setattr__(self, "dim", require_count("dim", self.dim))

    @property
    def exponent(self) -> float:
        """q, in (1, 2]."""
        return by_numbers.best_exponent(self.p, self.dim)

    @property
    def weight(self) -> float:
        """The factor w."""
        return by_numbers.regularizer_weight(self.p, self.dim)

    def range(self, radius: float) -> float:
        """Θ over the ℓp ball of that radius around the center."""
        return by_numbers.regularizer_range(self.p, self.dim, radius)

    def value(self, point: PyTree, center: PyTree | None = None) -> Float[Array, ""]:
        """Its value at a tree with ``dim`` entries; the center is the origin where it is ``None``."""
        arrow, _ = flat_entries(_arrow(point, center), self.dim)
        return 0.5 * self.weight * jnp.square(_powers.norm(arrow, self.exponent))

    def gradient(self, point: PyTree, center: PyTree | None = None) -> PyTree:
        """∇r at a point, of its structure and shapes; zero at the center."""
        arrow, back = flat_entries(_arrow(point, center), self.dim)
        return back(self.weight * _powers.half_square_gradient(arrow, self.exponent))


@dataclasses.dataclass(frozen=True)
class SchattenRegularizer:
    """The same for matrices: r(X) = (w/2)·‖X - X₀‖² in a Schatten norm, 1-strongly convex in Schatten-p.

    Attributes:
        p: exponent of the norm, in [1, inf].
        rows: of the matrices.
        columns: of the matrices.

    Example:
        >>> r = SchattenRegularizer(4.0, 2, 3)
        >>> float(r.value(jnp.asarray([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]))), round(r.range(1.0), 4)
        (2.0, 0.7071)
    """

    p: float
    rows: int
    columns: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", require_exponent("p", self.p))
        for side in ("rows", "columns"):
            object.__setattr__(self, side, require_count(side, getattr(self, side)))

    @property
    def of_values(self) -> Regularizer:
        """That of the singular values, of which there are as many as the smaller side is long."""
        return Regularizer(self.p, min(self.rows, self.columns))

    def range(self, radius: float) -> float:
        """Θ over the ball of that radius around the center, in the Schatten-p norm."""
        return self.of_values.range(radius)

    def value(self, matrix: Matrix, center: Matrix | None = None) -> Float[Array, ""]:
        """Its value at ``[rows, columns]``; the center is the zero matrix if it is ``None``."""
        arrow = self._checked(matrix, center)
        return self.of_values.value(jnp.linalg.svd(arrow, compute_uv=False))

    def gradient(
        self, matrix: Matrix, center: Matrix | None = None
    ) -> Float[Array, "rows columns"]:
        """∇r at ``[rows, columns]``; zero at the center."""
        left, values, right = jnp.linalg.svd(self._checked(matrix, center), full_matrices=False)
        found = (left * self.of_values.gradient(values)) @ right
        return found.astype(jnp.asarray(matrix).dtype)

    def _checked(self, matrix: Any, center: Any) -> Array:
        require_matrix("matrix", matrix, (self.rows, self.columns))
        return _wide(_arrow(matrix, center))


def flat_entries(tree: PyTree, dim: int) -> tuple[Float[Array, "dim"], Callable[[Any], PyTree]]:
    """All entries as one vector in float32 or wider, and the way back to structure, shapes and dtypes.

    Args:
        tree: real floating leaves.
        dim: the number of entries that there must be.
    """
    require_real_leaves("tree", tree)
    dim = require_count("dim", dim)
    vector, back = ravel_pytree(tree)
    require(vector.size == dim, "dim", dim, f"{vector.size}, the number of entries of the tree")
    return _wide(vector), lambda moved: back(moved.astype(vector.dtype))


def require_matrix(name: str, value: Any, shape: tuple[int, int] | None = None) -> None:
    """Raise ``ValueError`` unless the value is a matrix of real numbers, of the shape that is given."""
    require_number(name, value)
    found = np.shape(value)
    wanted = "a matrix" if shape is None else f"a matrix of shape {shape}"
    require(len(found) == 2 and shape in (None, found), f"{name}, by its shape,", found, wanted)


def _wide(leaf: Any) -> Array:
    """In float32 or wider, in which powers are formed."""
    return jnp.asarray(leaf, jnp.result_type(leaf, jnp.float32))


def _arrow(point: PyTree, center: PyTree | None) -> PyTree:
    return point if center is None else jax.tree.map(jnp.subtract, point, center)
