"""Two processes with two devices each, on this machine: as one process, killed, and resumed."""

import os
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from dpsco_jax.problems.users import UserData
from tests.devices.entries import user_data
from tests.devices.table import environment

pytestmark = pytest.mark.slow
PROGRAM = "examples/several_processes.py"
WAIT = 300


# Process 1 has loaded the numbers of process 0 as another kind of number. Every line is written at once,
# since others write to the same pipe.
OTHERWISE = """
import sys
import jax, numpy as np
from dpsco_jax.problems.users import UserData
jax.config.update("jax_cpu_collectives_implementation", "gloo")
place = int(sys.argv[6])
jax.distributed.initialize(sys.argv[2], 2, place, heartbeat_timeout_seconds=30)
mesh = jax.make_mesh((jax.device_count(),), ("users",))
for kind in (np.float32, (np.float32, np.float16)[place]):
    try:
        data = UserData.from_process_local(mesh, np.ones((4, 2, 3), kind))
        print(f"loaded {data.items.shape}", flush=True)
    except ValueError as error:
        print(f"refused: {error}", flush=True)
"""


def _start(devices, *words, program=(PROGRAM,)):
    command = [sys.executable, *program, *map(str, words)]
    given = environment(devices) | {"PYTHONPATH": os.getcwd()}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=given, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def _pair(*words, second=(), program=(PROGRAM,)):
    """Two processes with these words, the second with more; their exit codes and what they wrote."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = ("--coordinator", f"localhost:{port}", "--processes", 2, *words)
    runs = [
        _start(2, *shared, "--process", 0, program=program),
        _start(2, *shared, "--process", 1, *second, program=program),
    ]
    try:
        written = [run.communicate(timeout=WAIT)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    return [run.returncode for run in runs], written


def _same(first, second):
    with np.load(first) as one, np.load(second) as two:
        assert set(one.files) == set(two.files)
        for name in one.files:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_two_processes_give_the_numbers_of_one(tmp_path):
    alone = _start(4, "--results", tmp_path / "one.npz")
    written = alone.communicate(timeout=WAIT)[0]
    assert alone.returncode == 0, written[-2000:]
    codes, written = _pair("--results", tmp_path / "two.npz")
    assert codes == [0, 0], written
    _same(tmp_path / "one.npz", tmp_path / "two.npz")


def test_a_killed_process_ends_the_other_and_the_run_goes_on_from_its_checkpoint(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    codes, written = _pair("--checkpoint", whole, "--results", tmp_path / "whole.npz")
    assert codes == [0, 0], written
    codes, written = _pair("--checkpoint", cut, second=("--dies-at", 5))
    assert codes[1] == -signal.SIGKILL
    # It does not hang, and says why it ends.
    assert codes[0] not in (0, None)
    assert "error" in written[0].lower()
    with np.load(cut) as kept:
        assert 1 <= int(kept["arr_0"]) < 12
    codes, written = _pair("--checkpoint", cut, "--results", tmp_path / "cut.npz")
    assert codes == [0, 0], written
    _same(tmp_path / "whole.npz", tmp_path / "cut.npz")


def test_other_dtypes_in_one_process_are_refused_in_both():
    codes, written = _pair(program=("-c", OTHERWISE))
    assert codes == [0, 0], written
    for said in written:
        assert "loaded (8, 2, 3)" in said
        assert "refused: items must be of one structure" in said


def test_users_of_one_process_are_all_users():
    data, mesh = user_data(16), jax.make_mesh((1,), ("users",))
    found = UserData.from_process_local(mesh, data.items, data.mask)
    jax.tree.map(np.testing.assert_array_equal, found, data)
    with pytest.raises(ValueError, match="axis must be one of"):
        UserData.from_process_local(mesh, data.items, axis="rows")
    with pytest.raises(ValueError, match="items must be of one number of users"):
        UserData.from_process_local(mesh, data.items, data.mask[:3])
