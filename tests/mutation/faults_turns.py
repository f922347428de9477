"""Faults in turns of clipped means, in the draws of turns, and in parts of parts as turns."""

from tests.mutation import Fault, rows

_DRAWS = "oracles/sampling.py"
_TURNS = "tests/solvers/test_clipped_turns.py::test_turns_are_the_phases_one_by_one"
_USERS = (
    "tests/solvers/test_clipped_turns.py::test_users_of_a_turn_are_those_of_a_draw_of_its_own_sizes"
)
_INSIDE = "tests/solvers/test_clipped_turns.py::test_parts_inside_of_parts_are_turns_too"
_REFUSED = "tests/solvers/test_clipped_turns.py::test_parts_of_another_plan_are_refused_by_name"
_PHASES = rows("accelerated_phased_erm")
_SCO = rows("sco, localization")

_BALLS = "tests/solvers/test_ball_accelerated_sco.py::test_turns_are_the_blocks_one_by_one"
# What is wrong in one form is wrong of runs one by one as well: the calls have tests of their own.
_CALLS = ("tests/solvers/test_resque_calls.py", "tests/solvers/test_resque_erm.py")
_ENTERED = (
    "tests/solvers/test_ball_accelerated_sco.py::test_every_user_enters_one_block_and_no_other"
)
_BALL_ROWS = rows("ball_accelerated_sco")
_KEYS = (
    "tests/solvers/test_together.py"
    "::test_steps_of_parts_and_parts_of_parts_have_keys_of_their_own[unsafe_rbg]"
)
_KINDS = "tests/solvers/test_clipped_turns.py::test_means_of_other_kinds_are_not_stacked"
_FORMS = (
    "tests/solvers/test_clipped_turns.py"
    "::test_groups_of_other_means_or_shifts_have_data_of_their_own_form"
)
_PHASED = "tests/solvers/test_phased_sgd.py"
_TESTS_IN_TURN = ("tests/solvers/test_together.py::test_turns_are_the_phases_one_by_one",)

_LOCALIZED = "tests/solvers/test_localized_sgd.py"
_MULTIPASS = "tests/solvers/test_multipass_turns.py"
_BATCH_ROWS = f"{_MULTIPASS}::test_rows_of_a_turn_are_those_of_a_batch_of_its_own_users"
_BATCHES = f"{_MULTIPASS}::test_a_turn_of_batches_is_charged_what_its_own_releases_prove"
_TOGETHER = "tests/solvers/test_together.py::test_turns_are_the_phases_one_by_one"

_ROWS_OF_TURNS = "tests/mechanisms/test_winsorized_turns.py"
_FIRST_ROWS = f"{_ROWS_OF_TURNS}::test_the_mean_of_a_turn_is_that_of_its_users_alone"
_INTERVALS = f"{_ROWS_OF_TURNS}::test_an_interval_of_the_first_values_is_that_of_these_alone"
_CHARGED = f"{_ROWS_OF_TURNS}::test_what_a_turn_is_charged_and_how_far_it_moves_are_its_own_phases"
_RUNS = "tests/solvers/test_winsorized_turns.py"
_DESCENT = f"{_RUNS}::test_turns_descend_on_their_own_users_around_their_own_starts"
_BOUNDED = "mechanisms/winsorized/winsorized_mean.py"
_RANGES = "mechanisms/winsorized/private_range.py"

_NOBODYS = ("tests/test_keys.py",)

FAULTS = (
    Fault("keys of parts: of unsafe_rbg as folded", "_keys.py", 'if jax.random.key_impl(key) != "unsafe_rbg":', "if True:", _NOBODYS),
    Fault("keys of parts: callers' numbers are exchanged with those of parts", "_keys.py", "    (own,) = jax.random.split(jax.random.clone(key), 1)\n", "    own = key\n", _NOBODYS),
    Fault("keys of parts: numbers of steps are exchanged with those of parts", "_keys.py", "(found,) = jax.random.split(jax.random.fold_in(own, number), 1)", "found = jax.random.fold_in(own, number)", _NOBODYS),
    Fault("winsorized turns: rows of nobody are summed", _BOUNDED, "if live is None else jnp.arange(len(rows)) < live\n    return center", "if live is None else jnp.arange(len(rows)) >= 0\n    return center", (_DESCENT, _FIRST_ROWS)),
    Fault("winsorized turns: a sum is divided by the largest phase", _BOUNDED, "users = rows.shape[0] if live is None else live", "users = rows.shape[0]", (_DESCENT, *rows("phased_erm"))),
    Fault("winsorized turns: offsets of nobody are summed", _BOUNDED, "offsets = jnp.where(jnp.arange(len(values)) < live, offsets, 0)", "pass", (_FIRST_ROWS,)),
    Fault("winsorized turns: intervals look at values of nobody", _RANGES, "places = jnp.where(jnp.arange(len(places)) < num_users, places, count)", "pass", (_INTERVALS,)),
    Fault("winsorized turns: costs of bins are those of the largest phase", _RANGES, "users = rows if num_users is None else num_users", "users = rows", (_INTERVALS,)),
    Fault("winsorized turns: a gap and a bin have one variable", _RANGES, "both[:rows, 1]", "both[:rows, 0]", (f"{_ROWS_OF_TURNS}::test_variables_of_segments_are_those_of_a_program_of_this_size",)),
    Fault("winsorized turns: the noise of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"noise_scale\" else each)\n", (*rows("phased_erm"), _CHARGED)),
    Fault("winsorized turns: the coarse noise of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"coarse_stddev\" else each)\n", (_CHARGED,)),
    Fault("winsorized turns: the loss of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"cost\" else each)\n", (_CHARGED, *rows("phased_erm"))),
    Fault("winsorized turns: the bound of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"bound\" else each)\n", (_DESCENT,)),
    Fault("winsorized turns: the users of the first phase for all", "solvers/first_order.py", "dataclasses.replace(part.block, first=first)", "dataclasses.replace(part.block, first=0 * first)", (_DESCENT, *rows("phased_erm"))),
    Fault("winsorized turns: as many steps as the longest phase", "solvers/first_order.py", "numbers = part.num_steps, 0,", "numbers = len(part.method.step_sizes), 0,", (_DESCENT,)),
    Fault("winsorized turns: as many queries as the longest phase", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[-1:] * len(each) if field.name == \"num_queries\" else each)\n", (_CHARGED,)),
    Fault("winsorized turns: a phase is not checked", "solvers/means.py", "_checks.require_positive(\"noise_multiplier\", of.noise_multiplier)", "pass", (f"{_RUNS}::test_what_a_phase_alone_refuses_is_refused_of_a_later_turn",)),
    Fault("localized turns: the users of the first block for all", "solvers/first_order.py", "dataclasses.replace(part.block, first=first)", "dataclasses.replace(part.block, first=0 * first)", (_LOCALIZED, *rows("localized_sgd"))),
    Fault("localized turns: a halt returns the average", "solvers/first_order.py", "pull, None, part.on_halt", "pull, None, \"report\"", (_LOCALIZED,)),
    Fault("localized turns: blocks of other halts are of one kind", "solvers/first_order.py", "_Lowered(plan.on_halt, mean", "_Lowered(\"report\", mean", (f"{_MULTIPASS}::test_blocks_of_other_kinds_have_programs_of_their_own",)),
    Fault("localized turns: steps of the first length for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"step_size\" else each)\n", (_LOCALIZED,)),
    Fault("turns: later ones move after a halt", "solvers/_sequence.py", "over = stopped | (status != int(Status.OK))", "over = status != int(Status.OK)", ("tests/solvers/test_together.py::test_whatever_comes_after_a_halt_is_of_no_account",)),
    Fault("tested turns: users of a batch are those of the first turn", "oracles/sampling.py", "indices=self.first + sample.indices", "indices=0 * self.first + sample.indices", (_BATCH_ROWS, _TOGETHER)),
    Fault("tested turns: the radius of the first turn for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"score_radius\" else each)\n", (_BATCHES,)),
    Fault("tested turns: draws of the first turn for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[-1:] * len(each) if field.name == \"batch\" else each)\n", (_BATCH_ROWS,)),
    Fault("tested turns: scores and weights of the whole population", "privacy/concentrated/threshold_phase.py", "            num_users=self.batch_size,\n", "            num_users=self.population_size,\n", (_BATCHES,)),
    Fault("tested turns: the ledger does not know of draws", "transforms/outlier_removed_mean.py", "sampled=sampled)", "sampled=False)", (_BATCHES,)),
    Fault("tested turns: the threshold of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"threshold\" else each)\n", (_LOCALIZED, _BATCHES)),
    Fault("tested turns: tests of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"test_epsilon\" else each)\n", (_LOCALIZED, _BATCHES)),
    Fault("blocks as turns: users of the first block for all", "solvers/resque/_calls.py", "users = jnp.asarray(setting.first) + _draw_users", "users = 0 * jnp.asarray(setting.first) + _draw_users", (_BALLS, _ENTERED)),
    Fault("blocks as turns: phases of the largest call", "solvers/resque/_calls.py", "lax.fori_loop(0, sizes.num_phases, phase", "lax.fori_loop(0, len(sizes.phase_count), phase", (_BALLS,)),
    Fault("blocks as turns: a quarter of the noise", "solvers/resque/_calls.py", "noises = HEAD_ROOM * setting", "noises = 0.25 * setting", (_BALLS, *_BALL_ROWS)),
    Fault("blocks as turns: levels have the same users", "solvers/resque/_calls.py", "_keys.over(sample)(jax.random.split(key, len(drawn)))", "_keys.over(sample)(jax.random.split(key, 1).repeat(len(drawn)))", (*_CALLS, _BALLS)),
    Fault("blocks as turns: noise of the first block for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"beta\" else each)\n", (_BALLS, *_BALL_ROWS)),
    Fault("blocks as turns: shifts of the first block for all", "solvers/resque/ball_accelerated_erm.py", "        smoothing_radius=numbers.smoothing_radius,\n        # Nothing", "        # Nothing", (_BALLS,)),
    Fault("blocks as turns: the loss of the first for all", "solvers/resque/ball_accelerated_sco.py", "return None if shuffled else numbers", "return None if shuffled else dataclasses.replace(numbers, loss=privacy.zero())", ("tests/solvers/test_ball_accelerated_sco.py::test_a_turn_is_charged_what_its_own_block_proves",)),
    Fault("clipped turns: as many take part as in the largest turn", _DRAWS, "UserSample(self.first + places, self.count)", "UserSample(self.first + places, self.capacity)", (f"{_TURNS}[everybody]",)),
    Fault("clipped turns: users of all turns are those of the first", _DRAWS, "indices=self.first + sample.indices", "indices=sample.indices", (f"{_TURNS}[batches]",)),
    Fault("clipped turns: everybody is who is in the first turn", _DRAWS, "UserSample(self.first + places", "UserSample(0 * self.first + places", (*_PHASES, _TURNS)),
    Fault("clipped turns: a sum is divided by the largest batch", "solvers/means.py", "combine(self.clip_norm, run.batch_size, run.relation)", "combine(self.clip_norm, getattr(getattr(data, \"block\", None), \"capacity\", run.batch_size), run.relation)", (*_PHASES, f"{_TURNS}[everybody]")),
    Fault("clipped turns: the clip norm of the first turn for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"clip_norm\" else each)\n", (f"{_TURNS}[everybody]",)),
    Fault("clipped turns: the shifts of the first turn for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"smoothing_radius\" else each)\n", (f"{_TURNS}[shifted rows]",)),
    Fault("clipped turns: the noise of the first turn for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"noise_multiplier\" else each)\n", (*_PHASES, "tests/solvers/test_clipped_turns.py")),
    Fault("clipped turns: the loss of the first turn for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"cost\" else each)\n", (*_PHASES, "tests/solvers/test_clipped_turns.py")),
    Fault("draws of turns: from the population of the largest", _DRAWS, "(batch.longest,), 0, batch.num_users", "(batch.longest,), 0, batch.most_users", (_USERS,)),
    Fault("draws of turns: those left out are of the largest population", _DRAWS, "(places < batch.num_users).at", "(places < batch.most_users).at", (_USERS,)),
    Fault("draws of turns: more than half in the order of the users", _DRAWS, "return _in_random_order(order_key, _streams.pack(kept, most), size, most, size)", "return _streams.pack(kept, most)", ("tests/oracles/test_sampling.py", _USERS)),
    Fault("turns inside of turns: users of the first outer turn", "solvers/combinators/composite.py", "firsts=first + part.inside.firsts", "firsts=part.inside.firsts", (*_SCO, _INSIDE)),
    Fault("turns inside of turns: numbers of another part", "solvers/combinators/composite.py", "places = _sequence.places_of(each, 0, firsts)", "places = _sequence.places_of(each[::-1], 0, firsts)", (_INSIDE,)),
    Fault("turns inside of turns: for other users than planned", "solvers/combinators/composite.py", "first_order.TURNS.check(part.plan, objective, data, params)\n        return", "return", (_REFUSED,)),
    Fault("turns: the same key for all", "solvers/_sequence.py", "solver(_keys.of_part(key, i), part, objective, rows", "solver(_keys.of_part(key, 0 * i), part, objective, rows", (_KEYS,)),
    Fault("turns: a run goes on after a part that came after a halt", "solvers/_sequence.py", "over = stopped | (status != int(Status.OK))", "over = status != int(Status.OK)", ("tests/solvers/test_together.py::test_nothing_moves_after_a_part_that_came_after_a_halt",)),
    Fault("clipped turns: any noise costs what was proven", "privacy/sampling.py", "return unbounded_unless(same, self.cost)", "return self.cost", ('tests/solvers/test_clipped_turns.py::test_a_turn_with_other_noise_than_was_proven_costs_infinity',)),
    Fault("noise of curves: where the best order is the last, no others are looked at", "privacy/_renyi_noise.py", "< near.stop - 1:", "< near.stop:", ("tests/privacy/test_known_starts.py",)),
    Fault("clipped turns: kind without shift", "_stacking.py", "            elif not field.metadata.get(\"static\", False):\n                each = alike(each)\n", "            elif not field.metadata.get(\"static\", False):\n                each = alike(each)\n            elif field.name == \"shift\":\n                each = each[:1] * len(each)\n", (_KINDS,)),
    Fault("clipped turns: means of other kinds are stacked", "_stacking.py", "len(structures) == 1 and len(shapes) == 1", "len(shapes) == 1", (_KINDS,)),
    Fault("turns of phases: data prepared for the first phase", "solvers/first_order.py", "return plan.mean.prepared(objective, data, params), jax", "return means.Clipped(8, \"user\", None, 1.0, None).prepared(objective, data, params), jax", (_FORMS,)),
    Fault("blocks as turns: the noise of the plan's loss, of a steeper loss", "solvers/resque/ball_accelerated_erm.py", "jnp.maximum(numbers.outer.lipschitz, objective.lipschitz)", "numbers.outer.lipschitz", ("tests/solvers/test_ball_accelerated_sco.py::test_noise_fits_the_loss_that_runs",)),
    Fault("blocks as turns: phases read the queries of the first", "solvers/resque/_calls.py", "firsts = jnp.cumsum(counts) - counts", "firsts = 0 * counts", (*_CALLS, _BALLS)),
    Fault("blocks as turns: the noise of the first level for all", "solvers/resque/_calls.py", "* lengths / jnp.asarray(betas)[levels]", "* lengths / jnp.asarray(betas)[0]", (*_CALLS, _BALLS, *_BALL_ROWS)),
    Fault("blocks as turns: levels share a user", "solvers/resque/_calls.py", "jnp.minimum(places - starts[level], samples.shape[1] - 1)", "jnp.minimum(places - starts[level], 0)", (*_CALLS, _BALLS)),
    Fault("phased turns: groups of the first phase for all", "solvers/user_level/phased_sgd.py", "users = first + jnp.arange", "users = 0 * first + jnp.arange", rows("phased_sgd, clipped")),
    Fault("phased turns: the clip of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"clip_norm\" else each)\n", (_PHASED, *rows("phased_sgd, clipped"))),
    Fault("phased turns: the radius of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"radius\" else each)\n", (_PHASED, *rows("phased_sgd, tested"))),
    Fault("tested turns: the users of the next phase count", "_stacking.py", "                each = alike(each)\n", "                each = alike([max(each)] * len(each) if field.name == \"num_users\" else each)\n", _TESTS_IN_TURN),
    Fault("tested turns: an edited run costs what was proven of another", "transforms/outlier_removed_mean.py", "privacy.unbounded_unless(drawn, run.charged)", "privacy.unbounded_unless(drawn, run.cost)", ("tests/transforms/test_lowered_runs.py",)),
    Fault("winsorized turns: an edited run costs what was proven of another", "transforms/winsorized_mean.py", "loss = run.charged", "loss = run.cost", ("tests/transforms/test_lowered_runs.py",)),
    Fault("tested turns: the noise of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"noise_stddev\" else each)\n", _TESTS_IN_TURN),
    Fault("tested turns: the loss of the first phase for all", "_stacking.py", "                each = alike(each)\n", "                each = alike(each[:1] * len(each) if field.name == \"cost\" else each)\n", _TESTS_IN_TURN),
)  # fmt: skip
