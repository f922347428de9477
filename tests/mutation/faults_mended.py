"""Faults that undo, or half undo, what was mended after the outside review: ledgers, layers, edits, entry."""

from tests.mutation import Fault, rows

_DRAWS = ("tests/transforms/test_draws.py",)
_LAYERS = ("tests/transforms/test_layers.py",)
_PROOFS = "tests/solvers/test_output_proofs.py"
_EDITED = "tests/solvers/test_edited_resque.py::test_every_edited_leaf_is_covered"
_CLOSED = "tests/test_fail_closed.py::test_traced_numbers_fail_closed"
_CONTRACT = "tests/solvers/test_contract.py::test_"
_CHARGED = _CONTRACT + "the_plan_says_what_a_run_is_charged_whatever_number_was_edited"
_MORE = _CONTRACT + "a_size_that_lets_a_run_draw_more_costs_more"
_KINDS = ("tests/privacy/test_kinds.py",)

_NARROW = ("tests/test_narrow_numbers.py",)

FAULTS = (
    Fault("privatize: a ledger of samples says everybody took part", "transforms/privatize.py", "privacy.open_ledger(aggregate.relation, sampled, shareable)", "privacy.open_ledger(aggregate.relation, False, shareable)", _DRAWS),
    Fault("privatize: draws of a fixed size may be shared", "transforms/privatize.py", "shareable = isinstance(drawn, Poisson)", "shareable = sampled", _DRAWS),
    Fault("privatize charges twice", "transforms/privatize.py", "ledger = privacy.charge(state.ledger, charged)", "ledger = privacy.charge(privacy.charge(state.ledger, charged), charged)", rows("sgd, full")),
    Fault("several amplified looks at one draw compose", "privacy/ledger.py", "if sampled and len(ledgers) > 1 and not shared and not independent_draws:", "if False:", ("tests/privacy/test_ledger.py", *_DRAWS)),
    Fault("ledgers of different relations compose", "privacy/ledger.py", 'require(len(relations) == 1, "opt_state"', 'require(len(relations) >= 1, "opt_state"', ("tests/privacy/test_ledger.py::test_ledgers_of_different_relations_do_not_compose",)),
    Fault("layers: sensitivity of the largest alone", "geometry/clipping.py", "math.hypot(*(float(bound) for bound in bounds))", "max(float(bound) for bound in bounds)", _LAYERS),
    Fault("layers: a bad entry takes the user out of its own layer only", "geometry/clipping.py", "counted = counted & jax.vmap(norms.all_finite)(rows)", "pass", _LAYERS),
    Fault("Laplace curve: a traced number out of range is not refused", "privacy/curves/closed_forms.py", "return unbounded_unless(found > 0, _loss(xp.minimum(rdp, x)))", "return _loss(xp.minimum(rdp, x))", (f"{_CLOSED}[privacy.curves.closed_forms.laplace]",)),
    Fault("ReSQue: a larger β than the proven one is charged the same", "solvers/resque/_accounting.py", "covered = (beta > 0) & (beta <= largest)", "covered = beta > 0", (f"{_EDITED}[localized-x 10]",)),
    Fault("ReSQue: radii are not compared with the proven ratio", "solvers/resque/_accounting.py", "covered &= smoothing >= proven.radius_ratio * _PLANNED_RATIO * radius", "covered &= smoothing > 0", (f"{_EDITED}[localized-/ 10]",)),
    Fault("ReSQue: late phases project the point and not the move", "solvers/resque/_calls.py", "stepped = stepped if into is None else into(stepped)", "stepped = stepped if into is None else setting.domain.project(center + begin + stepped) - (center + begin)", ("tests/privacy/test_resque_rounding.py",)),
    Fault("output perturbation: an empty user is not convex", "solvers/user_level/output_perturbation.py", "mean = (g + missing * w) / plan.num_users", "mean = g / plan.num_users", (f"{_PROOFS}::test_a_user_among_empty_ones_moves_the_point_by_at_most_the_sensitivity",)),
    Fault("output perturbation: runs with another objective", "solvers/user_level/output_perturbation.py", "if found != plan.proven_for:", "if False:", (f"{_PROOFS}::test_a_plan_runs_with_the_objective_that_it_was_made_for_only",)),
    Fault("joint certificate of the first member", "privacy/releases.py", "certificates, max(c.epsilon for c in certificates), max(c.delta for c in certificates)", "certificates, certificates[0].epsilon, certificates[0].delta", ("tests/privacy/test_releases.py",)),
    Fault("encoding: values out of bounds stay", "problems/encoding.py", "unit = (np.clip(value, low, high) - low) / (high - low)\n        return np.clip(2.0 * unit - 1.0, -1.0, 1.0).astype", "unit = (value - low) / (high - low)\n        return (2.0 * unit - 1.0).astype", ("tests/problems/test_encoding.py::test_by_hand", "tests/problems/test_encoding.py")),
    Fault("a float mask passes for booleans", "_checks.py", "if dtype != np.bool_ or (shape", "if dtype is None or (shape", ("tests/transforms/test_table.py::test_users_who_are_masked_out_contribute_nothing", "tests/test_bad_arguments.py")),
    Fault("noise that float32 cannot hold is paid for", "_conditions.py", "good = found[0] >= LEAST_NOISE", "good = found[0] >= 0", ("tests/solvers/test_narrow_plans.py",)),
    Fault("plans of narrow numbers run", "solvers/_arguments.py", '_checks.require_wide_numbers("plan", plan)', "pass", ("tests/solvers/test_narrow_plans.py",)),
    Fault("clipped items: any scheme is charged", "solvers/means.py", "scheme, FullBatch | WithReplacement)", "scheme, object)", ("tests/solvers/test_means.py",)),
    Fault("clipped means: draws with replacement count as a batch", "privacy/releases.py", 'by_user = self.sampling != "replacement"', "by_user = True", ("tests/solvers/test_means.py",)),
    Fault("static fields hold anything", "_pytrees.py", '_require_kind(field.name, value, field.type, rule["least"])', "pass", ("tests/solvers/test_edited_statics.py::test_static_fields_hold_what_their_annotations_say",)),
    Fault("static fields: any word", "_pytrees.py", 'if rule["choices"]:', "if False:", ("tests/solvers/test_edited_statics.py::test_static_fields_hold_what_their_annotations_say",)),
    Fault("caps of users below one unit are doubled first", "privacy/sampling.py", "array_namespace(self.cap, loss).asarray(self.cap) >= 1.0, loss", "array_namespace(self.cap, loss).asarray(self.cap) >= 0.5, loss", ("tests/privacy/test_traced_schemes.py",)),
    Fault("requests: any delta below one", "solvers/_planning.py", "budget.require_for(problem.num_users)", "pass", ("tests/solvers/test_large_delta.py",)),
    Fault("budgets: a delta of one over the users is small", "privacy/budget.py", "self.delta * num_users >= 1.0", "self.delta * num_users > 1.001", ("tests/solvers/test_large_delta.py",)),
    Fault("zeroth order: any norm", "solvers/sampling/zeroth_order.py", "_llt_numbers.exponent(self.norm)", "pass", ("tests/solvers/test_edited_statics.py::test_a_norm_that_is_none_is_refused",)),
    Fault("means: other users than those accounted for", "solvers/_planning.py", '_checks.require(found == planned, "data", shown', '_checks.require(True, "data", shown', ("tests/solvers/test_means.py",)),
    Fault("means: any clip norm is paid for", "solvers/_planning.py", "return fits & xp.all(drawable(stddev))", "return np.True_", (f"{_CHARGED}[sgd, full]",)),
    Fault("sensitivities in the dtype of the clip norm", "geometry/clipping.py", "return wide_number(clip_norm)", "return clip_norm", ("tests/transforms/test_aggregates.py",)),
    Fault("sensitivities in the dtype of the number of users", "transforms/aggregates.py", "bound / wide_number(num_users)", "bound / num_users", _NARROW),
    Fault("shares inside: divided in the dtype of the number of users", "transforms/centred_clip.py", "_distance(relation), wide_number(num_users)", "_distance(relation), num_users", _NARROW),
    Fault("sensitivities of one's own stay narrow", "transforms/aggregate.py", "sensitivity = wide_number(sensitivity)", "pass", _NARROW),
    Fault("noise over sensitivity in their own dtype", "mechanisms/additive.py", "xp, (above, below) = as_floats(size, sensitivity)", "xp: Any = jnp\n    above, below = jnp.asarray(size), jnp.asarray(sensitivity)", _NARROW),
    Fault("sparse vector: a third of ε in its own dtype", "mechanisms/sparse_vector.py", "epsilon, sensitivity = wide_number(epsilon), wide_number(sensitivity)", "pass", _NARROW),
    Fault("certificates in the dtype of the multiplier", "privacy/accountants.py", 'noise_multiplier = require_real("noise_multiplier", noise_multiplier, 0.0)', "pass", _NARROW),
    Fault("narrow releases draw noise", "transforms/outlier_removed_mean.py", 'require_wide_numbers("releases", releases)', "pass", _NARROW),
    Fault("plans whose noise float32 cannot draw", "solvers/_plan_base.py", "_require_affordable(made)", "pass", ("tests/solvers/test_plans.py",)),
    Fault("private ReSQue: edited numbers cost what was proven", "solvers/resque/_accounting.py", "return charged(self)", "return proven_loss(self, self.single.proven)", (f"{_EDITED}[localized-x 10]",)),
    Fault("ledger: equal keys add up", "privacy/ledger.py", "sums &= _keys_differ(opt_state, spent.delta.shape)", "pass", ("tests/transforms/test_privatize.py",)),
    Fault("one-hot: columns compared in their own dtype", "_given.py", "return jnp.asarray(values).astype(int)", "return jnp.asarray(values)", ("tests/problems/test_objective.py",)),
    Fault("events: counts inside of a sample are not checked", "privacy/dp_accounting/_translation.py", 'count = require_integer("count", event.count, 1)', "count = event.count", _KINDS),
    Fault("releases: a failure without a loss is nothing", "privacy/_kinds.py", "if count and release != NOTHING]", "if count and getattr(release, 'epsilon', 1.0) != 0.0]", _KINDS),
    Fault("releases: zCDP without its offset", "privacy/_kinds.py", "PrivacyLoss(self.xi + self.rho * ORDERS,", "PrivacyLoss(self.rho * ORDERS,", _KINDS),
    Fault("staged AC-SA: stages longer than accounted for", "solvers/first_order.py", "plan.num_steps,\n        plan.gradients(", "2 * plan.num_steps,\n        plan.gradients(", rows("staged_ac_sa, full")),
    Fault("composites: parts of any relation", "solvers/combinators/composite.py", '_planning.require_replacement(getattr(part, "releases", None))', "pass", ("tests/solvers/test_means.py",)),
    Fault("tested means: the ramp as in exact arithmetic", "privacy/concentrated/_mean_sensitivity.py", "return 1.0 + _RAMP_ROUNDING * keep / (keep - 0.5)", "return 1.0 + 0.0 * keep", ("tests/privacy/test_threshold_ramp.py", "tests/privacy/test_mean_sensitivity.py")),
    Fault("tested means: coins as in exact arithmetic", "privacy/concentrated/_mean_sensitivity.py", "probability=min(steeper / ramp, 1.0),", "probability=min(1.0 / ramp, 1.0),", ("tests/privacy/test_threshold_phase.py",)),
)  # fmt: skip
