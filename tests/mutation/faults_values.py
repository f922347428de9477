"""Faults of draws by value queries: plan, setting, losses, chain. Written down before any was run."""

from tests.mutation import Fault

_PLAN = ("tests/solvers/test_value_queries_plan.py",)
_DRAW = ("tests/solvers/test_value_queries.py",)
_RUN = (f"{_DRAW[0]}::test_a_run_says_the_plans_numbers_and_hides_its_own", *_DRAW)
_CENTRE = (
    f"{_DRAW[0]}::test_without_losses_the_law_is_that_of_the_regularizer_about_the_start",
    *_DRAW,
)
_VALUES = (
    f"{_DRAW[0]}::test_users_losses_are_those_of_rows_and_labels_within_their_bounds",
    *_DRAW,
)
_START = (f"{_DRAW[0]}::test_a_start_that_is_not_covered_costs_infinity", *_DRAW)
_LAW = (f"{_DRAW[0]}::test_the_temperature_of_draws_in_one_dimension", *_DRAW)
_STEP = (f"{_PLAN[0]}::test_what_runs_has_the_step_that_was_certified",)
_PLANNED = "solvers/sampling/_value_queries_plan.py"
_SHARED = "solvers/sampling/_draw.py"
_LOSSES = "solvers/sampling/_user_losses.py"
_SOLVER = "solvers/sampling/value_queries.py"
_ORACLE = "solvers/sampling/rejection_oracle.py"

FAULTS = (
    Fault("values: G in place of 2G", _PLANNED, "change = 2.0 * steep", "change = 1.0 * steep", _PLAN),
    Fault("values: the total variation costs nothing in the loss", _SHARED, "xp.where(good, tau, 0.0)", "xp.where(good, 0.0 * tau, 0.0)", _PLAN),
    Fault("values: the total variation is not in the certificate", _SHARED, "(float(s), float(tau)) if good", "(float(s), 0.0) if good", _PLAN),
    Fault("values: the factor 1 + e^ε is dropped in what is planned", _SHARED, "budget.delta / (1.0 + math.exp(min(budget.epsilon, _LARGEST)))", "budget.delta * 5.0", _PLAN),
    Fault("values: one key for x and z", _ORACLE, "restricted.attempt(z_key,", "restricted.attempt(x_key,", _LAW),
    Fault("values: z is kept for all trials", _ORACLE, "restricted.attempt(z_key,", "restricted.attempt(jax.random.key(1),", _LAW),
    Fault("values: only x is tested for membership", _ORACLE, "x_counts & z_counts & (coin", "x_counts & (coin", ("tests/solvers/test_rejection_oracle.py",)),
    Fault("values: twice the step that was certified", _SOLVER, "around = (plan.step_size,", "around = (2.0 * plan.step_size,", _STEP),
    Fault("values: the regularizer is off its centre", _SOLVER, "center, pull = (1.0 - share) * start,", "center, pull = 0.0 * share * start,", _CENTRE),
    Fault("values: realized trials are public", _SOLVER, "end, queries, realized)", "end, realized, realized)", _RUN),
    Fault("values: the ridge counts twice", _PLANNED, "regularization + self.ridge", "regularization + 2.0 * self.ridge", _PLAN),
    Fault("values: rows are not bounded in the other norm", _LOSSES, "return rows * (factor * _WITHIN)[..., None]", "return rows", _VALUES),
    Fault("values: labels are not cut", _LOSSES, "labels = jnp.clip(labels, -sizes.label_bound, sizes.label_bound)", "pass", _VALUES),
    Fault("values: the mask is ignored", _LOSSES, "shares = mask /", "shares = (mask | True) /", _VALUES),
    Fault("values: a start beside the centre of a ball is free", _SOLVER, "<= _NEAR * setting.radius", "<= 10.0 * setting.radius", _START),
    Fault("values: a start far out is free", _SOLVER, "<= plan.sizes.start_norm)", "< jnp.inf)", _START),
    Fault("values: the temperature is another one", _SOLVER, "scale=plan.inverse_temperature", "scale=0.6 * plan.inverse_temperature", _LAW),
    Fault("values: the point leaves with all its digits", _SOLVER, "jnp.trunc(move / unit) * unit", "move", _CENTRE),
    Fault("values: proposals may be wider than those that were counted with", "solvers/sampling/_rejection_certificate.py", "xp.where(deviation <= widest, likely, 0.0)", "xp.where(deviation > 0, likely, 0.0)", _PLAN),
    Fault("values: one attempt of two", "solvers/sampling/_rejection_certificate.py", "found.acceptance**2", "found.acceptance", ("tests/solvers/test_rejection_certificate.py", *_PLAN)),
    Fault("values: the first term of a Bregman bound", "solvers/sampling/_rejection_certificate.py", "power.scale * (first +", "power.scale * (0.1 * first +", _PLAN),
    Fault("values: the rounding of the regularizer costs nothing", "solvers/sampling/_rejection_certificate.py", "sizes.rounding.within(reach) + found.potential", "sizes.rounding.within(reach)", _PLAN),
    Fault("values: single precision claims what double does", _PLANNED, "good & (xp is np or k.dtype == jnp.float64)", "good", _PLAN),
    Fault("values: overfitting is left out", _SOLVER, "return apart if self.population else 0.0", "return 0.0 * apart", _PLAN),
    Fault("values: the mode is at the start", _PLANNED, "start = setting.euclidean / convexity + xp.sqrt(", "start = xp.sqrt(", _PLAN),
    Fault("values: thrift is forgotten", _SOLVER, "    if asked.thrifty:", "    if False:", _PLAN),
    Fault("values: printed constants are taken unseen", _SOLVER, "if spent > budget.epsilon:", "if spent > 1e9:", _PLAN),
)  # fmt: skip
