"""What has been paid: privacy losses, the curves of mechanisms, conversion, calibration, certificates."""

from dpsco_jax.privacy.attacks import Attack, attack_advantage
from dpsco_jax.privacy.audits.auditing import Audit, audit, audit_scores, epsilon_lower_bound
from dpsco_jax.privacy.audits.one_run import one_run_audit, one_run_epsilon_lower_bound
from dpsco_jax.privacy.budget import Budget
from dpsco_jax.privacy.calibration import (
    calibrate,
    calibrate_noise_multiplier,
    calibrate_num_steps,
    calibrate_sampling_probability,
)
from dpsco_jax.privacy.certificates import Certificate, certificate, state_certificate
from dpsco_jax.privacy.certified_noise import certified_noise_multiplier
from dpsco_jax.privacy.concentrated.threshold_phase import (
    ConcentratedReleases,
    calibrate_concentrated,
)
from dpsco_jax.privacy.curves import (
    approximate_dp,
    bounded_range,
    gaussian,
    gdp,
    laplace,
    pure_dp,
    threshold_answer,
)
from dpsco_jax.privacy.curves.binomial import item_sampled_gaussian
from dpsco_jax.privacy.curves.mixtures import poisson_replaced_gaussian, user_sampled_gaussian
from dpsco_jax.privacy.curves.poisson import poisson_subsampled_gaussian
from dpsco_jax.privacy.curves.subsampling import (
    subsampled_gaussian_with_replacement,
    subsampled_gaussian_without_replacement,
)
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.inexact import inexact_certificate, inexact_loss
from dpsco_jax.privacy.iteration import (
    last_iterate_gdp,
    last_iterate_loss,
    last_iterate_mu,
    last_iterate_noise_multiplier,
)
from dpsco_jax.privacy.ledger import Ledger, charge, doubts, open_ledger, privacy_spent
from dpsco_jax.privacy.loss import (
    PrivacyLoss,
    compose,
    delta,
    epsilon,
    parallel,
    scale,
    unbounded,
    unbounded_unless,
    zero,
)
from dpsco_jax.privacy.online import LazyReleases
from dpsco_jax.privacy.orders import ORDERS
from dpsco_jax.privacy.releases import (
    GaussianReleases,
    Releases,
    parallel_certificate,
    sequential_certificate,
)
from dpsco_jax.privacy.sampling import (
    FullBatch,
    Poisson,
    PoissonItems,
    PoissonUsers,
    WithoutReplacement,
    WithReplacement,
    amplify,
)
from dpsco_jax.privacy.variation import (
    gdp_within,
    variation_delta,
    variation_epsilon,
    with_variation,
)

__all__ = [
    "ORDERS",
    "Attack",
    "Audit",
    "Budget",
    "Certificate",
    "ConcentratedReleases",
    "FullBatch",
    "GaussianReleases",
    "LazyReleases",
    "Ledger",
    "Poisson",
    "PoissonItems",
    "PoissonUsers",
    "PrivacyLoss",
    "Releases",
    "WithReplacement",
    "WithoutReplacement",
    "amplify",
    "approximate_dp",
    "attack_advantage",
    "audit",
    "audit_scores",
    "bounded_range",
    "calibrate",
    "calibrate_concentrated",
    "calibrate_noise_multiplier",
    "calibrate_num_steps",
    "calibrate_sampling_probability",
    "certificate",
    "certified_noise_multiplier",
    "charge",
    "compose",
    "delta",
    "doubts",
    "epsilon",
    "epsilon_lower_bound",
    "events",
    "gaussian",
    "gdp",
    "gdp_within",
    "inexact_certificate",
    "inexact_loss",
    "item_sampled_gaussian",
    "laplace",
    "last_iterate_gdp",
    "last_iterate_loss",
    "last_iterate_mu",
    "last_iterate_noise_multiplier",
    "one_run_audit",
    "one_run_epsilon_lower_bound",
    "open_ledger",
    "parallel",
    "parallel_certificate",
    "poisson_replaced_gaussian",
    "poisson_subsampled_gaussian",
    "privacy_spent",
    "pure_dp",
    "scale",
    "sequential_certificate",
    "state_certificate",
    "subsampled_gaussian_with_replacement",
    "subsampled_gaussian_without_replacement",
    "threshold_answer",
    "unbounded",
    "unbounded_unless",
    "user_sampled_gaussian",
    "variation_delta",
    "variation_epsilon",
    "with_variation",
    "zero",
]
