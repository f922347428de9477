"""Faults in what becomes of a person's table: whose rows are whose, what is shown, what a value counts as."""

from tests.mutation import Fault

_REFUSALS = ("tests/estimators/test_refusals.py",)
_PIPELINES = ("tests/estimators/test_scikit_learn.py",)
_CANARIES = ("tests/estimators/test_canaries.py",)
_USERS = ("tests/problems/test_users.py",)

FAULTS = (
    Fault("tables: rows of groups in another order are taken", "estimators/_base.py",
          "_frames.require_one_order(X=X, y=y, groups=groups)",
          "_frames.require_one_order(X=X, y=y)", _REFUSALS),
    Fault("tables: labels in another order are taken", "estimators/_base.py",
          "_frames.require_one_order(X=X, y=y, groups=groups)",
          "_frames.require_one_order(X=X, groups=groups)", _REFUSALS),
    Fault("tables: a pipeline hides the order of its rows", "estimators/pipelines.py",
          "_frames.require_one_order(X=X, y=y, groups=groups, **params)", "pass", _REFUSALS),
    Fault("tables: as many rows are in order", "estimators/_frames.py",
          "index.equals(indexed[first])", "len(index) == len(indexed[first])", _REFUSALS),
    Fault("tables: a pipeline inside keeps rows on disk", "estimators/pipelines.py",
          '_require_no_files("memory", step.memory)', "pass", _PIPELINES),
    Fault("tables: rows are handed to other processes", "estimators/pipelines.py",
          "and step.n_jobs != 1", "and not step.n_jobs", _PIPELINES),
    Fault("tables: complex labels are shown", "estimators/_frames.py",
          'require(found.dtype.kind != "c", "y"', 'require(True, "y"', _CANARIES),
    Fault("tables: scores compare what they are given", "estimators/_base.py",
          "truth, known = self._truth(labels)",
          "truth, known = np.asarray(y), slice(None)", _CANARIES),
    Fault("tables: sets that are in no order are users", "problems/_grouping.py",
          'users.dtype.kind != "O" or', "True or", _USERS),
)  # fmt: skip
