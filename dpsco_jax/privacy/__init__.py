"""What has been paid: privacy losses, the curves of mechanisms, conversion, calibration, certificates."""

from dpsco_jax.privacy import events
from dpsco_jax.privacy.certificates import Certificate, certificate, certified_noise_multiplier
from dpsco_jax.privacy.ledger import Ledger, charge, open_ledger, privacy_spent
from dpsco_jax.privacy.loss import PrivacyLoss, compose, delta, epsilon, parallel, scale, zero
from dpsco_jax.privacy.orders import ORDERS

__all__ = [
    "ORDERS",
    "Certificate",
    "Ledger",
    "PrivacyLoss",
    "certificate",
    "certified_noise_multiplier",
    "charge",
    "compose",
    "delta",
    "epsilon",
    "events",
    "open_ledger",
    "parallel",
    "privacy_spent",
    "scale",
    "zero",
]
