"""Users who stay on disk: read a block at a time, or those who are drawn.

What it computes: ``StoredUsers``, the users of ``UserData`` in files, of which sizes are known and rows can
be read by number. Some solvers take it in place of ``UserData``; docs/scaling.md has which.

Formal guarantee: none by itself. User u is row u of every array; who is read is whom a sampler has drawn. The
order in which a disk is asked, and how long it takes, follow the sample, which is secret: whoever sees disk
accesses sees who took part. A file that changes during a run ends it with an error; arrays in memory must
not change, and nothing notices if they do.

Cost: memory of ``prefetch`` + 2 blocks, whatever the number of users.

Example:
    >>> import numpy as np, tempfile
    >>> from dpsco_jax.problems.objective import Example
    >>> from dpsco_jax.problems.stored import StoredUsers
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.save(f"{folder.name}/x.npy", np.ones((1000, 1, 5), np.float32))
    >>> np.save(f"{folder.name}/y.npy", np.ones((1000, 1), np.float32))
    >>> data = StoredUsers(Example(f"{folder.name}/x.npy", f"{folder.name}/y.npy"))
    >>> data.num_users, data.read(np.array([7, 3])).items.features.shape
    (1000, (2, 1, 5))
    >>> folder.cleanup()
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpsco_jax import _checks
from dpsco_jax.problems import _row_files
from dpsco_jax.problems.users import UserData

__all__ = ["StoredUsers"]


class StoredUsers:
    """Items of all users, on disk.

    Attributes:
        items: shapes and dtypes of the items, ``[users, items, ...]``.
        mask: that of the mask, ``[users, items]``; ``None`` if all items are there.
        block_users: about how many users are read at once, a multiple of the chunk of the solver.
        prefetch: blocks that are read ahead.
        shapes: of all users as an oracle takes them.
    """

    def __init__(
        self, items: Any, mask: Any = None, *, block_users: int = 8192, prefetch: int = 2
    ) -> None:
        """Opens the files and looks at their heads.

        Args:
            items: pytree of arrays ``[users, items, ...]``: paths of ``.npy`` files, NumPy arrays (a memory
                map with another shape, say), or columns of ``parquet.column``.
            mask: bool ``[users, items]``, as one of these; ``None`` if all items are there.
            block_users: users who are read at once, at least 1.
            prefetch: blocks that are read ahead by a thread of its own, at least 1.

        Raises:
            ValueError: a file is no ``.npy`` file or is cut, arrays have different users or items, or hold
                what JAX does not hold as it is: no numbers, or float64 without ``jax_enable_x64``.
        """
        self.block_users = _checks.require_count("block_users", block_users)
        self.prefetch = _checks.require_count("prefetch", prefetch)
        leaves = jax.tree.leaves(items)
        _checks.require(len(leaves) > 0, "items", items, "a tree of at least one array")
        opened_mask: Any = None if mask is None else _row_files.opened(mask, "mask")
        rows: Any = UserData(jax.tree.map(_row_files.opened, items), opened_mask)
        self._rows = rows
        grids = sorted({leaf.shape[:2] for leaf in jax.tree.leaves(rows.items)})
        same = len(grids) == 1 and len(grids[0]) == 2 and min(grids[0]) >= 1
        _checks.require(same, "items", grids, "arrays [users, items, ...], all of the same two")
        _checks.require(grids[0][0] < 2**31, "items", grids[0][0], "of fewer than 2^31 users")
        for leaf in jax.tree.leaves(rows.items):
            kept = leaf.dtype.kind in "biuf" or jnp.issubdtype(leaf.dtype, jnp.floating)
            kept = kept and leaf.dtype.isnative
            kept = kept and jax.dtypes.canonicalize_dtype(leaf.dtype) == leaf.dtype
            _checks.require(kept, "items", leaf.dtype, "of numbers as JAX holds them, as float32")
        if rows.mask is not None:
            found = (rows.mask.dtype, rows.mask.shape)
            good = found == (np.dtype(bool), grids[0])
            _checks.require(good, "mask", found, f"an array of booleans of shape {grids[0]}")
        shape = functools.partial(jax.tree.map, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
        self.items, self.mask = shape(rows.items), None if mask is None else shape(rows.mask)
        self.shapes: Any = UserData(self.items, self.mask)
        self.form: Callable[[UserData], Any] = _as_it_is

    @property
    def num_users(self) -> int:
        """How many there are."""
        users: int = jax.tree.leaves(self.items)[0].shape[0]
        return users

    def mapped(self, form: Callable[[UserData], Any]) -> "StoredUsers":
        """The same users in another form, which is made of each block after it was read.

        Args:
            form: of ``UserData``; what it makes of a user depends on no other user.
        """
        _checks.require_callable("form", form)
        other = copy.copy(self)
        before = self.form
        other.form = lambda block: form(before(block))
        other.shapes = jax.eval_shape(other.form, UserData(self.items, self.mask))
        return other

    def read(self, numbers: Any) -> UserData:
        """The users of these numbers, in this order, as NumPy arrays; each is read once.

        Args:
            numbers: integers in [0, users), ``[chosen]``.

        Raises:
            ValueError: there is no such user, or a file has been cut.
        """
        _checks.require_integers("numbers", numbers)
        wanted = np.asarray(numbers, np.int64)
        _checks.require(wanted.ndim == 1, "numbers", wanted.shape, "of one axis")
        inside = not len(wanted) or (wanted.min() >= 0 and wanted.max() < self.num_users)
        _checks.require_undisclosed(inside, "numbers", f"in [0, {self.num_users})")
        ascending, place = wanted, None
        if np.any(np.diff(wanted) <= 0):
            ascending, place = np.unique(wanted, return_inverse=True)

        def of_leaf(leaf: _row_files.Rows) -> np.ndarray:
            found = leaf.take(ascending)
            if found.dtype == bool:
                # A byte of a file may be neither 0 nor 1, which compiled programs would take for both.
                found = found.view(np.uint8) != 0
            return found if place is None else found[place]

        return jax.tree.map(of_leaf, self._rows)  # type: ignore[no-any-return]

    def require_same(self) -> None:
        """``ValueError`` if a file has been changed since it was opened."""
        for leaf in jax.tree.leaves(self._rows):
            leaf.require_same()

    def state(self) -> tuple[Any, ...]:
        """What tells these data from others: sizes, contents, and when files were last written."""
        return tuple(leaf.state() for leaf in jax.tree.leaves(self._rows))


def _as_it_is(block: UserData) -> Any:
    return block
