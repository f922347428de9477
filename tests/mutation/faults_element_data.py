"""Faults in elements: what decides that neighbours differ in one unit, and that a partition is public."""

from tests.mutation import Fault

_ELEMENTS = ("tests/problems/test_elements.py",)
_PARTITION = ("tests/problems/test_partition.py",)
_N12 = ("tests/corrections/test_elements.py",)

FAULTS = (
    Fault("elements: a bound on a user's elements is not enforced", "problems/elements.py", "held.max(initial=0) <= elements_per_user", "True or held.max()", _ELEMENTS),
    Fault("elements: members without rows are lost", "problems/elements.py", "    return len(everyone), among[position]", "    return len(identifiers), position", _ELEMENTS),
    Fault("elements: the draw of a unit depends on the place of its rows", "problems/_grouping.py", "[*seed, *groups[start].tolist()]", "[*seed, int(start)]", _ELEMENTS),
    Fault("elements: the draw of a unit does not know its element", "problems/_grouping.py", "*groups[start].tolist()]", "*groups[start][:1].tolist()]", _ELEMENTS),
    Fault("elements: the mean over elements in place of the sum", "problems/elements.py", "    return jnp.sum(jax.vmap(one_unit", "    return jnp.mean(jax.vmap(one_unit", _ELEMENTS),
    Fault("partition: public need not be said", "problems/partition.py", "            self.public is True,", "            self.public is not None,", _PARTITION),
    Fault("partition: rounding decides, and with it a row's neighbours", "problems/partition.py", "doubtful = ~(np.isfinite(least) & np.isfinite(gap) & (gap > rounding))", "doubtful = np.zeros(len(rows), bool)", _PARTITION),
    Fault("element distance: sets in place of multisets", "problems/element_distance.py", "sorted(tuple(leaf[user, slot, i].tobytes() for leaf in leaves) for i in there)", "sorted({tuple(leaf[user, slot, i].tobytes() for leaf in leaves) for i in there})", _PARTITION),
    Fault("m_estimation: no projection after the noise", "solvers/methods.py", "[*moves, transforms.project(domain)]", "[*moves]", _N12),
)  # fmt: skip
