"""Faults where rare losses become failures, and where a solution is given its plan's certificate."""

from tests.mutation import Fault

_PROFILE, _CALLS, _SOLUTION = (
    "privacy/resque/_profile.py",
    "privacy/resque/calls.py",
    "solvers/solution.py",
)
_RESQUE, _CERTIFIED = ("tests/privacy/test_resque.py",), ("tests/solvers/test_solution.py",)

FAULTS = (
    Fault("rare losses: those of one direction are cut", _PROFILE, "kept = (place < first) & (place >= count - first)", "kept = place < first", _RESQUE),
    Fault("rare losses: the others' mirror images are cut one short", _PROFILE, "(place >= count - first)", "(place > count - first)", _RESQUE),
    Fault("rare losses: what is cut is no failure", _PROFILE, "np.where(kept, law.masses, 0.0), law.infinite + cut)", "np.where(kept, law.masses, 0.0), law.infinite)", _RESQUE),
    Fault("rare losses: more is cut than may be", _PROFILE, 'np.searchsorted(-tails, -most, side="left")', 'np.searchsorted(-tails, -2 * most, side="left")', _RESQUE),
    Fault("rare losses: drifts and tails have all of the failure each", _CALLS, "law = _law(call, _DRIFT_SHARE * failure)", "law = _law(call, failure)", _RESQUE),
    Fault("rare losses: divergences are not of what is left", _PROFILE, "- law.losses[kept] - math.log1p(-law.infinite)", "- law.losses[kept]", _RESQUE),
    Fault("solutions: the certificate of any plan", _SOLUTION, 'require(same, "plan"', 'require(True, "plan"', _CERTIFIED),
    Fault("solutions: a batch has the certificate of a run", _SOLUTION, 'require(one, "solution"', 'require(True, "solution"', _CERTIFIED),
)  # fmt: skip
