"""Faults that undo, or half undo, what was mended after the outside review: ledgers, layers, edits, entry."""

from tests.mutation import Fault, rows

_DRAWS = ("tests/transforms/test_draws.py",)
_LAYERS = ("tests/transforms/test_layers.py",)
_PROOFS = "tests/solvers/test_output_proofs.py"
_EDITED = "tests/solvers/test_edited_resque.py::test_every_edited_leaf_is_covered"
_CLOSED = "tests/test_fail_closed.py::test_traced_numbers_fail_closed"

FAULTS = (
    Fault("privatize: a ledger of samples says everybody took part", "transforms/privatize.py",
          "privacy.open_ledger(aggregate.relation, sampled, shareable)",
          "privacy.open_ledger(aggregate.relation, False, shareable)", _DRAWS),
    Fault("privatize: draws of a fixed size may be shared", "transforms/privatize.py",
          "shareable = isinstance(sampling, Poisson)", "shareable = sampled", _DRAWS),
    Fault("privatize charges twice", "transforms/privatize.py",
          "ledger = privacy.charge(state.ledger, charged)",
          "ledger = privacy.charge(privacy.charge(state.ledger, charged), charged)", rows("sgd, full")),
    Fault("several amplified looks at one draw compose", "privacy/ledger.py",
          "proven = not sampled or alone or shared or independent_draws", "proven = True",
          ("tests/privacy/test_ledger.py", *_DRAWS)),
    Fault("ledgers of different relations compose", "privacy/ledger.py",
          'require(len(relations) == 1, "opt_state"', 'require(len(relations) >= 1, "opt_state"',
          ("tests/privacy/test_ledger.py::test_ledgers_of_different_relations_do_not_compose",)),
    Fault("layers: sensitivity of the largest alone", "geometry/clipping.py",
          "math.hypot(*(float(bound) for bound in bounds))", "max(float(bound) for bound in bounds)",
          _LAYERS),
    Fault("layers: a bad entry takes the user out of its own layer only", "geometry/clipping.py",
          "counted = counted & jax.vmap(norms.all_finite)(rows)", "pass", _LAYERS),
    Fault("Laplace curve: a traced number out of range is not refused", "privacy/curves/closed_forms.py",
          "return unbounded_unless(found > 0, _loss(xp.minimum(rdp, x)))",
          "return _loss(xp.minimum(rdp, x))", (f"{_CLOSED}[privacy.curves.laplace]",)),
    Fault("ReSQue: a larger β than the proven one is charged the same",
          "solvers/resque/_accounting.py",
          "covered = (numbers.beta > 0) & (jnp.asarray(numbers.beta) <= largest)",
          "covered = jnp.asarray(numbers.beta) > 0", (f"{_EDITED}[localized-x 10]",)),
    Fault("ReSQue: radii are not compared with the proven ratio",
          "solvers/resque/_accounting.py",
          "covered &= smoothing >= proven.radius_ratio * _PLANNED_RATIO * radius",
          "covered &= smoothing > 0", (f"{_EDITED}[localized-/ 10]",)),
    Fault("ReSQue: late phases project the point and not the move", "solvers/resque/_calls.py",
          "stepped = stepped if into is None else into(stepped)",
          "stepped = stepped if into is None else"
          " setting.domain.project(center + begin + stepped) - (center + begin)",
          ("tests/privacy/test_resque_rounding.py",)),
    Fault("output perturbation: an empty user is not convex", "solvers/user_level/output_perturbation.py",
          "mean = (g + missing * w) / plan.num_users", "mean = g / plan.num_users",
          (f"{_PROOFS}::test_a_user_among_empty_ones_moves_the_point_by_at_most_the_sensitivity",)),
    Fault("output perturbation: runs with another objective", "solvers/user_level/output_perturbation.py",
          "if found != plan.proven_for:", "if False:",
          (f"{_PROOFS}::test_a_plan_runs_with_the_objective_that_it_was_made_for_only",)),
    Fault("joint certificate of the first member", "privacy/releases.py",
          "certificates, max(c.epsilon for c in certificates), max(c.delta for c in certificates)",
          "certificates, certificates[0].epsilon, certificates[0].delta",
          ("tests/privacy/test_releases.py",)),
    Fault("encoding: values out of bounds stay", "problems/encoding.py",
          "unit = (np.clip(value, low, high) - low) / (high - low)\n"
          "        return np.clip(2.0 * unit - 1.0, -1.0, 1.0).astype",
          "unit = (value - low) / (high - low)\n        return (2.0 * unit - 1.0).astype",
          ("tests/problems/test_encoding.py::test_by_hand", "tests/problems/test_encoding.py")),
    Fault("a float mask passes for booleans", "_checks.py",
          "require(dtype is not None and dtype == np.bool_, name, mask",
          "require(dtype is not None, name, mask",
          ("tests/transforms/test_aggregates.py::test_bad_arguments", "tests/test_bad_arguments.py")),
)  # fmt: skip
