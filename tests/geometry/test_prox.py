"""Proximal points against the definition of a minimizer, alone and over every domain that they split over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpsco_jax.geometry import domains, prox

DIM = 3
CENTRE = jnp.array([0.5, -1.0, 0.2])
DOMAINS = {
    "whole space": domains.whole_space(),
    "box": domains.box(jnp.array([-1.0, 0.1, -0.2]), jnp.array([0.5, 2.0, 0.0])),
    "centred ball": domains.ball(0.8),
    "ball elsewhere": domains.ball(0.8, jnp.array([0.7, 0.4, -0.3])),
    "simplex": domains.simplex(1.0),
    "l1 ball": domains.l1_ball(0.9),
}
TERMS = {
    # the term, and its value by definition, on rows
    "ridge": (prox.ridge(0.7, CENTRE), lambda w: 0.35 * np.sum((w - np.asarray(CENTRE)) ** 2, -1)),
    "ridge at 0": (prox.ridge(1.5), lambda w: 0.75 * np.sum(w**2, -1)),
    "l1": (prox.l1(0.3), lambda w: 0.3 * np.sum(np.abs(w), -1)),
}
NOT_SPLIT = {("l1", "ball elsewhere"), ("l1", "simplex")}
POINTS, RIVALS, STEP = 20, 200, 0.8


@pytest.mark.parametrize("domain", DOMAINS)
def test_joint_minimizer_exactly_where_the_term_splits(domain):
    """φ = step·h + ‖· - point‖²/2 is 1-strongly convex: w minimizes it over K if and only if
    φ(z) ≥ φ(w) + ‖z - w‖²/2 for all z of K. Rivals z are near w, and anywhere."""
    rng = np.random.default_rng(0)
    points = np.float32(rng.normal(size=(POINTS, DIM)))
    arrows = np.float32(rng.normal(size=(POINTS, RIVALS, DIM)))
    arrows *= np.where(np.arange(RIVALS) % 2, 0.05, 3.0)[:, None].astype(np.float32)
    project = jax.jit(jax.vmap(DOMAINS[domain].project))
    for name, (term, value) in TERMS.items():
        w = np.asarray(project(jnp.tile(term(points, STEP), (RIVALS, 1))))[:POINTS]
        rivals = np.asarray(project(jnp.reshape(w[:, None] + arrows, (-1, DIM))))
        rivals = rivals.reshape(POINTS, RIVALS, DIM).astype(float)
        here = STEP * value(w) + 0.5 * np.sum((w - points) ** 2, -1)
        there = STEP * value(rivals) + 0.5 * np.sum((rivals - points[:, None]) ** 2, -1)
        apart = 0.5 * np.sum((rivals - w[:, None]) ** 2, -1)
        worst = np.max(here[:, None] + apart - there)
        splits = term.splits(DOMAINS[domain])
        assert splits == ((name, domain) not in NOT_SPLIT)
        assert worst <= 1e-5 if splits else worst > 1e-3


def test_known_values_on_a_pytree():
    point = {"w": jnp.array([2.0, -0.1, -3.0]), "b": jnp.float16(0.5)}
    found = prox.l1(0.5)(point, 2.0)
    np.testing.assert_array_equal(found["w"], [1.0, 0.0, -2.0])
    assert found["b"] == 0
    assert found["b"].dtype == jnp.float16
    found = prox.ridge(0.5, {"w": jnp.ones(3), "b": jnp.ones(())})(point, 2.0)
    np.testing.assert_allclose(found["w"], [1.5, 0.45, -1.0], rtol=1e-6)
    assert found["b"] == 0.75
    assert found["b"].dtype == jnp.float16
    assert float(prox.l1(0.5).value(point)) == pytest.approx(0.5 * 5.6, rel=1e-3)
    assert float(prox.ridge(2.0).value({"w": jnp.array([3.0, 4.0])})) == pytest.approx(25.0)


def test_bad_numbers_are_refused_and_nan_is_seen():
    for make in (prox.l1, prox.ridge):
        with pytest.raises(ValueError, match=r"weight must be .*in \[0, inf\)"):
            make(-1.0)
        assert jnp.isnan(make(1.0)(jnp.array([jnp.nan, 1.0]), 0.5)).tolist() == [True, False]
