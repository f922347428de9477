"""A real Ray cluster of three nodes on this machine: nodes and drivers are killed in the middle of a run."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dpsco_jax import sweeps
from dpsco_jax.sweeps.cells import cells_of
from dpsco_jax.sweeps.command import main
from dpsco_jax.sweeps.executors import NoWorkersError
from tests.sweeps.mean_estimation import MeanEstimation
from tests.sweeps.test_load import FILE

ROOT = Path(__file__).parents[2]
WORK = 3_000_000
EXPERIMENT = MeanEstimation(seeds=20, work=WORK)
CHUNKS = sweeps.Options(cells_per_chunk=4)
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster():
    """Three nodes with one CPU each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # all on the loopback interface
        patch.setenv("JAX_PLATFORMS", "cpu")
        from ray.cluster_utils import Cluster  # it reads the environment when it is imported

        made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            for _ in range(2):
                made.add_node(**NODE)
            made.wait_for_nodes()
            yield made
        finally:
            made.shutdown()


def stored(folder):
    with sweeps.Store(folder) as store:
        return {row["id"]: row for row in store.rows()}


def results(rows):
    return {i: (row["status"], str(row["results"])) for i, row in rows.items()}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The results of a local run on one device, in a process that is set up as those of the cluster are."""
    folder = tmp_path_factory.mktemp("here")
    code = (
        "from tests.sweeps.mean_estimation import MeanEstimation, main\n"
        "import sys\n"
        "sys.exit(main(experiments={'mean-estimation': MeanEstimation}))\n"
    )
    command = [sys.executable, "-c", code, "run", "mean-estimation", "--results", str(folder)]
    command += ["--seeds", "20", "--work", str(WORK), "--cells-per-chunk", "4"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True)
    return results(stored(folder / "mean-estimation"))


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


class Notes:
    """A listener that counts."""

    def __init__(self):
        self.done, self.failed = 0, 0

    def start(self, total, done):
        self.done = done

    def phase(self, text):
        pass

    def advance(self, cells, failed=0):
        self.done += cells
        self.failed += failed


def kill_node(cluster, node):
    """``kill -9`` of the node's manager and of every process that it has started."""
    raylet = node.all_processes["raylet"][0].process.pid
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(raylet)], capture_output=True, text=True
    )
    for pid in [raylet, *map(int, listed.stdout.split())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_node_is_killed_in_the_middle(cluster, here, tmp_path):
    notes, tally, errors = Notes(), [], []

    def work():
        try:
            with sweeps.Store(tmp_path) as store:
                place = sweeps.Ray(cluster.address, workers=3)
                tally.append(sweeps.run(EXPERIMENT, store, CHUNKS, notes, executor=place))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: notes.done >= 12 or errors)
    victim = next(iter(cluster.worker_nodes))
    kill_node(cluster, victim)
    at_the_kill = notes.done
    thread.join(timeout=300)
    cluster.remove_node(victim, allow_graceful=False)
    cluster.add_node(**NODE)
    assert not errors
    assert at_the_kill < 110, "it was over before the node was killed"
    assert tally == [(120, 0, 0, 0)]
    assert notes.done == 120
    rows = stored(tmp_path)
    assert {row["attempts"] for row in rows.values()} == {1}
    assert {row["device"] for row in rows.values()} == {"1 x cpu, 3 workers"}
    assert results(rows) == here


def test_the_driver_is_killed_and_started_again(cluster, here, tmp_path):
    command = [sys.executable, "-m", "tests.sweeps.mean_estimation", "run", "mean-estimation"]
    command += ["--results", str(tmp_path), "--seeds", "20", "--work", str(WORK)]
    command += ["--cells-per-chunk", "4", "--ray", cluster.address]

    def start():
        return subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def count():
        try:
            return len(stored(tmp_path / "mean-estimation"))
        except Exception:
            return 0

    driver = start()
    wait_for(lambda: count() >= 8 or driver.poll() is not None)
    driver.kill()
    driver.communicate()
    before = stored(tmp_path / "mean-estimation")
    assert 8 <= len(before) < 120
    output, _ = (driver := start()).communicate(timeout=300)
    assert driver.returncode == 0, output
    assert "120 cells have a result" in output
    rows = stored(tmp_path / "mean-estimation")
    assert before.items() <= rows.items()
    assert {row["attempts"] for row in rows.values()} == {1}
    assert results(rows) == here


def test_an_interrupt_stops_the_workers(cluster, tmp_path):
    command = [sys.executable, "-m", "tests.sweeps.mean_estimation", "run", "mean-estimation"]
    command += ["--results", str(tmp_path), "--seeds", "20", "--work", str(50 * WORK)]
    command += ["--cells-per-chunk", "1", "--ray", cluster.address]
    driver = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # Of a test run in the background the children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    folder = tmp_path / "mean-estimation"
    wait_for(lambda: (folder.exists() and list(folder.glob("*.lock"))) or driver.poll() is not None)
    time.sleep(5)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    assert "interrupted: finished cells are stored" in output


def test_failures_are_those_of_one_machine(cluster, tmp_path):
    experiment = MeanEstimation(noises=(1.0, -1.0, 0.0), seeds=2, broken_dim=5)
    with sweeps.Store(tmp_path / "ray") as store:
        notes = Notes()
        tally = sweeps.run(experiment, store, None, notes, executor=sweeps.Ray(cluster.address))
    with sweeps.Store(tmp_path / "here") as store:
        assert sweeps.run(experiment, store) == tally == (4, 2, 8, 0)
    assert (notes.done, notes.failed) == (12, 8)
    ends = [
        {
            i: (row["traceback"] or "").splitlines()[-1:]
            for i, row in stored(tmp_path / place).items()
        }
        for place in ("ray", "here")
    ]
    assert ends[0] == ends[1]


def test_a_class_in_a_file_goes_to_the_workers(cluster, tmp_path, monkeypatch, capsys):
    """Its workers are on this machine, where the file beside it is, too."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_sweep.py").write_text(FILE)
    (tmp_path / "beside_mine.py").write_text("TWO = 2\n")
    words = ["run", f"{tmp_path / 'my_sweep.py'}:Mine", "--results", str(tmp_path / "out")]
    try:
        assert main([*words, "--ray", cluster.address, "--ray-cpus", "1"]) == 0
    finally:
        sys.modules.pop("beside_mine", None)
        sys.modules.pop("dpsco_sweep_my_sweep", None)
    assert "4 cells have a result" in capsys.readouterr().out
    assert {row["results"]["twice"] for row in stored(tmp_path / "out/mine").values()} == {2.0, 4.0}


def test_a_node_with_other_flags_is_refused_before_it_computes(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_min_max=true")
    node = cluster.add_node(**{**NODE, "num_cpus": 2})
    monkeypatch.undo()
    try:
        cluster.wait_for_nodes()
        place = sweeps.Ray(cluster.address, cpus_per_worker=2)  # the other nodes have one each
        with (
            sweeps.Store(tmp_path) as store,
            pytest.raises(NoWorkersError, match="must have what the driver has, got settings"),
        ):
            sweeps.run(MeanEstimation(seeds=1), store, executor=place)
    finally:
        cluster.remove_node(node, allow_graceful=False)
    with sweeps.Store(tmp_path) as store:
        assert not store.rows()


def test_a_cluster_without_a_place_is_given_up(cluster, tmp_path):
    place = sweeps.Ray(cluster.address, cpus_per_worker=50, patience=2.0)
    with (
        sweeps.Store(tmp_path) as store,
        pytest.raises(NoWorkersError, match="no worker with 50 CPUs"),
    ):
        sweeps.run(MeanEstimation(seeds=1), store, executor=place)
    with sweeps.Store(tmp_path) as store:
        assert not store.rows(cells_of(MeanEstimation(seeds=1)))


def test_an_address_without_a_cluster_is_refused(tmp_path, capsys):
    words = ["run", "mean-estimation", "--results", str(tmp_path), "--ray", "auto:nothing"]
    assert main(words, {"mean-estimation": MeanEstimation}) == 2
    assert "there is no cluster at" in capsys.readouterr().err
