"""Faults in private SpiderBoost: its sums, its releases and what they cost."""

from tests.mutation import Fault

_SPIDER = ("tests/solvers/test_spider.py",)
_ADAPTIVE = ("tests/solvers/test_adaptive_spider.py",)
_DRIFT = ("tests/solvers/test_drift_spider.py", "tests/corrections/test_spider.py")

FAULTS = (
    Fault("spider: noise of differences is not in proportion to the step", "transforms/spider.py", "clips[1] * step.distance", "clips[1]", _SPIDER),
    Fault("spider: multipliers the other way round", "transforms/spider.py", "jnp.asarray(pair[0], float), jnp.asarray(pair[1], float)", "jnp.asarray(pair[1], float), jnp.asarray(pair[0], float)", _SPIDER),
    Fault("spider: releases beyond the cap", "transforms/spider.py", "self.last.halted | spent |", "self.last.halted |", _SPIDER),
    Fault("spider: an old estimate stays in a new one", "transforms/spider.py", "kept = jnp.where(step.fresh, 0.0, old)", "kept = old", _SPIDER),
    Fault("spider: releases leave a run that is over", "transforms/spider.py", "jnp.where(step.halted, old, changed)", "changed", _SPIDER),
    Fault("spider: what cannot be paid for is", "transforms/spider.py", "jnp.where(jnp.isfinite(new), paid, new)", "paid", _SPIDER),
    Fault("spider: nothing is charged", "transforms/spider.py", "ledger=privacy.charge(release.ledger, loss)", "ledger=release.ledger", _SPIDER),
    Fault("spider: differences cost nothing", "solvers/nonconvex/_spider_mean.py", "anew / first**2 + kept_up / other**2 for", "anew / first**2 for", _SPIDER),
    Fault("spider: one refresh is paid for", "solvers/nonconvex/_spider_mean.py", "[anew / first**2 +", "[1 / first**2 +", _SPIDER),
    Fault("spider: differences of linear models are gradients", "oracles/spider.py", "(here - jnp.where(at.fresh, 0.0, there)) / at.unit", "here / at.unit", _SPIDER),
    Fault("spider: differences by differentiation are gradients", "oracles/spider.py", "(a - jnp.where(at.fresh, 0.0, b)) / at.unit", "a / at.unit", _SPIDER),
    Fault("spider: sums of linear models are clipped to two", "oracles/spider.py", "model, 1.0, sampler, chunk_size", "model, 2.0, sampler, chunk_size", _SPIDER),
    Fault("spider: sums by differentiation are clipped to two", "oracles/spider.py", "difference, 1.0, sampler, chunk_size", "difference, 2.0, sampler, chunk_size", _SPIDER),
    Fault("spider: a mean of all users whatever their number", "solvers/nonconvex/_spider_mean.py", "_checks.require(read <= there,", "_checks.require(True,", _SPIDER),
    Fault("spider: the condition of the bound is left out", "solvers/nonconvex/spider.py", "noise * u**2 / (1 - u)", "0 * noise * u", _SPIDER),
    Fault("spider: the drift is not reset", "transforms/spider.py", "jnp.where(due, 0.0, drift)", "drift", _DRIFT),
    Fault("spider: the drift is not of squares", "transforms/spider.py", "self.last.drift + distance**2", "self.last.drift + distance", _DRIFT),
    Fault("spider: no cap on refreshes", "transforms/spider.py", "self.refreshes >= most[0]", "self.refreshes < 0", _DRIFT),
    Fault("spider: releases are counted for one end alone", "solvers/nonconvex/_spider_mean.py", "(min(anew, steps - kept_up), kept_up)", "(anew, min(kept_up, steps - anew))", _DRIFT),
    Fault("spider: a batch begins where the last began", "solvers/nonconvex/_spider_mean.py", "(state.made - state.refreshes) * other", "0 * other", _DRIFT),
    Fault("spider: chances of all refreshes are one's", "solvers/nonconvex/_drift_schedule.py", "first = half * goal.failure / (2 * refreshes)", "first = half * goal.failure * 8", _DRIFT),
    Fault("spider: what users of a pass add is left out", "solvers/nonconvex/_drift_schedule.py", "squares = 4 * goal.lipschitz**2 / sizes[0] + 4 * goal.smoothness**2 * kappa / sizes[1]", "squares = 0.0 * kappa", _DRIFT),
    Fault("find_sosp: parts on the same users are taken for disjoint", "solvers/nonconvex/find_sosp.py", 'joined = privacy.compose if self.risk == "empirical" else privacy.parallel', "joined = privacy.parallel", ("tests/solvers/test_find_sosp.py",)),
    Fault("find_sosp: both parts get all of the budget", "solvers/nonconvex/find_sosp.py", "(1.0, 1.0) if apart else (share, 1.0 - share)", "(1.0, 1.0)", ("tests/solvers/test_find_sosp.py",)),
    Fault("find_sosp: the choice sees the users of the run", "solvers/nonconvex/find_sosp.py", "slice_users(data, search.num_users, choice.num_users)", "slice_users(data, 0, choice.num_users)", ("tests/solvers/test_find_sosp.py",)),
    Fault("find_sosp: run and choice have one key", "solvers/nonconvex/find_sosp.py", "select_sosp.solve(choice_key, choice", "select_sosp.solve(jax.random.clone(search_key), choice", ("tests/solvers/test_find_sosp.py",)),
    Fault("find_sosp: the first points for the last", "solvers/nonconvex/find_sosp.py", "path])[::-1]", "path])", ("tests/solvers/test_find_sosp.py",)),
    Fault("find_sosp: the sample is the population, for gradients", "solvers/nonconvex/find_sosp.py", "self.choice.guaranteed_norm + self.sampling_errors[0]", "self.choice.guaranteed_norm", ("tests/solvers/test_find_sosp.py",)),
    Fault("find_sosp: the sample is the population, for curvature", "solvers/nonconvex/find_sosp.py", "self.choice.guaranteed_curvature - self.sampling_errors[1]", "self.choice.guaranteed_curvature", ("tests/solvers/test_find_sosp.py",)),
    Fault("adaptive_spider: sizes rounded down", "solvers/nonconvex/_adaptive_mean.py", "wanted = jnp.ceil(", "wanted = jnp.floor(", _ADAPTIVE),
    Fault("adaptive_spider: users are read again", "solvers/nonconvex/_adaptive_mean.py", "one_pass(users, state.taken,", "one_pass(users, 0 * state.taken,", _ADAPTIVE),
    Fault("adaptive_spider: a batch beyond the last user", "solvers/nonconvex/_adaptive_mean.py", "wanted <= of.population_size - state.taken", "wanted <= of.population_size", _ADAPTIVE),
    Fault("adaptive_spider: one stream over all beginnings", "transforms/adaptive_spider.py", "new_stream=step.fresh", "new_stream=False", _ADAPTIVE),
    Fault("adaptive_spider: an old estimate stays in a new one", "transforms/adaptive_spider.py", "jnp.where(step.fresh, 0.0, old) + ", "old + ", _ADAPTIVE),
    Fault("adaptive_spider: the drift is not reset", "solvers/nonconvex/_adaptive_mean.py", "jnp.where(fresh, 0.0, drift)", "drift", _ADAPTIVE),
    Fault("adaptive_spider: releases leave a run that is over", "transforms/adaptive_spider.py", "jnp.where(step.halted, old, changed)", "changed", _ADAPTIVE),
    Fault("adaptive_spider: shares are clipped to the batch", "solvers/nonconvex/_adaptive_mean.py", "unit = self.share_norm * jnp.maximum(step.size, 1)", "unit = 1.0 * jnp.maximum(step.size, 1)", _ADAPTIVE),
)  # fmt: skip
