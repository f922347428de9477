"""Faults in losses that are not convex, and in selection and certificates of stationary points."""

from tests.mutation import Fault

_LOSSES = ("tests/problems/test_nonconvex_losses.py",)
_FIXTURES = ("tests/problems/test_fixtures.py",)
_SECOND = ("tests/oracles/test_second_order.py",)
_SELECT = ("tests/solvers/test_select_sosp.py",)
_CERTIFY = ("tests/solvers/test_certify.py",)
_LASRY = ("tests/geometry/test_lasry_lions.py",)
_UNIFORM = ("tests/rates/test_uniform_convergence.py",)
_RATES = ("tests/rates/test_nonconvex.py",)
_MADE = "problems/nonconvex_losses.py"
_ORACLE = "oracles/second_order.py"
_BOUNDS = "solvers/nonconvex/_second_order_bounds.py"
_SELECTION = "solvers/nonconvex/select_sosp.py"
_CERTIFICATE = "solvers/nonconvex/certify.py"

FAULTS = (
    Fault("welsch: a slope without its exponential", _MADE, "slope=scale * math.exp(-0.5)", "slope=scale", _LOSSES),
    Fault("welsch: the third derivative at another place", _MADE, "math.sqrt(3.0 - math.sqrt(6.0))", "math.sqrt(2.9 - math.sqrt(6.0))", _LOSSES),
    Fault("tukey: the third derivative within", _MADE, "third=8.0 / scale", "third=3.6 / scale", _LOSSES),
    Fault("phase retrieval: the slope at the edge", _MADE, "slope=max(1.75 * edge**3", "slope=max(edge**3", _LOSSES),
    Fault("completion: the least curvature is that above", _MADE, "smoothness=square / factor_ridge,", "smoothness=0.25 * square / factor_ridge,", _LOSSES),
    Fault("completion: what was not observed counts", _MADE, "rows = jnp.where(observed[:, None], params, jnp.zeros_like(params))", "rows = params", _LOSSES),
    Fault("completion: ratings are not bounded", _MADE, "ratings = clip_to_norm(ratings, rating_bound)", "pass", _LOSSES),
    Fault("network: the part of the second derivative is dropped", _MADE, "smoothness = gradient**2 / 4.0 + hessian", "smoothness = gradient**2 / 16.0", _LOSSES),
    Fault("losses that are not convex pass for proven convex ones", "problems/_proofs.py", "if proof is None or proof.loss_strong_convexity < 0.0:", "if proof is None:", _LOSSES),
    Fault("losses that are not convex say that they are", "problems/_links.py", "globally_convex_lipschitz=everywhere and least_curvature == 0.0", "globally_convex_lipschitz=everywhere", _LOSSES),
    Fault("a bound for convex losses is stated of all", "solvers/_plan_base.py", "if convex and bounded and problem.objective.loss_strong_convexity < 0:", "if False:", _LOSSES),
    Fault("escape: an oracle that is no worse than exact", "problems/fixtures.py", "jnp.where(jnp.linalg.norm(found) <= error, jnp.zeros_like(found), found)", "found", _FIXTURES),
    Fault("second order: gradients are not clipped", _ORACLE, "clipped = jax.vmap(lambda g: norms.clip_to_norm(g, clip_norm))(gradients)", "clipped = gradients", (f"{_SECOND[0]}::test_means_are_those_of_numpy", *_SECOND)),
    Fault("second order: curvatures of items are not clipped", _ORACLE, "bends = jnp.clip(bends, least_curvature / square, most_curvature / square)", "pass", (f"{_SECOND[0]}::test_means_are_those_of_numpy", *_SECOND)),
    Fault("second order: eigenvalues of users are not clipped", _ORACLE, "bends = jnp.clip(bends, least_curvature, most_curvature)\n", "pass\n", (f"{_SECOND[0]}::test_means_are_those_of_numpy", *_SECOND)),
    Fault("second order: a Hessian that is not finite counts", _ORACLE, "            whole = jnp.where(jnp.all(jnp.isfinite(whole)), whole, 0.0)\n            bends, vectors = jnp.linalg.eigh(whole)\n            bends = jnp.clip(bends, least_curvature, most_curvature)\n            clipped = (vectors * bends) @ vectors.T\n            # Nor does a matrix count whose decomposition is no number.\n            clipped = jnp.where(jnp.all(jnp.isfinite(clipped)), clipped, 0.0)\n", "            whole = whole + 0.0\n            bends, vectors = jnp.linalg.eigh(whole)\n            bends = jnp.clip(bends, least_curvature, most_curvature)\n            clipped = (vectors * bends) @ vectors.T\n            # Nor does a matrix count whose decomposition is no number.\n            clipped = clipped + 0.0\n", (f"{_SECOND[0]}::test_what_is_not_finite_counts_as_zero", *_SECOND)),
    Fault("second order: the sum of items for their mean", _ORACLE, "weights = jnp.where(counted[:, None], rows.weights, 0.0)", "weights = jnp.where(counted[:, None], 1.0 * (rows.weights > 0), 0.0)", (f"{_SECOND[0]}::test_means_are_those_of_numpy", *_SECOND)),
    Fault("sensitivity: G in place of 2G", _BOUNDS, "return 2.0 * self.clip_norm * self._share", "return 1.0 * self.clip_norm * self._share", (f"{_SELECT[0]}::test_sensitivities_are_those_of_the_clips", *_SELECT)),
    Fault("sensitivity: of Hessians, one end only", _BOUNDS, "(self.most_curvature - self.least_curvature) * self._share", "self.most_curvature * self._share", (f"{_SELECT[0]}::test_sensitivities_are_those_of_the_clips", *_SELECT)),
    Fault("statistics: the ridge bends nothing", _BOUNDS, "jnp.linalg.eigvalsh(found.hessian)[0] + objective.ridge", "jnp.linalg.eigvalsh(found.hessian)[0]", (f"{_SELECT[0]}::test_parameters_of_any_structure_and_a_ridge", *_SELECT)),
    Fault("statistics: a point however far its regularizer pulls", _BOUNDS, "good = norms.global_norm(objective.ridge * flat) <= _FARTHEST * plan.clip_norm", "good = True", (f"{_CERTIFY[0]}::test_a_regularizer_does_not_round_users_by_more_than_the_noise",)),
    Fault("statistics: the largest eigenvalue", _BOUNDS, "eigvalsh(found.hessian)[0]", "eigvalsh(found.hessian)[-1]", (f"{_SELECT[0]}::test_without_noise_the_first_stationary_point_is_found", *_SELECT)),
    Fault("statistics: any ridge, however users are rounded beside it", _BOUNDS, "good &= objective.ridge <= _FARTHEST * (plan.most_curvature - plan.least_curvature)", "pass", (f"{_CERTIFY[0]}::test_a_regularizer_does_not_round_users_by_more_than_the_noise",)),
    Fault("sensitivity: a subnormal one", _BOUNDS, "good = good & (both[0] >= _LEAST) & (both[1] >= _LEAST)", "pass", (f"{_SELECT[0]}::test_bounds_over_which_scores_are_no_numbers_cost_infinity",)),
    Fault("selection: each of two tests has all of ε", _SELECTION, "plan.epsilon / number, 1.0)", "plan.epsilon, 1.0)", (f"{_SELECT[0]}::test_two_tests_give_away_epsilon_and_with_the_printed_scales_twice_as_much", *_SELECT)),
    Fault("selection: one test at half of its noise", _SELECTION, "plan.epsilon / number, 1.0)", "plan.epsilon / number, 0.5)", (f"{_SELECT[0]}::test_one_test_gives_away_epsilon_and_no_more", *_SELECT)),
    Fault("selection: one noise for all candidates", _SELECTION, "jax.random.fold_in(steps_key, index), len(tests)", "jax.random.fold_in(steps_key, 0), len(tests)", (f"{_SELECT[0]}::test_each_candidate_is_tested_with_noise_of_its_own", *_SELECT)),
    Fault("selection: both tests by one key", _SELECTION, "for test, one in zip(tests, jax.random.split(start_key, len(tests)), strict=True)", "for test, one in zip(tests, [start_key] * len(tests), strict=True)", (f"{_SELECT[0]}::test_each_candidate_is_tested_with_noise_of_its_own", *_SELECT)),
    Fault("selection: either test will do", _SELECTION, "jnp.all(jnp.stack(passed))", "jnp.any(jnp.stack(passed))", (f"{_SELECT[0]}::test_a_point_that_fails_one_of_two_tests_fails", *_SELECT)),
    Fault("selection: the curvature is not looked at", _SELECTION, "queries = (jnp.minimum(*found),) if", "queries = (found[0],) if", (f"{_SELECT[0]}::test_a_point_that_fails_one_of_two_tests_fails", *_SELECT)),
    Fault("selection: no offset", _SELECTION, "sparse_vector.above_threshold(-plan.offset,", "sparse_vector.above_threshold(0.0 * plan.offset,", (f"{_SELECT[0]}::test_it_fails_no_more_often_than_it_says", *_SELECT)),
    Fault("selection: the slack of a single candidate", _SELECTION, "4.0 * math.log(2.0 * count / omega)", "4.0 * math.log(2.0 / omega)", (f"{_SELECT[0]}::test_slack_by_hand_and_a_quarter_of_what_the_paper_has", *_SELECT)),
    Fault("selection: the farthest is named", _SELECTION, "return -jnp.maximum(norm / steep, -least / bent)", "return jnp.maximum(norm / steep, -least / bent)", (f"{_SELECT[0]}::test_of_all_the_nearest_is_named_and_none_that_is_no_number", *_SELECT)),
    Fault("selection: a run that found nothing says that it did", _SELECTION, '"found": success, "index"', '"found": success | True, "index"', (f"{_SELECT[0]}::test_where_nothing_is_found_the_last_candidate_is_returned_and_it_is_said", *_SELECT)),
    Fault("certificate: one key for both", _CERTIFICATE, "least = _released(second, least,", "least = _released(first, least,", (f"{_CERTIFY[0]}::test_noise_is_gaussian_of_the_stated_size_and_the_two_are_independent", *_CERTIFY)),
    Fault("certificate: a bound on both sides", _CERTIFICATE, "quantile = -ndtri(jnp.asarray(plan.failure, jnp.float64))", "quantile = -ndtri(jnp.asarray(0.05 * plan.failure, jnp.float64))", (f"{_CERTIFY[0]}::test_each_bound_holds_as_often_as_it_says", *_CERTIFY)),
    Fault("certificate: the eigenvalue is bounded from above", _CERTIFICATE, "bent = least - quantile", "bent = least + quantile", (f"{_CERTIFY[0]}::test_each_bound_holds_as_often_as_it_says", *_CERTIFY)),
    Fault("certificate: the budget of a single release", _CERTIFICATE, "fixed_size(users, users, 2).noise_multiplier(", "fixed_size(users, users, 1).noise_multiplier(", (f"{_CERTIFY[0]}::test_stddevs_are_multipliers_times_sensitivities", *_CERTIFY)),
    Fault("certificate: α without the curvature", _CERTIFICATE, "jnp.maximum(steep, jnp.square(down) / safe)", "steep", (f"{_CERTIFY[0]}::test_each_bound_holds_as_often_as_it_says", *_CERTIFY)),
    Fault("lasry-lions: one weight for both envelopes", "geometry/lasry_lions.py", "spacing, 2.0 * jnp.asarray(smoothing, values.dtype))", "spacing, 1.0 * jnp.asarray(smoothing, values.dtype))", _LASRY),
    Fault("lasry-lions: the place of the other axis", "geometry/lasry_lions.py", "places = [jnp.take_along_axis(known, found, axis) for known in places]", "pass", _LASRY),
    Fault("uniform convergence: one end of the spectrum of a vector", "rates/uniform_convergence.py", "level = (points + math.log(dim)) / num_users", "level = points / num_users", _UNIFORM),
    Fault("uniform convergence: nothing moves between points", "rates/uniform_convergence.py", "+ 2.0 * smoothness * radii", "+ 0.0 * radii", _UNIFORM),
    Fault("rates: chapter 7 has the exponent of chapter 6", "rates/nonconvex.py", '"adaptive spider, population": total(_SAMPLED, _private(_HALF))', '"adaptive spider, population": total(_SAMPLED, _private(Fraction(3, 7)))', _RATES),
)  # fmt: skip
