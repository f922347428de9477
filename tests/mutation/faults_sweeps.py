"""Faults of sweeps over machines, written before any ran."""

from tests.mutation import Fault

_SCHEDULE, _WORK, _STORE = "sweeps/_schedule.py", "sweeps/_work.py", "sweeps/store.py"
_RAY, _WORKERS = "sweeps/ray_cluster.py", "sweeps/ray_cluster.py"
_CODE, _VERSIONS = "sweeps/_code.py", "sweeps/versions.py"
_ENGINE = ("tests/sweeps/test_engine.py",)
_STORED = ("tests/sweeps/test_store.py",)
_CREW = ("tests/sweeps/test_ray_crew.py",)
_NAMES = ("tests/sweeps/test_code.py",)
_CHANGED = ("tests/sweeps/test_changed_code.py",)

FAULTS = (
    Fault("sweeps: chunks of a restart are cut anew", _SCHEDULE, "self._store.first_said(name, about_as_full)", "about_as_full", _ENGINE),
    Fault("sweeps: the size of a chunk is of pending cells", _SCHEDULE, "group.total, self._cells_per_chunk", "len(group.cells), self._cells_per_chunk", _ENGINE),
    Fault("sweeps: the last to say a size is heard", _STORE, "INSERT OR IGNORE INTO sizes", "INSERT OR REPLACE INTO sizes", _STORED),
    Fault("sweeps: a lock outlives its store", _STORE, "            if self._lock is not None:\n                self._lock.close()\n            self._db", "            self._db", _STORED),
    Fault("sweeps: exit ends the run", _WORK, "_OF_THE_CELL = (Exception, SystemExit)", "_OF_THE_CELL = (Exception,)", _ENGINE),
    Fault("sweeps: integers wrap", "sweeps/compile.py", 'joined.dtype.kind in "iu"', 'joined.dtype.kind in ""', _ENGINE),
    Fault("sweeps: an integer that wraps takes its batch along", _WORK, "                    stack([inputs])", "                    tuple([inputs])", _ENGINE),
    Fault("sweeps: numbers of NumPy reach the store", _WORK, "known = {name: _number(name, x) for", "known = {name: x for", _ENGINE),
    Fault("sweeps: code is not compared", _VERSIONS, '"dpsco-jax code": _code()', '"dpsco-jax code": ""', _NAMES),
    Fault("sweeps: names of files are no part of the code", _VERSIONS, 'content.update(f"{path.relative_to(root).as_posix()}\\0".encode())', "pass", _NAMES),
    Fault("sweeps: flags of XLA are not compared", _VERSIONS, 'os.environ.get("XLA_FLAGS", "")', '""', _NAMES),
    Fault("sweeps: modules beside are not compared", _WORKERS, "found = _comparable(versions()) | _labelled(_code.named(names))", "found = _comparable(versions())", _CREW),
    Fault("sweeps: a module that is missing is no difference", _CODE, 'else "missing"', "else _hash(Path(__file__))", _NAMES),
    Fault("sweeps: what imported files import is no code", _CODE, "                left.append(path)\n", "", _CHANGED),
    Fault("sweeps: runs note no code", "sweeps/engine.py", "versions() | noted", "versions()", _CHANGED),
    Fault("sweeps: unknown codes are taken for changed", _CODE, "of not in (None, now)", "of != now", _CHANGED),
    Fault("sweeps: dropped results are results until they are computed again", _STORE, "SET status = 'failed', results = NULL", "SET status = 'ok'", _CHANGED),
    Fault("sweeps: the cluster is shut down under those who wait", _WORKERS, "self._lock.wait_for(lambda: self._inside == 0, _SECONDS_TO_END)", "pass", _CREW),
    Fault("sweeps: whoever comes late still asks", _WORKERS, "            if self._closed:\n                raise", "            if False:\n                raise", _CREW),
    Fault("sweeps: another cluster is taken", _RAY, "if there != self.address:", "if False:", _CREW),
    Fault("sweeps: workers lie on two nodes", _WORKERS, 'places = node.get("CPU", 0.0) // cpus', 'places = node.get("CPU", 0.0) / cpus + 0.5', _CREW),
    Fault("sweeps: a share too many", "sweeps/shares.py", "% self.total == self.number - 1", "% (self.total + 1) == self.number - 1", ("tests/sweeps/test_shares.py",)),
    Fault("sweeps: a conflict is passed over", "sweeps/merging.py", 'if record["status"] != "failed" and not _equal(old, record):', "if False:", ("tests/sweeps/test_merge.py",)),
    Fault("sweeps: claims of the living are taken", _STORE, "return run == self._run or _database.alive(self._lock_path(run))", "return run == self._run", _STORED),
    Fault("sweeps: a result is overwritten", _STORE, "run = excluded.run WHERE status = 'failed'", "run = excluded.run", _STORED),
    Fault("sweeps: stored without a claim", _STORE, "if rows and not given_up == stored == len(rows):", "if rows and not stored == len(rows):", _STORED),
    Fault("sweeps: a lost chunk is forgotten", _SCHEDULE, "batch.again.append((cells, losses))", "pass", ("tests/sweeps/test_executors.py",)),
)  # fmt: skip
