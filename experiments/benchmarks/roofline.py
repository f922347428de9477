"""What a device could do at best: the bandwidth of its memory, and how much of it a program uses."""

import jax

PEAKS = {
    "NVIDIA H200": 4.8e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA A100-SXM4-80GB": 2.039e12,
    "NVIDIA A100-SXM4-40GB": 1.555e12,
    "NVIDIA A100-PCIE-40GB": 1.555e12,
    "NVIDIA L4": 0.3e12,
    "Tesla V100-SXM2-16GB": 0.9e12,
    "Tesla T4": 0.32e12,
    "TPU v4": 1.228e12,
    "TPU v5 lite": 0.819e12,
    "TPU v5p": 2.765e12,
}
"""Bytes a second between memory and processor, by the name that JAX gives a device; from data sheets."""


def share_of_peak(moved: float | None, seconds: float) -> float | None:
    """The bytes that had to be moved, over what the first device could move; ``None`` if unknown."""
    peak = PEAKS.get(jax.devices()[0].device_kind)
    if moved is None or peak is None or seconds <= 0:
        return None
    return moved / peak / seconds


def num_bytes(*trees: object) -> float:
    """Bytes of all arrays in the trees."""
    return float(sum(leaf.nbytes for leaf in jax.tree.leaves(trees)))
