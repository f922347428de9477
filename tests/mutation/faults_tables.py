"""Faults in what becomes of a person's table: whose rows are whose, what is shown, what a value counts as."""

from tests.mutation import Fault

_REFUSALS = ("tests/estimators/test_refusals.py",)
_PIPELINES = ("tests/estimators/test_scikit_learn.py",)
_CANARIES = ("tests/estimators/test_canaries.py",)
_USERS = ("tests/problems/test_users.py",)
_GIVEN = ("tests/test_given.py",)
_TABLES = ("tests/estimators/test_tables.py",)
_LEVELS = ("tests/problems/test_levels.py",)
_ENCODING = ("tests/problems/test_encoding.py",)

FAULTS = (
    Fault("tables: rows of groups in another order are taken", "estimators/_base.py", "require_one_order(X=X, y=y, groups=groups)", "require_one_order(X=X, y=y)", _REFUSALS),
    Fault("tables: labels in another order are taken", "estimators/_base.py", "require_one_order(X=X, y=y, groups=groups)", "require_one_order(X=X, groups=groups)", _REFUSALS),
    Fault("tables: a pipeline hides the order of its rows", "estimators/pipelines.py", "require_one_order(X=X, y=y, groups=groups, **params)", "pass", _REFUSALS),
    Fault("tables: as many rows are in order", "_given.py", "index.equals(first[1])", "len(index) == len(first[1])", _REFUSALS),
    Fault("tables: rows of from_rows in another order are taken", "problems/tables.py", "require_one_order(users=users, rows=rows, kept=kept)", "pass", _USERS),
    Fault("tables: rows of elements in another order are taken", "problems/elements.py", "require_one_order(users=users, elements=elements, rows=rows, kept=kept)", "pass", _USERS),
    Fault("tables: a pipeline inside keeps rows on disk", "estimators/pipelines.py", '_require_no_files("memory", step.memory)', "pass", _PIPELINES),
    Fault("tables: rows are handed to other processes", "estimators/pipelines.py", "and step.n_jobs != 1", "and not step.n_jobs", _PIPELINES),
    Fault("tables: complex labels are shown", "estimators/_frames.py", 'require(found.dtype.kind != "c", "y"', 'require(True, "y"', _CANARIES),
    Fault("tables: scores compare what they are given", "estimators/_base.py", "truth, known = self._truth(labels)", "truth, known = np.asarray(y), slice(None)", _CANARIES),
    Fault("tables: sets that are in no order are users", "problems/_grouping.py", "all(one < other for one", "all(one != other for one", _USERS),
    Fault("tables: a level is compared by its type", "problems/_levels.py", "for key in _keys(level):", "for key in ():", _LEVELS),
    Fault("tables: a value is compared by its type", "problems/_levels.py", "keys = (_plain(value), *_keys(value))", "keys = (_plain(value),)", _LEVELS),
    Fault("tables: a level is what rows before it were", "problems/_levels.py", "own = type(value), value", "own = int, value", _LEVELS),
    Fault("tables: levels that occur are told", "problems/_levels.py", "require(fits, name, levels, wanted)", "require(any(level in column.tolist() for level in levels), name, levels, wanted)", _LEVELS),
    Fault("tables: masked arrays are read through", "_checks.py", "if isinstance(leaf, np.ma.MaskedArray):", "if False:", _GIVEN),
    Fault("tables: what is masked is there", "estimators/_frames.py", "found[np.ma.getmaskarray(values)] = None", "pass", _TABLES),
    Fault("tables: what is masked is a number", "estimators/_frames.py", "values.filled(np.nan)", "values.data", _TABLES),
    Fault("tables: masked objects of a frame are levels", "problems/_columns.py", "value is None or value is np.ma.masked", "value is None", _ENCODING),
    Fault("tables: integers are wrapped", "_given.py", "least <= leaf.min() and leaf.max() <= most", "True", _GIVEN),
    Fault("tables: large integers are wrapped", "_given.py", "least <= leaf.min() and leaf.max() <= most", "least <= leaf.min()", _GIVEN),
    Fault("tables: what stands for nobody is wrapped", "_given.py", "np.where(good, own, 0).astype(np.int64)", "np.where(good, own, 0)", _GIVEN),
    Fault("tables: integers are wrapped before they are floats", "_given.py", "return jnp.asarray(values, kind if floating else jnp.promote_types(kind, jnp.float32))", "return jnp.asarray(values).astype(kind if floating else jnp.promote_types(kind, jnp.float32))", _GIVEN),
    Fault("tables: solvers wrap", "solvers/_arguments.py", 'require_held("data", data)', "pass", _GIVEN),
    Fault("tables: sums over users wrap", "oracles/chunks.py", 'require_callable("chunk_sum", chunk_sum)\n    require_held("data", data)', 'require_callable("chunk_sum", chunk_sum)', _GIVEN),
    Fault("tables: a list is looked at as a whole", "_given.py", "if not isinstance(values, list | tuple):", "if True:", _USERS),
    Fault("tables: a NaN that was computed is there", "problems/_columns.py", 'getattr(dtype, "kind", "") == "f":', "False:", _ENCODING),
    Fault("tables: labels with a missing one are floats", "estimators/_frames.py", "return values.to_numpy() if known else", "return values.to_numpy() if True else", _TABLES),
    Fault("tables: pandas looks for the type of objects", "estimators/_frames.py", "return pd.DataFrame(array, dtype=object if array.dtype == object else None)", "return pd.DataFrame(array)", _TABLES),
    Fault("tables: a level may be of another type than all of its column", "problems/_levels.py", "isinstance(level, own))", "True)", _LEVELS),
    Fault("tables: two levels of one number are two", "problems/_levels.py", "require(len(set(rounded)) == len(levels)", "require(len(rounded) == len(levels)", _LEVELS),
    Fault("tables: who sorts levels afterwards changes a fit", "problems/encoding.py", "{column: tuple(levels) for column, levels in self.categories.items()}", "self.categories", _ENCODING),
    Fault("parquet: rows of several lengths are told by their sum", "problems/parquet.py", "require_undisclosed(alike and ", "require_undisclosed(", ("tests/problems/test_stored.py",)),
    Fault("tables: integers of columns are wrapped", "problems/_grouping.py", 'require_held("rows", rows)', "pass", _GIVEN),
    Fault("tables: a null makes floats of integers", "problems/_grouping.py", 'require(known, "rows", described(leaf), wanted)', "pass", _GIVEN),
)  # fmt: skip
