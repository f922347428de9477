"""Faults of draws for losses that are not convex: by rejection, by chains and on nets."""

from tests.mutation import Fault

_LAW = ("tests/solvers/test_gibbs.py::test_draws_follow_the_law_of_a_double_well[tight]",)
_PLANE = ("tests/solvers/test_gibbs.py::test_in_two_dimensions_the_law_is_that_of_the_formula",)
_CAPPED = (
    "tests/solvers/test_gibbs.py::test_a_capped_loop_ends_in_a_proposal_and_its_density_is_within_the_slack",
)
_ENDS = (
    "tests/solvers/test_gibbs.py::test_a_loop_in_which_nothing_counts_ends_in_a_fresh_proposal",
)
_LANES = (
    "tests/solvers/test_contract.py::test_lanes_that_would_draw_by_one_key_are_refused[gibbs]",
)
_DECLARED = ("tests/solvers/test_gibbs.py::test_losses_are_proven_where_privacy_rests_on_them",)
_CHAIN = ("tests/solvers/test_gibbs.py::test_a_chain_has_the_law_and_its_plan_what_it_costs",)
_ACCEPTED = ("tests/solvers/test_gibbs.py::test_how_often_a_proposal_counts_at_least",)
_LINEAR = (
    "tests/solvers/test_gibbs.py::test_the_cost_by_a_log_sobolev_constant_is_that_of_linear_losses",
)
_TABLE = (
    "tests/solvers/test_gibbs.py::test_the_temperature_of_the_log_sobolev_proof_solves_its_equation",
)
_RISKS = ("tests/solvers/test_gibbs.py::test_mean_risks_are_below_the_bounds_of_plans",)
_LIMITS = ("tests/solvers/test_gibbs.py::test_what_limits_a_plan",)
_BLOCKS = (
    "tests/solvers/test_net_exponential_mechanism.py::test_users_are_read_in_blocks_to_the_same_bits",
)
_BEST = (
    "tests/solvers/test_net_exponential_mechanism.py::test_the_plan_takes_the_best_net_that_fits",
)
_ROOM = (
    "tests/solvers/test_net_exponential_mechanism.py"
    "::test_what_memory_does_not_allow_is_refused_with_the_number",
)
_CERTIFICATE = (
    "tests/solvers/test_rejection_certificate.py"
    "::test_losses_that_are_not_convex_mix_by_their_log_sobolev_constant",
)
_PROVEN = (
    "tests/problems/test_nonconvex_losses.py"
    "::test_lipschitz_constants_are_proven_and_no_smaller_one_is_claimed",
)
_CONVEX = ("tests/problems/test_nonconvex_losses.py::test_nothing_takes_them_for_convex",)
_PRINTED = (
    "tests/corrections/test_gibbs.py"
    "::test_c6_15_bounded_range_proves_more_wherever_the_risk_is_not_trivial",
)
_ALL = ("tests/solvers/test_gibbs.py::test_all_proposals_are_made_where_time_is_to_tell_nothing",)
_SOLVER = "solvers/nonconvex/gibbs.py"
_NUMBERS = "solvers/nonconvex/_gibbs_numbers.py"
_PLAN = "solvers/nonconvex/net_exponential_mechanism.py"
_CELLS = "solvers/sampling/_cells.py"
_REJECTION = "solvers/sampling/_rejection_certificate.py"
_PROOFS = "problems/_proofs.py"

FAULTS = (
    Fault("gibbs: flat proposals, as if they were bent", _SOLVER, "plan.lipschitz * radius * (share - 1.0)", "0.0 * radius * (share - 1.0)", _LAW),
    Fault("gibbs: uniform radius", _SOLVER, "(count,), jnp.float64) ** (1.0 / plan.dim)", "(count,), jnp.float64)", _PLANE),
    Fault("gibbs: sums in place of means", _SOLVER, "lost = plan.inverse_temperature * (sums / plan.num_users", "lost = plan.inverse_temperature * (sums", _LAW),
    Fault("gibbs: the worst proposals count", _SOLVER, "coins < jnp.exp(-jnp.maximum(lost, 0.0))", "coins < 1.0 - jnp.exp(-jnp.maximum(lost, 0.0))", _LAW),
    Fault("gibbs: a proposal that did not count leaves", _SOLVER, "jnp.where(counted, found, instead)", "found", _ENDS),
    Fault("gibbs: one key for all blocks", _SOLVER, "jax.random.split(jax.random.fold_in(blocks_key, index))", "jax.random.split(jax.random.fold_in(blocks_key, 0))", _LAW),
    Fault("gibbs: lanes draw by one key", _SOLVER, "jax.random.split(_keys.alone(key))", "jax.random.split(key)", _LANES),
    Fault("gibbs: losses of a chain are declared", _SOLVER, "        proven = _proofs.require_lipschitz(objective)\n", "        proven = objective.lipschitz\n", _DECLARED),
    Fault("gibbs: slopes of a plan are declared", _SOLVER, "        _proofs.require_lipschitz(objective)\n        _checks", "        _checks", _DECLARED),
    Fault("gibbs: a chain at any delta", _SOLVER, "spent = spent if float(self.failure) <= delta else math.inf", "spent = float(self.range)", _CHAIN),
    Fault("gibbs: any temperature of a chain", _SOLVER, "            (self.inverse_temperature, self.chain.inverse_temperature),\n", "", _CHAIN),
    Fault("gibbs: a chain is as long as for convex losses", _SOLVER, "        log_sobolev=numbers.log_sobolev_of(v * above, w * below**2).rate / (radius * above) ** 2,\n", "", _CHAIN),
    Fault("gibbs: the cap costs nothing", _SOLVER, "spent = spent + 2.0 * (off.below + off.above)", "spent = spent + 0.0 * (off.below + off.above)", _CAPPED),
    Fault("gibbs: the cap costs as little as it fails", _NUMBERS, "xp.log(xp.maximum(missed, 1e-300)) + 2.0 * steep, 600.0", "xp.log(xp.maximum(missed, 1e-300)), 600.0", _CAPPED),
    Fault("gibbs: a cap that always fails", _NUMBERS, "-xp.log1p(-xp.where(likely, missed, 0.5)), xp.inf)", "-xp.log1p(-xp.where(likely, missed, 0.5)), 0.0)", _ENDS),
    Fault("gibbs: acceptance of flat proposals", _NUMBERS, "up = xp.sum(mass * xp.exp(slope * _NODES), axis=-1)", "up = xp.sum(mass, axis=-1)", _ACCEPTED),
    Fault("gibbs: acceptance in one dimension", _NUMBERS, "_NODES ** (min(dim, _MOST_DIM) - 1)", "_NODES ** 0", _ACCEPTED),
    Fault("gibbs: a replaced user moves as an absent one", _NUMBERS, "xp.where(good, 2.0 * (steep / num_users) ** 2", "xp.where(good, 0.5 * (steep / num_users) ** 2", _LINEAR),
    Fault("gibbs: a log-Sobolev constant for any law", _NUMBERS, "good = (steep <= proven.v) & (bend >= proven.w)", "good = (steep > 0) & (bend > 0)", _LINEAR),
    Fault("gibbs: as many proposals as are asked for, by a number that is no integer", _SOLVER, "most.astype(jnp.int64)", "most", _ALL),
    Fault("gibbs: half the oscillation", _NUMBERS, "log_sobolev.bounded_perturbation(self.w, 2.0 * self.v)", "log_sobolev.bounded_perturbation(self.w, self.v)", _PRINTED),
    Fault("gibbs: a temperature for another budget", _NUMBERS, "math.sqrt(dim * rho) / (2.0 * math.sqrt(2.0))", "math.sqrt(dim * rho) / math.sqrt(2.0)", _TABLE),
    Fault("gibbs: risk without its logarithm", _SOLVER, "spread = dim * (1.0 + math.log(steep))", "spread = dim", _RISKS),
    Fault("gibbs: nothing is overfitted", _SOLVER, "overfit = 2.0 * widest * math.tanh(", "overfit = 0.0 * widest * math.tanh(", _LIMITS),
    Fault("gibbs: users who fill up a block count", _CELLS, "jnp.where(counted, each, 0.0)", "each", _BLOCKS),
    Fault("gibbs: a net without its number of points", _PLAN, "bound = dim * math.log(count) / k", "bound = 0.0 / k", _BEST),
    Fault("gibbs: a net's population is its sample", _PLAN, "bound += slope * diameter", "bound += 0.0 * diameter", _BEST),
    Fault("gibbs: nets of any size", _PLAN, "    if points > most_points:\n", "    if False:\n", _ROOM),
    Fault("gibbs: a net of too few cells in a ball", _PLAN, "least = max(2, math.ceil(2.0 * math.sqrt(dim)))", "least = max(2, 0)", _ROOM),
    Fault("gibbs: any Lipschitz constant", _PROOFS, "if not proof.lipschitz <= claimed < math.inf:", "if not 0.0 <= claimed < math.inf:", _PROVEN),
    Fault("gibbs: a constant of a ball, anywhere", _PROOFS, "    if not (proof.everywhere or objective.domain is proof.domain):\n", "    if False:\n", _PROVEN),
    Fault("gibbs: what is not convex is proven convex", _PROOFS, "if proof is None or proof.loss_strong_convexity < 0.0:", "if proof is None:", _CONVEX),
    Fault("gibbs: steps as for convex losses", _REJECTION, "rate, least = sizes.log_sobolev, log_sobolev.log_sobolev_steps", "rate = sizes.convexity", _CERTIFICATE),
    Fault("gibbs: certified as for convex losses", _REJECTION, "mixes, bound = sizes.log_sobolev, log_sobolev.log_sobolev_variation", "mixes = convexity", _CERTIFICATE),
    Fault("gibbs: no bounded set is asked for", _REJECTION, '        _checks.require(sizes.reach is not None, "reach", None, "known where losses are not convex")\n', "", _CERTIFICATE),
)  # fmt: skip
