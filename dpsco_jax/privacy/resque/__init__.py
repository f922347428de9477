"""What private ReSQue calls cost."""

from dpsco_jax.privacy.resque.calls import (
    Constants,
    ResqueCall,
    calibrate_beta,
    call_loss,
    calls_epsilon,
    calls_loss,
    conditional_cost,
    violated_preconditions,
)

__all__ = [
    "Constants",
    "ResqueCall",
    "calibrate_beta",
    "call_loss",
    "calls_epsilon",
    "calls_loss",
    "conditional_cost",
    "violated_preconditions",
]
