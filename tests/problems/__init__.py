import numpy as np


def saved(folder, **arrays):
    """Paths of files that hold these arrays, by their names."""
    paths = {name: str(folder / f"{name}.npy") for name in arrays}
    for name, array in arrays.items():
        np.save(paths[name], array)
    return paths
