"""Faults in sampling of users' items one by one: curve, event, release, solver, comparison."""

from tests.mutation import Fault, rows

_CURVE = "privacy/curves/binomial.py"
_KINDS = "privacy/_kinds.py"
_READ = "privacy/dp_accounting/_translation.py"
_MEAN = "solvers/user_level/item_sampled_sgd.py"
_CHOICE = "solvers/user_level/sampling_choice.py"
_PRIVACY = ("tests/privacy/test_item_sampling.py",)
_SOLVER = ("tests/solvers/test_item_sampled_sgd.py",)
_ROW = rows("item_sampled_sgd, poisson")

FAULTS = (
    Fault("items: counts are as likely in one way as in all", _CURVE, "ways = (ways - special.gammaln(k - self.count + 1)).astype(dtype)", "ways = (0.0 * ways).astype(dtype)", _PRIVACY),
    Fault("items: several move the sum no further than one", _CURVE, "k * log_rest, drawn / sigma[..., None]", "k * log_rest, np.minimum(drawn, 1) / sigma[..., None]", _PRIVACY),
    Fault("items: what lies beyond the last node is nothing", _CURVE, "return xp.logaddexp(near, self.log_beyond(s[..., -1]))", "return near", _PRIVACY),
    Fault("items: the rise of the density ratio is rounded to zero", _CURVE, "xp.where(total < 0, -lost, lost)", "xp.where(total < 0, lost, -lost)", _PRIVACY),
    Fault("items: the ratio of densities may be zero where no item is drawn", _CURVE, "floor = eps - 1.0, self.log_none * (1.0 + 4.0 * eps)", "floor = -1.0, -np.inf", _PRIVACY),
    Fault("items: noise is searched as if one item were all", "privacy/certified_noise.py", 'math.log(unsampled * getattr(sampling, "items_per_user", 1))', "math.log(unsampled)", _PRIVACY),
    Fault("items: the tangent is that of another order", _CURVE, "far = (tall - order * line) + above_one * flat", "far = (tall - order * line) + 0.5 * above_one * flat", _PRIVACY),
    Fault("items: Minkowski's bound forgets the power", _CURVE, "return order[:, 0] * (total + slack)", "return total + slack", _PRIVACY),
    Fault("items: few deviations left of the middle are a tail", _CURVE, "xp.maximum(end[..., None, None], 0.0) ** 2 / order", "end[..., None, None] ** 2 / order", _PRIVACY),
    Fault("items: factorials of many items are known exactly", _CURVE, "(4.0 + 2.0 * sizes) * self.eps + of_ways", "(4.0 + 2.0 * sizes) * self.eps", _PRIVACY),
    Fault("items: orders next to one are rounded before one is taken off", _CURVE, "parts = parts + 0.5 * above_one * distance**2", "parts = parts + 0.5 * (order - 1.0) * distance**2", _PRIVACY),
    Fault("items: any noise will do for squares", _CURVE, "_LEAST_NOISE = 1e4", "_LEAST_NOISE = 0.0", _PRIVACY),
    Fault("items: the curve of a user who is replaced", _CURVE, 'require_relation("relation", relation, RELATIONS)', 'require_relation("relation", relation)', _PRIVACY),
    Fault("items: the pair is taken for its own reverse", _KINDS, "symmetric: ClassVar[bool] = False\n    bounds_under: ClassVar = binomial", "symmetric: ClassVar[bool] = True\n    bounds_under: ClassVar = binomial", _PRIVACY),
    Fault("items: all of them drawn count as one", _KINDS, "return gaussian(noise_multiplier / items_per_user)", "return gaussian(noise_multiplier)", _PRIVACY),
    Fault("items: a certificate of a user who is replaced", _KINDS, "    relations: ClassVar = binomial.RELATIONS", "    relations: ClassVar = tuple(NeighboringRelation)", _PRIVACY),
    Fault("items: a rate below that of the event", _READ, "above).max()) * (1 + 1e-12)", "above).min()) * (1 - 1e-8)", _PRIVACY),
    Fault("items: chances that are not binomial are read as if they were", _READ, "near = whole and np.allclose(above, passed, rtol=1e-6, atol=1e-12)", "near = whole", _PRIVACY),
    Fault("items: charged as users of one item", _MEAN, "PoissonItems(batch / slots, items)", "PoissonItems(batch / slots, 1)", (*_SOLVER, *_ROW)),
    Fault("items: drawn twice as often as is charged", _MEAN, "sampling.poisson(draw_key, total, rate)", "sampling.poisson(draw_key, total, min(1.0, 2 * rate))", (*_SOLVER, *_ROW)),
    Fault("items: users are drawn whole", _MEAN, "items = jax.tree.map(lambda leaf: leaf.reshape(total, 1, *leaf.shape[2:]), data)", "items, total = data, self.releases.num_users", (*_SOLVER, *_ROW)),
    Fault("items: any number of slots will do", _MEAN, "good = found == [items_per_user]", "good = found[0] >= 1", _SOLVER),
    Fault("items: noise for half of the sensitivity", _MEAN, "self.clip_norm, self.releases.batch_size, relation", "0.5 * self.clip_norm, self.releases.batch_size, relation", (*_ROW, *_SOLVER)),
    Fault("items: half of the noise", _MEAN, "transforms.privatize(aggregate, key, self.releases.noise_multiplier, scheme)", "transforms.privatize(aggregate, key, self.releases.noise_multiplier / 2, scheme)", (*_ROW, *_SOLVER)),
    Fault("items: clipped to twice the clip norm", _MEAN, "            self.clip_norm,\n            lambda", "            2 * self.clip_norm,\n            lambda", (*_SOLVER, *_ROW)),
    Fault("choice: users' noise is over items", _CHOICE, "divisor = batch_size / k if whole else batch_size", "divisor = batch_size", _SOLVER),
    Fault("choice: items are charged as users", _CHOICE, "scheme = Poisson(rate) if whole else PoissonItems(rate, k)", "scheme = Poisson(rate)", _SOLVER),
    Fault("choice: users' means are as long as items", _CHOICE, "(length**2 if whole else 1.0) / divisor", "1.0 / divisor", _SOLVER),
)  # fmt: skip
