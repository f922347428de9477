"""Faults in turns of clipped means, in the draws of turns, and in parts of parts as turns."""

from tests.mutation import Fault, rows

_MEANS = "solvers/_clipped_turns.py"
_DRAWS = "oracles/_sampling_in_turn.py"
_TURNS = "tests/solvers/test_clipped_turns.py::test_turns_are_the_phases_one_by_one"
_USERS = (
    "tests/solvers/test_clipped_turns.py::test_users_of_a_turn_are_those_of_a_draw_of_its_own_sizes"
)
_INSIDE = "tests/solvers/test_clipped_turns.py::test_parts_inside_of_parts_are_turns_too"
_REFUSED = "tests/solvers/test_clipped_turns.py::test_parts_of_another_plan_are_refused_by_name"
_PHASES = rows("accelerated_phased_erm")
_SCO = rows("sco, localization")

_CALLS = "solvers/resque/_calls_in_turn.py"
_BLOCKS = "solvers/resque/_ball_accelerated_turns.py"
_BALLS = "tests/solvers/test_ball_accelerated_sco.py::test_turns_are_the_blocks_one_by_one"
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
_TESTED = "tests/solvers/test_together.py::test_turns_are_the_phases_one_by_one"

FAULTS = (
    Fault("blocks as turns: users of the first block for all", _CALLS,
          "drawn = users.first + _draw_users", "drawn = 0 * users.first + _draw_users",
          (_BALLS, _ENTERED)),
    Fault("blocks as turns: phases of the largest call", _CALLS,
          "lax.fori_loop(0, sizes.num_phases, phase", "lax.fori_loop(0, len(sizes.phase_count), phase",
          (_BALLS,)),
    Fault("blocks as turns: a quarter of the noise", _CALLS,
          "noises = _calls.HEAD_ROOM *", "noises = 0.25 *", (_BALLS, *_BALL_ROWS)),
    Fault("blocks as turns: levels have the same users", _CALLS,
          "(jax.random.split(key, count))[:, 0]", "(jax.random.split(key, 1).repeat(count))[:, 0]",
          (_BALLS,)),
    Fault("blocks as turns: noise of the first block for all", _BLOCKS,
          'beta=all_of("beta")', 'beta=_together.column([plans[0].beta for _ in plans])',
          (_BALLS, *_BALL_ROWS)),
    Fault("blocks as turns: shifts of the first block for all", _BLOCKS,
          "        smoothing_radius=turn.smoothing_radius,\n", "", (_BALLS,)),
    Fault("blocks as turns: the loss of the first for all", _BLOCKS,
          "*map(_loss, blocks)", "*[_loss(blocks[0]) for _ in blocks]",
          ("tests/solvers/test_ball_accelerated_sco.py::test_a_turn_is_charged_what_its_own_block_proves",)),
    Fault("clipped turns: a row beyond the users of a turn is counted", _MEANS,
          "dtype=jnp.int32) < self.releases.batch_size", "dtype=jnp.int32) <= self.releases.batch_size",
          (f"{_TURNS}[shifted rows]",)),
    Fault("clipped turns: as many take part as in the largest turn", _MEANS,
          "UserSample(self.first + places.astype(jnp.int32), self.releases.batch_size)",
          "UserSample(self.first + places.astype(jnp.int32), self.capacity)", (f"{_TURNS}[everybody]",)),
    Fault("clipped turns: users of all turns are those of the first", _MEANS,
          "UserSample(self.first + drawn.indices, drawn.size)", "UserSample(drawn.indices, drawn.size)",
          (f"{_TURNS}[batches]",)),
    Fault("clipped turns: everybody is who is in the first turn", _MEANS,
          "UserSample(self.first + places", "UserSample(0 * self.first + places", (*_PHASES, _TURNS)),
    Fault("clipped turns: a sum is divided by the largest batch", _MEANS,
          "combine(self.clip_norm, batch, ", "combine(self.clip_norm, self.capacity, ",
          (*_PHASES, f"{_TURNS}[everybody]")),
    Fault("clipped turns: the clip norm of the first turn for all", _MEANS,
          "[mean.clip_norm for mean in of_parts]", "[of_parts[0].clip_norm for mean in of_parts]",
          (f"{_TURNS}[everybody]",)),
    Fault("clipped turns: the shifts of the first turn for all", _MEANS,
          "radii = [mean.smoothing_radius for mean in of_parts]",
          "radii = [first.smoothing_radius for mean in of_parts]", (f"{_TURNS}[shifted rows]",)),
    Fault("clipped turns: the noise of the first turn for all", "privacy/_gaussian_turns.py",
          "noise_multiplier=column(*(phase.noise_multiplier for phase in phases))",
          "noise_multiplier=column(*(phases[0].noise_multiplier for phase in phases))",
          (*_PHASES, "tests/solvers/test_clipped_turns.py")),
    Fault("clipped turns: the loss of the first turn for all", "privacy/_gaussian_turns.py",
          "[phase.scheme.gaussian_loss(phase.noise_multiplier, relation) for",
          "[phases[0].scheme.gaussian_loss(phases[0].noise_multiplier, relation) for",
          (*_PHASES, "tests/solvers/test_clipped_turns.py")),
    Fault("draws of turns: from the population of the largest", _DRAWS,
          "(draws.longest,), 0, draws.num_users", "(draws.longest,), 0, draws.most_users", (_USERS,)),
    Fault("draws of turns: those left out are of the largest population", _DRAWS,
          "(places < draws.num_users).at", "(places < draws.most_users).at", (_USERS,)),
    Fault("draws of turns: more than half in the order of the users", _DRAWS,
          "return _in_random_order(order_key, pack(kept, most), batch)", "return pack(kept, most)",
          (_USERS,)),
    Fault("turns inside of turns: users of the first outer turn", "solvers/combinators/_composite_turns.py",
          "firsts=first + turn.inside.firsts", "firsts=turn.inside.firsts", (*_SCO, _INSIDE)),
    Fault("turns inside of turns: numbers of another part", "solvers/combinators/_composite_turns.py",
          "lambda x: x.reshape(len(parts), count, *x.shape[1:])",
          "lambda x: x.reshape(count, len(parts), *x.shape[1:]).swapaxes(0, 1)",
          (_INSIDE,)),
    Fault("turns inside of turns: for other users than planned", "solvers/combinators/_composite_turns.py",
          "inner.check(part.plan, objective, data, params)\n        return", "return", (_REFUSED,)),
    Fault("turns: folded keys of parts are folded back", "solvers/_together.py",
          'if jax.random.key_impl(key) != "unsafe_rbg" else', "if True else", (_KEYS,)),
    Fault("turns: the same key for all", "solvers/_together.py",
          "turns.solver(key_of(key, i), part", "turns.solver(key_of(key, 0 * i), part", (_KEYS,)),
    Fault("turns: a run goes on after a part that came after a halt", "solvers/_together.py",
          "over = stopped | (status != int(Status.OK))", "over = status != int(Status.OK)",
          ("tests/solvers/test_together.py::test_nothing_moves_after_a_part_that_came_after_a_halt",)),
    Fault("clipped turns: kind without shift", _MEANS,
          "return (*shared, mean.chunk_size, mean.shift, shifted)",
          "return (*shared, mean.chunk_size, shifted)", (_KINDS,)),
    Fault("clipped turns: means of other kinds are stacked", _MEANS,
          "len(kinds) == 1 and None not in kinds", "len(kinds) >= 1", (_KINDS,)),
    Fault("turns of phases: data prepared for the first phase", "solvers/user_level/_accelerated_turns.py",
          "data = rows[turn.form]", "data = next(iter(rows.values()))", (_FORMS,)),
    Fault("blocks as turns: the noise of the plan's loss, of a steeper loss", _BLOCKS,
          "jnp.maximum(turn.outer.lipschitz, objective.lipschitz)", "turn.outer.lipschitz",
          (_BALLS,)),
    Fault("blocks as turns: phases read the queries of the first", _CALLS,
          "phase_first=np.cumsum(counts, axis=1, dtype=np.int32) - counts", "phase_first=0 * counts",
          (_BALLS,)),
    Fault("blocks as turns: the noise of the first level for all", _CALLS,
          "* lengths / betas[sizes.phase_level]", "* lengths / betas[0]", (_BALLS, *_BALL_ROWS)),
    Fault("blocks as turns: levels share a user", _CALLS,
          "jnp.minimum(places - sizes.starts[level], width - 1)",
          "jnp.minimum(places - sizes.starts[level], 0)", (_BALLS,)),
    Fault("phased turns: groups of the first phase for all", "solvers/user_level/_phased_turns.py",
          "users = first + jnp.arange", "users = 0 * first + jnp.arange", rows("phased_sgd, clipped")),
    Fault("phased turns: the clip of the first phase for all", "solvers/user_level/_phased_turns.py",
          'clip_norm=all_of("clip_norm")', "clip_norm=_together.column([first.clip_norm for _ in phases])",
          (_PHASED, *rows("phased_sgd, clipped"))),
    Fault("phased turns: the radius of the first phase for all", "solvers/user_level/_phased_turns.py",
          'radius=all_of("radius")', "radius=_together.column([first.radius for _ in phases])",
          (_PHASED, *rows("phased_sgd, tested"))),
    Fault("tested turns: the users of the next phase count", "privacy/concentrated/_in_turn.py",
          "num_users=np.asarray(sizes, np.int32)",
          "num_users=np.asarray([max(sizes) for _ in sizes], np.int32)", (_TESTED,)),
    Fault("tested turns: the noise of the first phase for all", "privacy/concentrated/_in_turn.py",
          "noise_stddev=column(*(phase.noise_stddev for phase in phases))",
          "noise_stddev=column(*(phases[0].noise_stddev for phase in phases))", (_TESTED,)),
    Fault("tested turns: the loss of the first phase for all", "privacy/concentrated/_in_turn.py",
          "*(phase.loss() for phase in phases)", "*(phases[0].loss() for phase in phases)", (_TESTED,)),
    Fault("tested turns: the radius of the first phase for all", "solvers/user_level/_accelerated_turns.py",
          "[2 * part.radius for part in parts]", "[2 * parts[0].radius for part in parts]", (_TESTED,)),
)  # fmt: skip
