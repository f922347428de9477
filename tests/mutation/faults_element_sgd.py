"""Faults in the releases of units and in what runs them."""

from tests.mutation import Fault, rows

_RELEASES = "solvers/element_level/_releases.py"
_UPDATES = "solvers/element_level/_unit_updates.py"
_SGD = "solvers/element_level/sgd.py"
_USER = "solvers/element_level/_releases.py"
_BINOMIAL = "privacy/pld/binomial_pairs.py"
_FIXED = "privacy/pld/hypergeometric_pairs.py"
_GHOST = "oracles/_ghost_norms.py"
_LINEAR = "oracles/linear.py"
_SAMPLING = "oracles/sampling.py"
_TESTS = "tests/solvers/test_element_sgd.py"
_EDITED = (f"{_TESTS}::test_an_edited_plan_is_certified_for_the_noise_that_it_adds",)
_FAR = (f"{_TESTS}::test_no_pair_of_element_neighbours_is_further_apart_than_twice_the_clip_norm",)
_STEPS = (f"{_TESTS}::test_steps_are_those_of_the_algorithm",)
_EMPTY = (f"{_TESTS}::test_empty_slots_leave_no_trace",)
_WHOLE = (f"{_TESTS}::test_a_user_protected_whole_moves_the_sum_by_twice_the_cap_and_no_more",)
_ONE = (f"{_TESTS}::test_with_one_element_it_is_user_level_sgd_bit_for_bit",)
_SAID = (f"{_TESTS}::test_what_is_said_of_a_user_is_no_less_than_what_aligned_elements_give_away",)
_PAIRS = ("tests/privacy/test_binomial_pairs.py",)
_DRAWN = ("tests/privacy/test_hypergeometric_pairs.py",)
_GHOSTS = ("tests/oracles/test_ghost_norms.py",)
_BLOCKS = (
    "tests/oracles/test_sampling.py::test_users_drawn_in_blocks_are_drawn_independently_and_alike",
)

FAULTS = (
    Fault("units: users are sampled and charged as units", _RELEASES, "scheme = PoissonUsers(rate, self.longest)", "scheme = Poisson(rate)", (*rows("element_sgd, poisson users"), *_EDITED)),
    Fault("units: noise over the clip norm, not over twice it", _UPDATES, "aggregate = transforms.summed_contributions(bound,", "aggregate = transforms.summed_contributions(bound / 2,", (*rows("element_sgd, poisson"), *_EDITED)),
    Fault("units: replacing is charged as leaving out", _RELEASES, '"replace": NeighboringRelation.REPLACE_ONE,', '"replace": NeighboringRelation.REPLACE_SPECIAL,', (*_EDITED, *rows("element_sgd, poisson"))),
    Fault("units: the divisor is the number of units that are there", _UPDATES, "aggregate = transforms.summed_contributions(bound, releases.batch_size, steps.relation)", "aggregate = transforms.summed_contributions(bound, jnp.maximum(1, jnp.sum(jnp.any(data.mask, 1))) if data.mask is not None else releases.batch_size, steps.relation)", (*_EMPTY, *rows("element_sgd, full"))),
    Fault("units: the cap on a user's sum is accounted for and not applied", _UPDATES, "longest = room * releases.longest * clip_norm", "longest = float(slots) * clip_norm", _WHOLE),
    Fault("units: no room for the grid of a user's sum", _UPDATES, "max(float(_compensated.GROUP**2), dim**0.5 / 2)", "float(_compensated.GROUP**2)", (f"{_TESTS}::test_an_element_moves_the_rounded_sum_of_its_user_by_no_more",)),
    Fault("units: the cap is larger than is accounted for", _RELEASES, "scheme = PoissonUsers(rate, self.longest)", "scheme = PoissonUsers(rate, 1.0)", (*_EDITED, *rows("element_sgd, poisson users"))),
    Fault("units: elements of a user whose sum is capped are not clipped themselves", _UPDATES, "clipped = jax.vmap(lambda g: norms.clip_to_norm(g, room * clip_norm))(made)", "clipped = made", _FAR),
    Fault("units: a user's last element is dropped", _UPDATES, "jnp.sum(x.reshape(-1, slots, *x.shape[1:]), axis=1)", "jnp.sum(x.reshape(-1, slots, *x.shape[1:])[:, : max(1, slots - 1)], axis=1)", (f"{_TESTS}::test_the_expected_sum_of_a_sample_is_its_share_of_the_whole",)),
    Fault("units: ascent", _UPDATES, "(-m / eta).astype(m.dtype)", "(m / eta).astype(m.dtype)", (*_STEPS, "tests/corrections/test_element_sgd.py")),
    Fault("units: the mapping is that of the first step in all of them", _UPDATES, "eta = step_size(step)", "eta = step_size(0)", _STEPS),
    Fault("units: a user protected whole moves as one element does", _RELEASES, 'return self.longest if self.protects == "user" else 1.0', "return 1.0", (*_WHOLE, *_EDITED)),
    Fault("units: a fixed number of units is charged as that of users times itself", _RELEASES, "WithoutReplacement(users * slots, batch * slots)", "WithoutReplacement(users * slots, batch)", (*_ONE, f'{_TESTS}::test_the_expected_sum_of_a_sample_is_its_share_of_the_whole')),
    Fault("units: of k elements that change one is drawn at most", _USER, "binomial_replaced_gaussian(sigma, rate, k)", "binomial_replaced_gaussian(sigma, rate, 1)", _SAID),
    Fault("units: of a sampled user the elements that stay are forgotten", _USER, "PoissonUsers(rate, releases.longest / length)", "PoissonUsers(rate, 1.0)", (f"{_TESTS}::test_of_sampled_users_the_elements_that_stay_show_the_coin",)),
    Fault("units: of k elements replaced by nothing one direction is counted", _USER, "both = removed, pairs.reverse(removed)", "both = (pairs.reverse(removed),)", _SAID),
    Fault("binomial pairs: units move the sum by half as much", _BINOMIAL, "places = 0.5 * places", "places = 0.25 * places", _PAIRS),
    Fault("binomial pairs: what is all but impossible is left out", _BINOMIAL, "_UNLIKELY = 1e-25", "_UNLIKELY = 1e-2", _PAIRS),
    Fault("binomial pairs: who is not drawn is forgotten", _BINOMIAL, "floor = float(logs[0]) if places[0] == 0.0 else -math.inf", "floor = 0.0", _PAIRS),
    Fault("units: of k elements in a fixed sample one is drawn at most", _USER, "hypergeometric_replaced_gaussian(sigma, *sizes, k)", "hypergeometric_replaced_gaussian(sigma, *sizes, 1)", (f'{_TESTS}::test_of_a_fixed_number_of_units_no_less_is_said_than_what_data_sets_give_away',)),
    Fault("hypergeometric pairs: who makes room for the k adds nothing", _FIXED, "_Half(counts[drawn] / noise_multiplier,", "_Half(0.5 * counts[drawn] / noise_multiplier,", _DRAWN),
    Fault("hypergeometric pairs: the others turn one way at every epsilon", _FIXED, "y = np.clip(0.5 * self.places - epsilon / self.places, x, x + self.places)", "y = x + self.places", _DRAWN),
    Fault("hypergeometric pairs: with nobody drawn nothing is lost", _FIXED, "self.none * special.ndtr(x[:, 0])", "0.0 * special.ndtr(x[:, 0])", _DRAWN),
    Fault("hypergeometric pairs: counts are those of draws with replacement", _FIXED, "shares = np.log(np.maximum(n - np.arange(k, dtype=float), 0.0) / population)", "shares = np.log(np.full(k, float(n)) / population)", _DRAWN),
    Fault("ghost norms: of features whose products leave the range of numbers", _GHOST, "_LEAST_BOUND, _GREATEST_BOUND = 2.0**-20, 2.0**40", "_LEAST_BOUND, _GREATEST_BOUND = 0.0, 1e300", _GHOSTS),
    Fault("units: a group of k pays k times ε at the same δ", _USER, "if middle + factor <= math.log(delta) - 1e-9:", "if middle <= math.log(delta):", _SAID),
    Fault("units: k elements move the sum as one does", _USER, "if releases.sums_users else float(k)", "if releases.sums_users else 1.0", _SAID),
    Fault("ghost norms: no room for the rounding of inner products", _GHOST, "terms * unit / (1 - terms * unit) * longest**2)", "0.0 * longest)", _GHOSTS),
    Fault("ghost norms: the items of a user are across each other", _GHOST, "square = jnp.sum(of_coefficients * of_rows, axis=(1, 2))", "square = jnp.trace(of_coefficients * of_rows, axis1=1, axis2=2)", _GHOSTS),
    Fault("ghost norms: clip factors left out of the sum", _LINEAR, "scales = jnp.expand_dims(unit * factor, (1, 2)) * relative", "scales = jnp.expand_dims(unit, (1, 2)) * relative", _GHOSTS),
    Fault("ghost norms: the sum is laid out the other way round", _LINEAR, "precision=FULL)).T", "precision=FULL)).reshape(rows.shape[-1], -1)", _GHOSTS),
    Fault("poisson: all blocks of users have one draw", _SAMPLING, "jax.random.fold_in(draw_key, number)", "jax.random.fold_in(draw_key, 0)", _BLOCKS),
    Fault("poisson: the number of a block is folded into the key of its step", _SAMPLING, "    draw_key, order_key = jax.random.split(key)\n\n", "    draw_key, order_key = jax.random.clone(key), jax.random.split(key)[1]\n\n", ("tests/oracles/test_sampling.py::test_no_block_of_a_step_is_that_of_another",)),
    Fault("poisson: the last block is never drawn", _SAMPLING, "-(-num_users // _BLOCK), with", "num_users // _BLOCK, with", _BLOCKS),
    Fault("poisson: a block writes over the one before", _SAMPLING, "rank = sample.size + jnp", "rank = jnp", _BLOCKS),
    Fault("poisson: of several blocks the last one's size counts", _SAMPLING, "UserSample(indices, sample.size + jnp", "UserSample(indices, jnp", _BLOCKS),
)  # fmt: skip
