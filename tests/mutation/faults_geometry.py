"""Faults in noisy SGD around its start: who is drawn, what is clipped, what is charged, what is claimed."""

from tests.mutation import Fault, rows

_SOLVER = "solvers/item_level/regularized_sgd.py"
_MEANS = "solvers/means.py"
_RUN = "solvers/first_order.py"
_RATES = "rates/dimension_free.py"
_COEFFICIENTS = "problems/restricted_lipschitz.py"
_OWN = ("tests/solvers/test_regularized_sgd.py",)
_BOUNDS = ("tests/rates/test_dimension_free.py",)
_SEEN = ("tests/problems/test_restricted_lipschitz.py",)
_PRINTED = ("tests/corrections/test_geometry.py",)

FAULTS = (
    Fault("pulled: all users a step, charged as a single draw's noise", _MEANS, 'steps = fixed_size(users, batch, num_steps)', 'steps = fixed_size(users, 1, num_steps)', (*_OWN, *rows("regularized_sgd, full"))),
    Fault("pulled: a plan of single draws takes everybody", _SOLVER, 'batch_size=users if sampling == "full" else 1,', "batch_size=users,", (*_OWN, *rows("regularized_sgd, single"))),
    Fault("pulled: gradients are clipped ten times later than is paid for", _MEANS, 'return Clipped(chunk_size, "user", releases, clip, None)', 'return Clipped(chunk_size, "user", releases, 10 * clip, None)', (*_OWN, *_PRINTED)),
    Fault("pulled: half of the noise, for a draw that moves by G", _MEANS, "steps.noise_multiplier(budget.epsilon, budget.delta, accountant),", "steps.noise_multiplier(budget.epsilon, budget.delta, accountant) / 2,", (*_OWN, *rows("regularized_sgd, full"))),
    Fault("pulled: the certificate is of Poisson samples", _MEANS, '"poisson" if sampling == "poisson" else "fixed",', '"poisson",', (*_OWN, *rows("regularized_sgd, single"))),
    Fault("pulled: one step less is charged", _RUN, "plan.num_steps,\n        plan.gradients(", "plan.num_steps + 1,\n        plan.gradients(", rows("regularized_sgd, full")),
    Fault("pulled: to the origin", _RUN, "Pull(plan.pull, center),", "Pull(plan.pull, jax.tree.map(lambda x: 0 * x, params)),", _OWN),
    Fault("pulled: pushed", _RUN, "Pull(plan.pull, center),", "Pull(-plan.pull, center),", _OWN),
    Fault("pulled: the last point is reported", _SOLVER, "methods.ProjectedSgd(numbers.step_size)", 'methods.ProjectedSgd(numbers.step_size, "last")', _OWN),
    Fault("pulled: a bound for gradients that are clipped", _SOLVER, "mean.clip_norm >= problem.lipschitz and not", "not", _OWN),
    Fault("pulled: a bound with the noise of half the sensitivity", _SOLVER, "float(self.mean.noise_stddev(self.problem.dim))", "float(self.mean.noise_stddev(self.problem.dim)) / 2", _OWN),
    Fault("pulled: long steps are not refused", _SOLVER, "step_size * regularization <= 0.5,", "step_size * regularization <= 50,", _OWN),
    Fault("pulled: the population's risk without stability", _SOLVER, 'if s.risk == "population":\n        # Linear', "if False:\n        # Linear", _OWN),
    Fault("tail: an index twice as large", _RATES, "known[2 ** (s - 1) * rank]", "known[np.minimum(2**s * rank, dim)]", _BOUNDS),
    Fault("tail: one subspace less", _RATES, "count = (dim // rank).bit_length()", "count = (dim // rank).bit_length() - 1", _BOUNDS),
    Fault("tail: s in place of its square", _RATES, "levels**2 * 2.0**levels", "levels * 2.0**levels", _BOUNDS),
    Fault("bound: without 1/T of the rest", _RATES, "1 / steps) * each  # x_1, ..., x_T", "0 / steps) * each", (*_PRINTED, *_BOUNDS)),
    Fault("bound: finite without a pull", _RATES, "np.where(pulled, least, np.inf if slope > 0 else 0.0)", "np.where(pulled, least, 0.0)", _BOUNDS),
    Fault("bound: half of what is outside of the rank", _RATES, "least = 2 * np.sqrt(a * b)", "least = np.sqrt(a * b)", _BOUNDS),
    Fault("lemma: a quarter of the squared slope", _RATES, "return 4 * (slope / regularization) ** 2", "return (slope / regularization) ** 2 / 4", _BOUNDS),
    Fault("coefficients: the one before", _COEFFICIENTS, "return np.append(np.sort(values)[::-1], np", "return np.append(np.sort(values)[::-1][[0, *range(len(values) - 1)]], np", _SEEN),
    Fault("coefficients: the mean for the longest", _COEFFICIENTS, "np.sqrt(rest.max(axis=0))", "np.sqrt(rest.mean(axis=0))", _SEEN),
)  # fmt: skip
