"""Faults in subspaces and the projection before the noise: written down before any run."""

from tests.mutation import Fault

_PROJECTED = ("tests/transforms/test_project_subspace.py",)
_SUBSPACES = ("tests/geometry/test_subspaces.py",)
_FILE = "transforms/project_subspace.py"
_TOOLS = "geometry/subspaces.py"

FAULTS = (
    Fault("projection: after the noise", _FILE, "        update=update,\n", "        finish=lambda released, state: (\n            ravel_pytree(released)[1](directions @ (directions.T @ ravel_pytree(released)[0])),\n            state,\n        ),\n", _PROJECTED),
    Fault("projection: what a wrong basis lengthens is not charged", _FILE, "aggregate.sensitivity * (1 + error)", "aggregate.sensitivity", _PROJECTED),
    Fault("projection: principal components of private data are charged as public", _FILE, "aggregate.proven and provenance != PRIVATE_NONRELEASABLE", "aggregate.proven", _PROJECTED),
    Fault("projection: of what is not proven is proven", _FILE, "aggregate.proven and provenance !=", "provenance !=", _PROJECTED),
    Fault("projection: a basis of releases is an analysis", _FILE, "proven=aggregate.proven and provenance != PRIVATE_NONRELEASABLE", "proven=aggregate.proven and provenance == PUBLIC", _PROJECTED),
    Fault("projection: any basis is taken", _FILE, 'require(error <= _TOLERANCE, "basis",', 'require(True, "basis",', _PROJECTED),
    Fault("projection: certificate of private components is finite", _FILE, "epsilon=math.inf, accountant", "epsilon=certificate.epsilon, accountant", _PROJECTED),
    Fault("projection: certificate does not say where the basis comes from", _FILE, "assumptions = (*certificate.assumptions, sentence)", "assumptions = certificate.assumptions", _PROJECTED),
    Fault("projection: one direction too many", _FILE, "jnp.arange(columns) < rank", "jnp.arange(columns) <= rank", _PROJECTED),
    Fault("projection: the rank is not looked at", _FILE, "jnp.where(jnp.arange(columns) < rank, along, 0)", "along", _PROJECTED),
    Fault("projection: onto the complement", _FILE, "unravel(projected.astype(", "unravel((vector - projected).astype(", _PROJECTED),
    Fault("privatize: nothing proven is charged as proven", "transforms/privatize.py", "valid &= bounded.proven", "valid &= True", _PROJECTED),
    Fault("aggregate: a map forgets that nothing is proven", "transforms/aggregate.py", "return _assembled(*parts, *static)", "return _assembled(*parts, static[0], (True, *static[1][1:]))", ("tests/transforms/test_aggregate.py",)),
    Fault("aggregate: a copy forgets that nothing is proven", "transforms/aggregate.py", "static = self.relation, (self.proven,", "static = self.relation, (True,", ("tests/transforms/test_aggregate.py",)),
    Fault("aggregate: a replacement forgets that nothing is proven", "transforms/aggregate.py", '"proven": self.proven,', '"proven": True,', ("tests/transforms/test_aggregate.py", *_PROJECTED)),
    Fault("subspaces: the error is the largest entry", _TOOLS, "float(np.linalg.norm(wide.T @ wide - np.eye(wide.shape[1])))", "float(np.abs(wide.T @ wide - np.eye(wide.shape[1])).max())", (*_PROJECTED, *_SUBSPACES)),
    Fault("subspaces: directions are not made orthonormal again", _TOOLS, "lambda _, q: jnp.linalg.qr(squared(q))[0]", "lambda _, q: squared(q)", _SUBSPACES),
    Fault("subspaces: squares of singular values", _TOOLS, "jnp.sqrt(jnp.maximum(values[::-1][:rank], 0))", "values[::-1][:rank]", _SUBSPACES),
    Fault("subspaces: directions are those of the iteration, not of Ritz values", _TOOLS, "basis = jnp.matmul(found, turn[:, ::-1][:, :rank], precision=_PRECISION)", "basis = found[:, ::-1][:, :rank]", _SUBSPACES),
    Fault("subspaces: the smallest Gram values", _TOOLS, "np.linalg.qr(wide.T @ vectors[:, ::-1][:, :rank])", "np.linalg.qr(wide.T @ vectors[:, :rank])", _SUBSPACES),
    Fault("subspaces: the last rows are left out", _TOOLS, "jnp.pad(wide, ((0, -count % size), (0, 0))).reshape(-1, size, dim)", "wide[: count // size * size].reshape(-1, size, dim)", _SUBSPACES),
    Fault("subspaces: ranks are counted from zero", _TOOLS, "np.log(np.arange(first, end + 1))", "np.log(np.arange(first, end + 1) + 1)", _SUBSPACES),
)  # fmt: skip
