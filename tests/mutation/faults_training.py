"""Faults in private training: what is clipped, noised, drawn and charged in a step of ``training.plan``."""

from tests.mutation import Fault

_FILE, _TESTS = "training.py", ("tests/training/test_training.py",)

FAULTS = (
    Fault("training: sums are clipped to twice the bound", _FILE, "users, clip = self.prepare(data), self.clip_norm", "users, clip = self.prepare(data), jax.tree.map(lambda c: 2 * c, self.clip_norm)", _TESTS),
    Fault("training: the noise of every step is the same", _FILE, "chain=jax.tree.map(_as_wide, chain_state, state.chain),", "chain=chain_state._replace(release=chain_state.release._replace(key=state.chain.release.key)),", _TESTS),
    Fault("training: replaced users have the sensitivity of added ones", _FILE, "self.clip_norm, releases.batch_size, releases.relation\n", "self.clip_norm, releases.batch_size, NeighboringRelation.REPLACE_SPECIAL\n", _TESTS),
    Fault("training: half of the noise", _FILE, "transforms.privatize(aggregate, key, releases.noise_multiplier, releases.scheme)", "transforms.privatize(aggregate, key, releases.noise_multiplier / 2, releases.scheme)", _TESTS),
    Fault("training: more steps than planned", _FILE, "jax.lax.cond(state.steps < self.num_steps, advance, stay, state)", "jax.lax.cond(state.steps >= 0, advance, stay, state)", _TESTS),
    Fault("training: certificates do not look at the ledger", _FILE, "        if agree:\n", "        if True:\n", _TESTS),
    Fault("training: a ledger that was lost is believed", _FILE, "return max(found, by_ledger, key=lambda one: one.epsilon)", "return by_ledger", _TESTS),
    Fault("training: relations of plan and state are not compared", _FILE, "if by_ledger.relation is not found.relation:", "if not by_ledger.relation:", _TESTS),
    Fault("training: frozen leaves count", _FILE, "lambda flag, part: part if flag else None, self.trainable, params)", "lambda flag, part: part, self.trainable, params)", _TESTS),
    Fault("training: every step draws the same sample", _FILE, "                key=sample_key,\n", "", _TESTS),
    Fault("training: data of another number of users", _FILE, "_planning.require_accounted(self.releases.population_size, data)", "del self", _TESTS),
    Fault("training: everybody is in a step that is charged for a sample", _FILE, "sampler = _planning.sampler(self.releases.scheme, self.releases.population_size)", "sampler = None", _TESTS),
    Fault("training: noise is found for fewer steps", _FILE, "steps = poisson(num_users, batch_size, num_steps, relation)", "steps = poisson(num_users, batch_size, max(1, num_steps // 2), relation)", _TESTS),
    Fault("training: a batch of states has the cost of one", _FILE, '_checks.require(shape == (), "state"', '_checks.require(True, "state"', _TESTS),
)  # fmt: skip
