"""Faults in who is asked for a sum of clipped gradients, and for which users."""

from tests.mutation import Fault

_ORACLES = ("tests/oracles/test_clipped_sums.py",)
_SOLVERS = ("tests/solvers/test_ghost_sums.py",)
_SUMS = "oracles/clipped_sums.py"
_GHOST = "oracles/ghost/sums.py"
_FORM = "oracles/user_gradients.py"

FAULTS = (
    Fault("clipped sums: ghost sums take everybody, whoever was drawn", _SUMS, "return ghost.clipped_gradient_sum(objective, clip_norm, sampler, chunk_size)", "return ghost.clipped_gradient_sum(objective, clip_norm, None, chunk_size)", _SOLVERS),
    Fault("clipped sums: ghost sums clip to twice the norm", _SUMS, "return ghost.clipped_gradient_sum(objective, clip_norm, sampler, chunk_size)", "return ghost.clipped_gradient_sum(objective, 2 * clip_norm, sampler, chunk_size)", _SOLVERS),
    Fault("clipped sums: ghost sums count items that are masked out", _GHOST, "return loss(params, user.items, user.mask)", "return loss(params, user.items, None)", _ORACLES),
    Fault("clipped sums: rows of a table are found by the number of another axis", "oracles/ghost/rules.py", "_wide(operands[1][..., place])", "_wide(operands[1][..., -1])", ("tests/oracles/test_ghost.py",)),
    Fault("clipped sums: gradients that must stay unaltered come from ghosts", _FORM, 'way = "chunks" if unaltered else', 'way = "chunks" if False else', _ORACLES),
    Fault("clipped sums: ghosts may be asked for where proofs need gradients", _FORM, "if shifted or unaltered:", "if shifted:", _ORACLES),
    Fault("clipped sums: ghosts may be asked for where users are shifted apart", _FORM, "if shifted or unaltered:", "if unaltered:", _ORACLES),
    Fault("clipped sums: output perturbation takes ghost sums", "solvers/user_level/output_perturbation.py", "plan.chunk_size, unaltered=True", "plan.chunk_size, unaltered=False", _SOLVERS),
)  # fmt: skip
