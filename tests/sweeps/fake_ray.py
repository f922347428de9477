"""As much of Ray as a crew needs, in this process: actors whose calls are done at once or never."""

import pickle
import threading
import types


class RayError(Exception):
    """What all errors of the engine are."""


class RayTaskError(RayError):
    """The call has raised."""


class FakeRay:
    """Nodes with resources; ``never`` names calls that do not come back until their actor is killed.

    After ``shutdown`` whoever asks for anything is noted in ``late``, where Ray would end the process.
    """

    def __init__(self, nodes=({"CPU": 1.0},), never=(), dead=()):
        self.exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.cloudpickle = types.SimpleNamespace(dumps=pickle.dumps)
        self._nodes, self.never, self.dead = nodes, never, dead
        self.killed, self.late, self.asked = [], [], threading.Event()
        self.over = False

    def _note(self, what):
        if self.over:
            self.late.append(what)

    def nodes(self):
        return [{"Alive": True, "Resources": dict(node)} for node in self._nodes]

    def put(self, value):
        return value

    def remote(self, **_):
        return lambda kind: types.SimpleNamespace(remote=lambda: _Actor(self, kind()))

    def wait(self, refs, timeout):
        self._note("wait")
        (ref,) = refs
        return (refs, []) if ref.done.wait(0.0 if ref.done.is_set() else timeout) else ([], refs)

    def get(self, ref):
        self._note("get")
        self.asked.set()
        ref.done.wait()
        self._note("get")
        if isinstance(ref.answer, Exception):
            raise ref.answer
        return ref.answer

    def kill(self, actor):
        self._note("kill")
        self.killed.append(actor)
        for ref in actor.refs:
            if not ref.done.is_set():
                ref.answer = RayError("killed")
                ref.done.set()

    def shutdown(self):
        self.over = True


class _Actor:
    def __init__(self, ray, thing):
        self._ray, self._thing, self.refs = ray, thing, []

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name, arguments):
        assert not self._ray.over, "asked after the shutdown"
        ref = types.SimpleNamespace(done=threading.Event(), answer=None)
        self.refs.append(ref)
        if name in self._ray.dead:
            ref.answer = RayError("No module named 'dpsco_jax'")
        elif name not in self._ray.never:
            ref.answer = getattr(self._thing, name)(*arguments)
        else:
            return ref
        ref.done.set()
        return ref
