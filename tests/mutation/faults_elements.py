"""Faults in what is proven of elements: written down before any run.

Sampled units and sampled users: orientations, sensitivities and caps of their accounts.
"""

from tests.mutation import Fault, rows

_MIXTURES = ("tests/privacy/test_mixtures.py", "tests/privacy/test_mixture_pairs.py")
_CORRECTED = ("tests/corrections/test_element_accounting.py",)
_SUM = "privacy/curves/_mixture_sum.py"
_NODES = "privacy/curves/_mixture_sum.py"
_QUADRATURE = ("tests/privacy/test_quadrature.py",)
_PAIRS = "privacy/pld/mixture_pairs.py"
_PRIVATIZE = ("tests/transforms/test_privatize.py",)

FAULTS = (
    Fault("mixtures: steps as if posteriors did not turn", _NODES, "share = xp.where(turns, turn / distance, 0.0)", "share = xp.where(turns, 0.0 * turn, 0.0)", _QUADRATURE),
    Fault("mixtures: whatever lies beyond the last node is nothing", _SUM, "return falls & (beyond + settings.decay <= excess)", "return falls", _QUADRATURE),
    Fault("mixtures: one orientation is composed", _PAIRS, "return self_mirrored(half, float(at_zero))", "from dpsco_jax.privacy.pld import pairs\n    return pairs.poisson_gaussian(s, q)", _MIXTURES),
    Fault("mixtures: places over ρ instead of 2ρ", "privacy/curves/mixtures.py", "_log_moments(xp, sigma, q, 0.5 * kappa)", "_log_moments(xp, 2 * sigma, q, 0.5 * kappa)", _MIXTURES),
    Fault("mixtures: the cap is ignored by the curve", "privacy/curves/mixtures.py", "_log_moments(xp, sigma, q, 0.5 * kappa)", "_log_moments(xp, sigma, q, 0.5 + 0 * kappa)", _MIXTURES),
    Fault("mixtures: the cap is ignored by the pair", _PAIRS, "0.5 * (float(cap) - 1.0)", "0.0 * float(min(cap, 2.0))", _MIXTURES),
    Fault("mixtures: q is dropped on one side", _PAIRS, "unsampled + q * masses(-0.5 / s), unsampled", "masses(-0.5 / s), unsampled", _MIXTURES),
    Fault("mixtures: nothing lies at zero", _PAIRS, "self_mirrored(half, float(at_zero))", "self_mirrored(half, 0.0)", _MIXTURES),
    Fault("mixtures: the posterior does not depend on the place", _SUM, "0.5 * (1.0 - pair.c) * pair.mu *", "0.0 * (1.0 - pair.c) * pair.mu *", _MIXTURES),
    Fault("composition: the printed δ", "privacy/curves/composition.py", "failures = math.fsum(failure for _, failure in pairs)", "failures = math.fsum(failure / (1 + math.exp(one)) for one, failure in pairs)", _CORRECTED),
    Fault("Poisson: replaced records cost what added ones do", "privacy/sampling.py", "return mixtures.poisson_replaced_gaussian(noise_multiplier, self.probability)", "return poisson.poisson_subsampled_gaussian(noise_multiplier, self.probability)", _MIXTURES),
    Fault("ledger: samples under replacement may be shared", "transforms/privatize.py", "isinstance(drawn, Poisson) and added", "isinstance(drawn, Poisson)", ("tests/transforms/test_privatize.py",)),
    Fault("sgd: Poisson under replacement has the noise of presence", "solvers/means.py", "per_norm = self.releases.noise_multiplier * (2 if replaced else 1)", "per_norm = self.releases.noise_multiplier", ("tests/solvers/test_means.py",)),
    Fault("plans: releases of whatever kind", "solvers/first_order.py", 'if kind is not None and hasattr(type(releases), "certificate"):', "if False:", ("tests/solvers/test_edited_kinds.py",)),
    Fault("plans: sampled items with the releases of clipped gradients", "solvers/user_level/item_sampled_sgd.py", "    kind = ItemReleases\n", "", ("tests/solvers/test_edited_kinds.py",)),
    Fault("plans: units with the releases of clipped gradients", "solvers/element_level/_unit_updates.py", "    kind = ElementReleases\n", "", ("tests/solvers/test_edited_kinds.py",)),
    Fault("sgd: Poisson samples under another relation than the release", "privacy/releases.py", "scheme, relation, num_steps = self.steps\n        return GaussianRun", "(scheme, _, num_steps), relation = self.steps, NeighboringRelation.REPLACE_ONE\n        return GaussianRun", (*rows("sgd, poisson"), "tests/solvers/test_means.py")),
    Fault("users' units: taken away under the cap of replaced ones", _SUM, "return 2.0 * cap if relation is NeighboringRelation.REPLACE_SPECIAL else cap", "return cap", _MIXTURES),
    Fault("second opinion: replaced samples over all of the sensitivity", "privacy/dp_accounting/second_opinion.py", "halves = 2.0 if replaced else 1.0", "halves = 1.0", _MIXTURES),
    Fault("second opinion: plain noise keeps its sensitivity beside replaced samples", "privacy/dp_accounting/second_opinion.py", "return dp_accounting.GaussianDpEvent(halves * event.noise_multiplier)", "return event", _MIXTURES),
    Fault("mixtures: what costs little is flushed to nothing", "privacy/curves/mixtures.py", "xp.finfo(sigma.dtype).tiny * xp.maximum(above_one, 1.0)", "xp.finfo(sigma.dtype).tiny", _MIXTURES),
    Fault("elements: Poisson under replacement of vectors longer than half", "transforms/privatize.py", 'require(good, "aggregate.within_half", good, wanted)', "pass", _PRIVATIZE),
    Fault("elements: nonnegative contributions are within half", "transforms/aggregates.py", "half, bound = not nonnegative, clipping.joint_bound(clip_norm)", "half, bound = True, clipping.joint_bound(clip_norm)", _PRIVATIZE),
    Fault("elements: with a quantile contributions are within half", "transforms/centred_clip.py", "within_half=quantile is None", "within_half=True", _PRIVATIZE),
    Fault("elements: a cap that nobody applies", "transforms/privatize.py", "summed or not capped", "True", _PRIVATIZE),
)  # fmt: skip
