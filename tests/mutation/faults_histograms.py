"""Faults of counts and histograms for elements, written before any ran."""

from tests.mutation import Fault

_HISTOGRAM = ("tests/mechanisms/test_clustered_histogram.py",)
_TWO = ("tests/mechanisms/test_two_stage_histogram.py",)
_HEAVY = ("tests/mechanisms/test_heavy_hitters.py",)
_BLOCKS = ("tests/geometry/test_block_norms.py",)
_PRINTED = ("tests/corrections/test_element_histograms.py",)
_RELEASES = "mechanisms/histogram_releases.py"
_SPARSE = "mechanisms/_sparse_counts.py"
_CLUSTERED = "mechanisms/clustered_histogram.py"
_STAGES = "mechanisms/two_stage_histogram.py"
_HITTERS = "mechanisms/heavy_hitters.py"
_NORMS = "geometry/block_norms.py"

FAULTS = (
    Fault("elements: √2 is dropped", _RELEASES, "xp.where(size == 1, 1.0, 2.0**0.5)", "xp.where(size == 1, 1.0, 1.0)", _HISTOGRAM),
    Fault("elements: √2 for signed counts", _RELEASES, "xp.full(self.num_items, 2.0)", "xp.full(self.num_items, 2.0**0.5)", _HISTOGRAM),
    Fault("elements: negative counts stay", _SPARSE, "good &= signed | (count >= 0)", "pass", _HISTOGRAM),
    Fault("elements: noise for the mean radius", _RELEASES, "return radius[self.cluster_of_item]", "return 0 * radius[self.cluster_of_item] + xp.mean(radius)", _HISTOGRAM),
    Fault("elements: duplicates are projected one by one", _SPARSE, "pair = jnp.cumsum(new_pair) - 1", "pair = jnp.arange(len(new_pair))", _HISTOGRAM),
    Fault("elements: a repeated pair counts twice", _HITTERS, "first = _sparse_counts.changes(user) | _sparse_counts.changes(item)", "first = user == user", _HEAVY),
    Fault("elements: no head-room for rounding", _NORMS, "return 1.0 - (additions / 2 + _OTHER_ROUNDINGS) * unit_roundoff", "return 1.0", _BLOCKS),
    Fault("elements: one ball for a user", _SPARSE, "new_unit = changes(user) | changes(cluster)", "new_unit = changes(user)", _HISTOGRAM),
    Fault("elements: the divisor is another", _CLUSTERED, "return (total.coarse + noisy) * (_scale(releases) / releases.num_users)", "return (total.coarse + noisy) * _scale(releases) / jnp.unique(jnp.asarray(users), size=8).size", _HISTOGRAM),
    Fault("elements: NaN spreads", _SPARSE, "& jnp.isfinite(count)", "", _HISTOGRAM),
    Fault("elements: users out of range count", "_given.py", "return jnp.where((wide >= 0) & (wide < size), wide, size)", "return jnp.clip(wide, 0, size - 1)", _HISTOGRAM + _HEAVY + _TWO),
    Fault("elements: host ids are wrapped", "_given.py", "if isinstance(values, np.ndarray | np.generic):", "if False:", _HEAVY),
    Fault("elements: the first stage is free in the ledger", _STAGES, "both = privacy.compose(privacy.gaussian(first), self.fine(self.radii).loss())", "both = self.fine(self.radii).loss()", _TWO),
    Fault("elements: the first stage is free in the certificate", _STAGES, "self.accounted, self.delta, self.coarse_multiplier, self.noise_multiplier", "self.accounted, self.delta, self.noise_multiplier", _TWO),
    Fault("elements: radii beyond what is covered", _STAGES, "drawable(first) & self.fine(self.radii).accounted", "drawable(first)", _TWO),
    Fault("elements: a unit is counted in every place below its norm", _STAGES, "jax.ops.segment_sum(jnp.ones_like(place), place, len(radii) + 1)[1:]", "jnp.sum(place[:, None] > jnp.arange(len(radii)), axis=0)", _TWO),
    Fault("elements: one for two numbers that move", _STAGES, "_SENSITIVITY = 2.0**0.5", "_SENSITIVITY = 1.0", _TWO),
    Fault("elements: noise is rounded down to float32", _STAGES, "noise_multiplier=float32_above(joint / (1 - share) ** 0.5)", "noise_multiplier=joint / (1 - share) ** 0.5", _TWO),
    Fault("elements: sums of floats", _CLUSTERED, "return _exact_sums(values, projected.items, releases.num_items, releases.num_users)", "total = jax.ops.segment_sum(values, projected.items, releases.num_items); return Sums(total, 0 * total)", _HISTOGRAM),
    Fault("elements: a sum is rounded before noise", _CLUSTERED, "noisy = additive.gaussian(key, total.rest, releases.noise_multiplier)", "total = Sums(0 * total.coarse, total.coarse + total.rest); noisy = additive.gaussian(key, total.rest, releases.noise_multiplier)", _HISTOGRAM),
    Fault("elements: a number of units is rounded before noise", _STAGES, "low = counted & _LOW_BITS", "low = counted", _TWO),
    Fault("elements: counts of a pair add up in any order", _SPARSE, "arrays, num_keys=4, is_stable=False", "arrays, num_keys=3, is_stable=False", _HISTOGRAM),
    Fault("elements: a low part is lost", "mechanisms/clustered_histogram.py", "highs + (lows >> bits), lows &", "highs, lows &", _HISTOGRAM),
    Fault("elements: edited clusters are merged", _CLUSTERED, "require_clusters(releases.cluster_of_item)", "pass", _HISTOGRAM),
    Fault("elements: a plan shares the caller's clusters", _RELEASES, "clusters = np.array(cluster_of_item)", "clusters = np.asarray(cluster_of_item)", _HISTOGRAM),
    Fault("elements: one key for both stages", _STAGES, "fine_key, users, items, counts, fine", "coarse_key, users, items, counts, fine", _TWO),
    Fault("elements: the radius is found without noise", _STAGES, "radius = radii[jnp.argmin(_guessed_errors(units, radii, releases))]", "exact = _units_between(coarse_key, found, radii, 0.0); radius = radii[jnp.argmin(_guessed_errors(exact, radii, releases))]", _TWO),
    Fault("elements: certificate of twice the noise", _RELEASES, "certificate_of_gaussians(self.accounted, self.delta, self.noise_multiplier)", "certificate_of_gaussians(self.accounted, self.delta, 2 * self.noise_multiplier)", _HISTOGRAM),
    Fault("elements: numbers out of range are charged", _RELEASES, "privacy.unbounded_unless(good, privacy.gaussian(multiplier))", "privacy.gaussian(multiplier)", _HISTOGRAM),
    Fault("elements: half of the sensitivity of counts", _HITTERS, "_SENSITIVITY = 1.0", "_SENSITIVITY = 0.5", _HEAVY),
    Fault("elements: √m for whole users", _HITTERS, 'most = 2 * require_count("items_per_user", items_per_user)', 'most = require_count("items_per_user", items_per_user)', _PRINTED),
    Fault("elements: right orders are the loss", _HITTERS, "total += int(np.sum(((its + 1) << bit) - upto))", "total += int(np.sum(upto - (its << bit)))", _PRINTED),
    Fault("elements: a bad entry stays in its block", _NORMS, "jnp.where(jnp.isfinite(norm), jnp.where(outside, shrink, 1.0), 0.0)", "jnp.where(outside, shrink, 1.0)", _BLOCKS),
)  # fmt: skip
