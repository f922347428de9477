"""The crew of a Ray cluster against a Ray that is made up: who is admitted, and how a run ends."""

import socket
import sys
import threading
import types

import pytest

from dpsco_jax.sweeps import _code, ray_cluster
from dpsco_jax.sweeps.executors import NoWorkersError, WorkerLostError
from dpsco_jax.sweeps.ray_cluster import Ray
from tests.sweeps.fake_ray import FakeRay
from tests.sweeps.mean_estimation import MeanEstimation

EXPERIMENT = MeanEstimation(seeds=1)


class Bench:
    """In place of the bench, whose devices are those of this process."""

    device = "1 x fake"

    def __init__(self, experiment, memory_gb):
        self.experiment = experiment

    def survey(self, static, cells):
        return len(cells)


@pytest.fixture(autouse=True)
def _no_bench(monkeypatch):
    monkeypatch.setattr(ray_cluster, "Bench", Bench)
    monkeypatch.setattr(ray_cluster.jax.config, "update", lambda *_: None)
    monkeypatch.setattr(sys, "path", [*sys.path])


def crew_of(ray, cpus=1, gpus=0, patience=120.0):
    place = ray_cluster._Place(cpus, gpus, None, patience)
    crew = ray_cluster._RayCrew(place, ray, EXPERIMENT, 1.0, connected=True)
    crew.begin()
    return crew


@pytest.mark.parametrize(
    ("cpus", "gpus", "expected"), [(1, 0, 6), (2, 0, 2), (3, 0, 2), (1, 1, 1), (3, 2, 1), (4, 0, 1)]
)
def test_no_worker_lies_on_two_nodes(cpus, gpus, expected):
    ray = FakeRay(({"CPU": 3.0, "GPU": 1.0}, {"CPU": 3.0}, {"memory": 1.0}))
    crew = crew_of(ray, cpus, gpus)
    assert crew.size == expected
    assert crew.device == ("1 x fake" if expected == 1 else f"1 x fake, {expected} workers")


def test_whoever_waits_for_ray_is_out_before_it_is_shut_down():
    ray = FakeRay(({"CPU": 3.0},), never=("survey",))
    crew = crew_of(ray)
    worker, ends = crew.worker(lambda: True), []

    def work():
        try:
            worker.survey({}, [])
        except WorkerLostError as error:
            ends.append(str(error))

    ray.never = ("survey", "begin")  # the second worker does not begin either
    second = threading.Thread(target=crew.worker, args=(lambda: True,))
    threads = [threading.Thread(target=work), second]
    ray.asked.clear()
    for thread in threads:
        thread.start()
    assert ray.asked.wait(10)
    crew.close()
    for thread in threads:
        thread.join(10)
    assert ends == ["killed"]
    assert ray.over
    assert not ray.late
    with pytest.raises(WorkerLostError, match="the run has ended"):
        worker.survey({}, [])
    assert crew.worker(lambda: True) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jax": "0.1"}, "jax .* here and 0.1 there"),
        ({"dpsco-jax code": "000000000000"}, "dpsco-jax code [0-9a-f]{12} here and 0{12} there"),
        ({"settings": "XLA_FLAGS"}, "settings .* here and XLA_FLAGS there"),
    ],
)
def test_a_worker_with_other_code_or_flags_is_refused(monkeypatch, change, message):
    real = ray_cluster.versions
    begin = ray_cluster._Remote.begin

    def elsewhere(self, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(ray_cluster, "versions", lambda: real() | change)
            return begin(self, *arguments)

    monkeypatch.setattr(ray_cluster._Remote, "begin", elsewhere)
    with pytest.raises(
        NoWorkersError, match=f"workers must have what the driver has, got {message}"
    ):
        crew_of(FakeRay())


def test_a_worker_with_another_module_beside_the_experiment_is_refused(monkeypatch):
    name = "tests.sweeps.fake_ray"
    assert name in _code.beside(MeanEstimation)
    real = _code.named
    monkeypatch.setattr(_code, "named", lambda names: real(names) | {name: "other"})
    with pytest.raises(NoWorkersError, match=f"got code of {name} .* and other there"):
        crew_of(FakeRay())


def test_why_no_worker_begins_is_said():
    with pytest.raises(NoWorkersError, match="the last was lost: No module named 'dpsco_jax'"):
        crew_of(FakeRay(dead=("begin",)), patience=0.3)


def test_another_cluster_than_the_connected_one_is_refused(monkeypatch):
    ray = FakeRay()
    ray.is_initialized = lambda: True
    ray.get_runtime_context = lambda: types.SimpleNamespace(gcs_address="here:6379")
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(
        NoWorkersError, match="connected to the cluster at here:6379, not to there:1"
    ):
        Ray("there:1").start(EXPERIMENT, 1.0)
    for address in (None, "auto", "here:6379"):
        Ray(address).start(EXPERIMENT, 1.0).close()
    assert not ray.over  # whose connection it is not


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "localhost:{}", "[::1]:{}"])
def test_a_port_without_a_listener_is_refused_at_once(monkeypatch, address):
    """Ray itself would try for minutes."""
    ray = FakeRay()
    ray.is_initialized, ray.init = (lambda: False), lambda *_, **__: pytest.fail("asked")
    monkeypatch.setitem(sys.modules, "ray", ray)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, so nobody else listens there, nor does this
        address = address.format(taken.getsockname()[1])
        with pytest.raises(NoWorkersError, match=r"no cluster at .*Errno"):
            Ray(address).start(EXPERIMENT, 1.0)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(NoWorkersError, match=r"no cluster that can be found: .*Errno"):
            Ray().start(EXPERIMENT, 1.0)


@pytest.mark.parametrize("error", [ConnectionError, RuntimeError, ValueError, OSError])
def test_no_cluster_and_a_cluster_of_another_version_are_said_so(monkeypatch, error):
    def init(*_, **__):
        raise error("Version mismatch")

    ray = FakeRay()
    ray.is_initialized, ray.init = (lambda: False), init
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(NoWorkersError, match="no cluster at auto: Version mismatch"):
        Ray("auto").start(EXPERIMENT, 1.0)
