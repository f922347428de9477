"""One private step of a network by ghost clipping: against the step without privacy, jax_privacy and optax.

What it computes: seconds of a step (clipped sum, noise, update) of five models; jax_privacy with its best
microbatch of several; temporaries of the transformer's step, as the compiler reports them. On a CPU costs are
processor seconds of all threads, which other programs touch less.

Source: none.

Formal guarantee: none; the data are drawn at random.

Cost: two minutes, 4 GB.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import optax

from dpsco_jax import transforms
from dpsco_jax.oracles import ghost
from experiments.benchmarks import models, opacus_turns, peers
from experiments.benchmarks.models import Case
from experiments.benchmarks.roofline import num_bytes
from experiments.benchmarks.timing import Row, interleaved_medians

CLIP_NORM, LEARNING_RATE = 1.0, 0.1
Step = tuple[Callable[[Any, Any], Any], Any]


def ghost_step(case: Case) -> Step:
    """``step(state, batch) -> state`` as the documentation writes it."""
    optimizer = optax.chain(
        transforms.privatize(
            transforms.summed_contributions(CLIP_NORM, case.number), jax.random.key(0), 1.0
        ),
        optax.sgd(LEARNING_RATE),
    )

    def step(state: Any, batch: Any) -> Any:
        params, optimizer_state = state
        total = ghost.clipped_sum(case.loss, params, batch, CLIP_NORM)
        updates, optimizer_state = optimizer.update(
            total, optimizer_state, params, clipped_to=CLIP_NORM
        )
        return optax.apply_updates(params, updates), optimizer_state

    return step, (case.params, optimizer.init(case.params))


def plain_step(case: Case) -> Step:
    """The step without privacy."""
    return peers.non_private_step(case.loss, case.params, learning_rate=LEARNING_RATE)


def _peer_step(case: Case, microbatch: int | None) -> Step:
    return peers.jax_privacy_step(
        case.loss,
        case.params,
        clip_norm=CLIP_NORM,
        noise_multiplier=1.0,
        num_users=case.number,
        learning_rate=LEARNING_RATE,
        microbatch_size=microbatch,
    )


def medians(case: Case, steps: dict[str, Step], repeats: int = 9) -> dict[str, float]:
    """Seconds of the steps, taking turns."""
    calls = {}
    for name, (step, state) in steps.items():
        compiled = jax.jit(step)
        calls[name] = lambda compiled=compiled, state=state: compiled(state, case.batch)
    if jax.default_backend() == "cpu":
        return interleaved_medians(calls, repeats, clock=time.process_time)
    return interleaved_medians(calls, repeats, burst=5, queued=True)


def compared(
    case: Case,
    microbatches: Sequence[int | None],
    *,
    target: float | None,
    with_optax: bool = True,
) -> list[Row]:
    """A step of ours against its peers.

    Args:
        case: the model.
        microbatches: of jax_privacy, of which the best counts; none of it where they are empty.
        target: ratio to reach against the step without privacy.
        with_optax: whether optax takes part, which holds the gradients of all examples.
    """
    ours, plain = ghost_step(case), plain_step(case)
    steps = {"ours": ours, "without privacy": plain}
    for size in microbatches:
        steps[f"jax_privacy, {'all at once' if size is None else f'{size} at once'}"] = _peer_step(
            case, size
        )
    if with_optax:
        steps["optax contrib"] = peers.optax_step(
            case.loss,
            case.params,
            clip_norm=CLIP_NORM,
            noise_multiplier=1.0,
            learning_rate=LEARNING_RATE,
        )
    seconds = medians(case, steps)
    moved = num_bytes(case.batch) + 2 * num_bytes(case.params)
    found = [
        Row(
            case.name,
            "ghost",
            seconds["ours"],
            "without privacy",
            seconds["without privacy"],
            target,
            moved=moved,
        )
    ]
    of_peer = {name: cost for name, cost in seconds.items() if name.startswith("jax_privacy")}
    if of_peer:
        best = min(of_peer, key=of_peer.__getitem__)
        rest = ", ".join(f"{1e3 * c:.3g} ms ({n[13:]})" for n, c in of_peer.items() if n != best)
        found.append(
            Row(case.name, "ghost", seconds["ours"], best, of_peer[best], None, rest, moved=moved)
        )
    if with_optax:
        peer = seconds["optax contrib"]
        found.append(
            Row(case.name, "ghost", seconds["ours"], "optax contrib", peer, None, moved=moved)
        )
    return found


def temporaries(step: Step, case: Case) -> float:
    """Megabytes of temporaries of a compiled step."""
    analysis = jax.jit(step[0]).lower(step[1], case.batch).compile().memory_analysis()
    return analysis.temp_size_in_bytes / 1e6 if analysis else float("nan")


def _memory(case: Case) -> Row:
    ours, plain = temporaries(ghost_step(case), case), temporaries(plain_step(case), case)
    return Row(f"temporaries: {case.name}", "ghost", ours, "without privacy", plain, 0.5, unit="MB")


def beside_opacus(
    case: Case, model: str, python: str, target: float | None, repeats: int = 9
) -> list[Row]:
    """A step of ours against Opacus with ghost clipping, in processor seconds.

    Opacus runs on one thread. Ours runs on all cores it may use, which costs a little more: pin the benchmark
    to one (``taskset -c 0``) for equal terms.

    Args:
        case: the model here.
        model: the same there, a name that ``opacus_peer`` knows.
        python: an interpreter that has torch and opacus.
        target: ratio to reach.
        repeats: turns.
    """
    step, state = ghost_step(case)
    compiled = jax.jit(step)
    jax.block_until_ready(compiled(state, case.batch))
    ours, theirs = [], []
    with opacus_turns.running(python, model, case.number) as peer_step:
        for _ in range(repeats):
            before = time.process_time()
            jax.block_until_ready(compiled(state, case.batch))
            ours.append(time.process_time() - before)
            theirs.append(peer_step())
    cost, peer_cost = statistics.median(ours), statistics.median(theirs)
    return [Row(case.name, "ghost", cost, "Opacus, ghost clipping", peer_cost, target)]


def rows(small: bool = False, opacus: str | None = None) -> Iterator[Row]:
    """All models, one after the other; against Opacus if there is an interpreter that has it."""
    if small:
        sequences = models.transformer(4, 8, 16, 1, 16)
        yield from compared(models.perceptron(8), (4,), target=1 / 1.2)
        yield from compared(models.convolutional(4), (), target=None, with_optax=False)
        yield from compared(sequences, (), target=0.5, with_optax=False)
        yield _memory(sequences)
        yield from compared(models.factorization(50, 20, 8), (), target=None, with_optax=False)
        yield from compared(models.bags(40, 4, 12), (), target=None, with_optax=False)
        return
    accelerator = jax.default_backend() != "cpu"
    if opacus is not None and not accelerator:
        yield from beside_opacus(models.perceptron(), "perceptron", opacus, None)
        yield from beside_opacus(models.convolutional(), "convolutional", opacus, 1.0)
    many = (None, 64) if accelerator else (8, 64)
    sequences = models.transformer()
    yield from compared(models.perceptron(), many, target=1 / 1.2)
    yield from compared(models.convolutional(), many, target=None)
    yield from compared(sequences, many, target=0.5)
    yield _memory(sequences)
    for users, items in ((1_000, 500), (100_000, 50_000)):
        few = users == 1_000
        case = models.factorization(users, items)
        yield from compared(case, (None,) if few else (), target=None, with_optax=few)
    for table in (1_000, 20_000):
        yield from compared(models.bags(table), (4, 16, 64), target=None, with_optax=False)
    if accelerator:
        large = models.transformer(64, 256, 512, 4, 8192)
        yield from compared(large, (16,), target=0.5, with_optax=False)
