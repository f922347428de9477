"""Faults in private online learning: what lazy draws cost, what they look at, and what is charged."""

from tests.mutation import Fault

_ONLINE = "privacy/online.py"
_CURVE = ("tests/privacy/test_online.py",)
_RUN = "solvers/online/_lazy.py"
_BLOCKS = "solvers/online/_blocks.py"
_EXPERTS = ("tests/solvers/test_online_experts.py",)

_CONVEX = "tests/solvers/test_online_convex.py::"
_LEADER = "tests/solvers/test_online_leader.py::"
_LAW = "solvers/online/_ball_law.py"
_BALL = "solvers/online/convex.py"
_NOISED = "solvers/online/noised_leader.py"

FAULTS = (
    Fault("online: coins cost nothing", _ONLINE, "total = coin + alpha * rho", "total = alpha * rho", _CURVE),
    Fault("online: coins in one direction alone", _ONLINE, "xp.maximum(xp.maximum(first, second), 0.0)", "xp.maximum(second, 0.0)", _CURVE),
    Fault("online: the first draw after the loss costs nothing", _ONLINE, "coin + alpha * rho + max", "coin + max", _CURVE),
    Fault("online: later draws as often as the least", _ONLINE, "redrawn = p - (1.0 - p) * xp.expm1(-high)", "redrawn = p", _CURVE),
    Fault("online: references cost nothing", _ONLINE, "(num_batches - 1) * fresh(p_y)", "0 * fresh(p_y)", _CURVE),
    Fault("online: a record moves a coin with reference by κ", _ONLINE, "2.0 * clip if lagged else clip", "clip", _CURVE),
    Fault("online: an envelope below B·κ", _ONLINE, " & (given[\"slack\"] >= 0)", "", _CURVE),
    Fault("online: inexact draws cost their distance once", _ONLINE, "(1.0 + math.exp(min(bound, 700.0))) * lost", "lost", _CURVE),
    Fault("online: draws of the reference are exact", _ONLINE, "(2 if self.reference == \"lagged\" else 1)", "1", _CURVE),
    Fault("online: the reference is the play", _RUN, "measure.loss_at(loss, at.reference)", "measure.loss_at(loss, at.play)", _EXPERTS),
    Fault("online: draws look at the batch before the last", _RUN, "_keys.of_part(key, batch + 1), at, more)", "_keys.of_part(key, batch + 1), before, more)", _EXPERTS),
    Fault("online: half of the envelope", _RUN, "whole + plan.batch_size", "whole + plan.batch_size // 2", _EXPERTS),
    Fault("online: rounds after the last are seen", _RUN, "over = state.round >= plan.num_rounds", "over = state.round < 0", _EXPERTS),
    Fault("online: what a coin sees is not clipped", _RUN, "jnp.clip(plan.learning_rate / plan.clip * difference, low, 1.0)", "plan.learning_rate / plan.clip * difference", _EXPERTS),
    Fault("online: play and reference have one key", _RUN, "lazy_draw(reference_key, reference,", "lazy_draw(jax.random.clone(play_key), reference,", _EXPERTS),
    Fault("online: all batches have one key", _RUN, "_keys.of_part(key, batch + 1)", "_keys.of_part(key, 0 * batch)", _EXPERTS),
    Fault("online: nothing is charged", _RUN, "privacy.charge(privacy.open_ledger(plan.relation), numbers.loss())", "privacy.open_ledger(plan.relation)", _EXPERTS),
    Fault("online: rates are rounded up", _RUN, "if float(narrow) > number", "if float(narrow) < 0", _EXPERTS),
    Fault("online: exponents are never begun anew", _RUN, "at.statistic, _nothing()", "at.statistic, at.exponent", _EXPERTS),
    Fault("online: roundings of a coin's exponent are free", "privacy/online.py", "_EXPONENT_ROUNDING = 2.0**-22", "_EXPONENT_ROUNDING = 0.0", _EXPERTS),
    Fault("online: other numbers are accounted for than run", _RUN, "run = jax.tree.map(_narrow, self)", "run = self", _EXPERTS),
    Fault("online: losses of experts are not clipped", "solvers/online/experts.py", "jnp.clip(loss, 0.0, 1.0)", "loss", _EXPERTS),
    Fault("online: half of what a draw of experts costs", "solvers/online/experts.py", "return 0.5 * self.learning_rate", "return 0.25 * self.learning_rate", _EXPERTS),
    Fault("online: weights of twice the rate", "solvers/online/experts.py", "2.0 * plan.learning_rate, 1.0", "4.0 * plan.learning_rate, 1.0", _EXPERTS),
    Fault("online: draws of a block see all of its batches", _BLOCKS, "sums.total(places <= end)", "sums.total(places < count)", _EXPERTS),
    Fault("online: batches of all blocks have the keys of the first", _BLOCKS, "_keys.of_part(key, first + i + 1)", "_keys.of_part(key, i + 1)", _EXPERTS),
    Fault("online: coins of a block are tossed for its first play", _BLOCKS, "suffered = sums.at(play)", "suffered = sums.at(at.play)", _EXPERTS),
    Fault("online: coin and draw have one key", "mechanisms/lazy_draws.py", "jax.random.key_data(draw_key)", "jax.random.key_data(jax.random.clone(coin_key))", ("tests/mechanisms/test_lazy_draws.py",)),
    Fault("convex: half of what a draw costs", _BALL, "rho = (beta * slope) * (slope /", "rho = (0.5 * beta * slope) * (slope /", (_CONVEX + "test_the_account_is_that_of_its_numbers",)),
    Fault("convex: the square of a bound is formed, and may be zero", _BALL, "rho = (beta * slope) * (slope / xp.where(good, pull, 1.0))", "rho = beta * (slope * slope) / xp.where(good, pull, 1.0)", (_CONVEX + "test_a_ledger_is_charged_in_any_units",)),
    Fault("convex: the width of the law along cancels", _LAW, "width = 2.0 * root * c", "width = far - near", (_CONVEX + "test_the_density_across_is_that_of_quadrature",)),
    Fault("leader: noise that floats do not hold", _NOISED, "as_floats(self.lipschitz)[1][0] >= _LEAST", "as_floats(self.lipschitz)[1][0] >= 0", (_LEADER + "test_the_whole_run_is_one_gaussian_release",)),
    Fault("convex: roundings of a sum are free", _BALL, "rounded = 1.0 + _rounding(self.dim) * self.num_rounds", "rounded = 1.0", (_CONVEX + "test_the_account_is_that_of_its_numbers",)),
    Fault("convex: gradients are not clipped", _BALL, "clip_to_norm(loss.astype(jnp.float32) / plan.lipschitz, 1.0)", "jnp.clip(loss.astype(jnp.float32) / plan.lipschitz, -1.0, 1.0)", (_CONVEX + "test_sums_are_of_clipped_gradients_to_the_last_digit",)),
    Fault("convex: draws never fail", _BALL, "_ball_law.VARIATION, 1.0)[()]", "0.0, 1.0)[()]", (_CONVEX + "test_what_no_attempt_brings_is_charged",)),
    Fault("convex: laws as sharp as one likes", _BALL, "xp.where(proven & (self.radius > 0)", "xp.where(self.radius > 0", (_CONVEX + "test_what_no_attempt_brings_is_charged",)),
    Fault("convex: the clip of a coin cuts off half", _BALL, "clip=(2.0 * (1.0 + 1e-6)", "clip=(1.0 * (1.0 + 1e-6)", (_CONVEX + "test_the_account_is_that_of_its_numbers",)),
    Fault("convex: losses are not above 0", _BALL, "jnp.dot(gradient, x) + global_norm(gradient) * plan.radius", "jnp.dot(gradient, x)", (_CONVEX + "test_sums_are_of_clipped_gradients_to_the_last_digit",)),
    Fault("convex: towards the loss", _BALL, "_ball_law.draw(key, -total,", "_ball_law.draw(key, total,", (_CONVEX + "test_each_play_on_a_line_has_its_law[1.0]",)),
    Fault("convex: the density across lacks a dimension", _LAW, "inside) - (dim - 1) * z", "inside) - (dim - 2) * z", (_CONVEX + "test_the_density_across_is_that_of_quadrature",)),
    Fault("convex: every attempt counts", _LAW, "height - log_density(v)", "0.0 * height", (_CONVEX + "test_draws_on_an_interval_have_the_law_of_a_truncated_normal",)),
    Fault("convex: half of the attempts", _LAW, "VARIATION = 2.0 * 0.57**ATTEMPTS", "VARIATION = 2.0 * 0.57**(2 * ATTEMPTS)", (_CONVEX + "test_what_no_attempt_brings_is_charged",)),
    Fault("convex: the moment from above", _LAW, "found = whole - special.logsumexp", "found = 0.9 * whole - special.logsumexp", (_CONVEX + "test_the_moment_is_a_bound_and_hardly_more",)),
    Fault("leader: gradients are not clipped", _NOISED, "gradient = clip_to_norm(loss.astype(float), plan.lipschitz)", "gradient = loss.astype(float)", (_LEADER + "test_one_loss_moves_the_stream_by_what_is_charged",)),
    Fault("leader: a replaced loss moves L", _NOISED, "plan.noise_multiplier, 2.0 * plan.lipschitz", "plan.noise_multiplier, plan.lipschitz", (_LEADER + "test_the_noise_in_each_sum_has_one_law_and_is_no_less_than_the_stream_has[tight]",)),
    Fault("leader: nothing is charged", _NOISED, "privacy.charge(privacy.open_ledger(plan.relation), plan.loss())", "privacy.open_ledger(plan.relation)", (_LEADER + "test_steps_are_what_a_whole_run_is_and_then_nothing_moves",)),
    Fault("leader: rounds have noise of their own size", _NOISED, "missing = jnp.sqrt(", "missing = 0.0 * jnp.sqrt(", (_LEADER + "test_the_noise_in_each_sum_has_one_law_and_is_no_less_than_the_stream_has[tight]",)),
    Fault("leader: noise that is filled up is that of the stream", _NOISED, "noise_key, play_key = jax.random.split(_keys.of_part(key, count))", "noise_key, play_key = [_keys.of_part(key, count)] * 2", (_LEADER + "test_the_noise_in_each_sum_has_one_law_and_is_no_less_than_the_stream_has[tight]",)),
    Fault("leader: all rounds have one key", _NOISED, "_keys.of_part(key, count)", "_keys.of_part(key, 0 * count)", (_LEADER + "test_the_noise_in_each_sum_has_one_law_and_is_no_less_than_the_stream_has[tight]",)),
    Fault("leader: rounds after the last are seen", _NOISED, "over = count >= state.plan.num_rounds", "over = count < 0", (_LEADER + "test_steps_are_what_a_whole_run_is_and_then_nothing_moves",)),
    Fault("leader: an unproven clip is accounted for", _NOISED, "positive_and_finite(self.noise_multiplier, self.lipschitz)", "positive_and_finite(self.noise_multiplier)", (_LEADER + "test_the_whole_run_is_one_gaussian_release",)),
    Fault("online: what a sampler misses is not charged", "solvers/online/lazy_to_private.py", "return self.own_variation", "return None", (_CONVEX + "test_what_no_attempt_brings_is_charged",)),
)  # fmt: skip
