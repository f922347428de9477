"""Faults in private online learning: what lazy draws cost, what they look at, and what is charged."""

from tests.mutation import Fault

_ONLINE = "privacy/online.py"
_CURVE = ("tests/privacy/test_online.py",)
_RUN = "solvers/online/_lazy.py"
_BLOCKS = "solvers/online/_blocks.py"
_EXPERTS = ("tests/solvers/test_online_experts.py",)

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
)  # fmt: skip
