"""Users who are chosen so that the rounding of a float32 sum differs between two neighbours, all one way."""

import numpy as np


def drifting(num_users: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of numbers in [-1, 1] that differ in the first, 1 or -1.

    Those that follow bring the sum to a power of two, a little above it or below. There, one in each block of
    users adds 1.5 and takes 2.5 spacings of the floats above in turn: above, each is a tie that rounds up,
    and below, where floats are twice as dense, all are exact.
    """
    power = int(np.floor(np.log2(num_users / 2 - 1)))
    spacing = 2.0 ** (power - 23)
    rows = np.zeros(num_users)
    rows[1 : 2**power + 1] = 1.0
    places = np.arange(-(-(2**power + 1) // block) * block, num_users, block)
    rows[places] = np.where(np.arange(len(places)) % 2 == 0, 1.5 * spacing, -2.5 * spacing)
    first, second = rows.copy(), rows.copy()
    first[0], second[0] = 1.0, -1.0
    return first.astype(np.float32), second.astype(np.float32)


def exact_move(first: np.ndarray, second: np.ndarray) -> float:
    """The difference of the exact sums: of multiples of 2^-60 below 2^24, which long doubles hold."""
    return float(np.sum(first.astype(np.longdouble)) - np.sum(second.astype(np.longdouble)))


def rounded_by_place(num_users: int) -> np.ndarray:
    """Numbers just above 3/4 whose sums in pairs round up, all of them, and down if all move by one place.

    In units of 2^-24 above 3/4 they are 0, 3, 2, 1 in turn. Sums of neighbours are odd, where floats between
    1 and 2 are even: half way between two, of which the multiple of four is taken: 3 becomes 4, and 1 is 0.
    Sums of these have no error up to 16 users. A group of 16 is off by 8 units, or by -8.
    """
    return (0.75 + 2.0**-24 * np.array([0, 3, 2, 1])[np.arange(num_users) % 4]).astype(np.float32)
