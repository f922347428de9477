"""How often programs are compiled."""

import contextlib

import jax
import pytest


@contextlib.contextmanager
def counted_compilations():
    """Counts how often XLA compiles one of the engine's programs."""
    counts = []
    original = jax.stages.Lowered.compile

    def compile_and_count(self, *args, **kwargs):
        counts.append(1)
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", compile_and_count)
        yield counts
