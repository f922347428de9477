"""Programs compiled for chips that are not there: bytes and kernels of ours, of peers, of the least there is.

    python -m experiments.benchmarks.aot h100            the table, in the environment of that chip
    python -m experiments.benchmarks.aot v5e --solvers   every row of the table of recorded releases
    python -m experiments.benchmarks.aot v5e --solvers 4 the same with users over four chips
    python -m experiments.benchmarks.aot h100 --check    rc 1 if a program of ours exceeds its budget
    python -m experiments.benchmarks.aot h100 --write    writes the budget anew

``make bench-aot`` makes the environments and runs both chips with ``--check``. The budget file
(``aot_budget.json``) holds bytes and kernels of our programs, of programs for several chips their exchanges,
and ``null`` for a program that refuses the chip, so that a change that costs traffic shows in its diff.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax_privacy import clipping as peer_clipping
from jax_privacy import noise_addition

from dpsco_jax import transforms
from dpsco_jax.geometry import clipping
from experiments.benchmarks import chips, ghost_steps, models, peers, solver_steps, sweep
from experiments.benchmarks.solver_steps import Program

BUDGET = Path(__file__).with_name("aot_budget.json")
MORE_BYTES, MORE_KERNELS = 1.02, 2
"""How far above its budget a program may be: versions of XLA that differ in the last place move kernels."""


class Work(NamedTuple):
    """One piece of work and the programs that do it: ours first, ``"least"`` what cannot be left out."""

    name: str
    programs: dict[str, Program]


def _clipping(rows: int, dim: int, dtype: Any) -> Work:
    given = (jax.ShapeDtypeStruct((rows, dim), dtype),)
    everyone = jnp.ones(rows, bool)
    peer = peer_clipping.clipped_fun(
        lambda row: row, l2_clip_norm=1.0, keep_batch_dim=False, dtype=jnp.float32
    )
    programs = {
        "ours": lambda x: clipping.sum_of_clipped(x, 1.0, everyone),
        "jax_privacy": peer,
        "optax": lambda x: optax.per_example_global_norm_clip([x], 1.0)[0],
        "least": lambda x: jnp.sum(x, axis=0, dtype=jnp.float32),
    }
    name = f"clipped sum, {rows} x {dim}, {jnp.dtype(dtype).name}"
    return Work(name, {by: (program, given) for by, program in programs.items()})


def _noise(size: int = 2**25) -> Work:
    given = (jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((size,), jnp.float32))

    def ours(key: Any, total: Any) -> Any:
        private = transforms.privatize(transforms.summed_contributions(1.0, 100), key, 1.0)
        return private.update(total, private.init(total), total, clipped_to=1.0)

    def peer(key: Any, total: Any) -> Any:
        private = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=key)
        return private.update(total, private.init(total))

    def least(key: Any, total: Any) -> Any:
        return total + jax.random.normal(key, total.shape)

    programs = {"ours": ours, "jax_privacy": peer, "least": least}
    return Work(f"noise on {size} numbers", {by: (f, given) for by, f in programs.items()})


def _ghost(case: models.Case, microbatch: int | None = None) -> Work:
    numbers = {"clip_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1}
    steps = {
        "ours": ghost_steps.ghost_step(case),
        "jax_privacy": peers.jax_privacy_step(
            case.loss, case.params, num_users=case.number, microbatch_size=microbatch, **numbers
        ),
        "optax": peers.optax_step(case.loss, case.params, **numbers),
        "without privacy": ghost_steps.plain_step(case),
    }
    return Work(
        f"step of {case.name}",
        {by: (step, (state, case.batch)) for by, (step, state) in steps.items()},
    )


def _sweep() -> Work:
    function, given = sweep.ours()
    _, noise, data = given
    batch = (data.items.features[:, 0], data.items.label[:, 0])
    programs = {
        "ours": (function, given),
        "jax_privacy, one run": (sweep.peer_run, (noise[0], batch)),
    }
    return Work("sweep, 16 noise levels x 16 seeds x 300 steps", programs)


def works() -> Iterator[Work]:
    """All of them."""
    yield _clipping(4096, 16_384, jnp.float32)
    yield _clipping(65_536, 1024, jnp.float32)
    yield _clipping(4096, 16_384, jnp.bfloat16)
    yield _noise()
    yield _ghost(models.perceptron())
    yield _ghost(models.convolutional())
    yield _ghost(models.transformer())
    yield _ghost(models.factorization(1000, 500))
    yield _ghost(models.transformer(64, 256, 512, 4), microbatch=16)
    yield _sweep()


def solvers(only: str) -> Iterator[tuple[str, bool, Program]]:
    """Every way of running a private solver: its name, whether it asks for float64, and its program."""
    from tests.solvers.private_table import ROWS

    for row in ROWS:
        if only in row.name:
            with jax.enable_x64(row.float64):
                plan = row.plan()

            def run(key: Any, data: Any, row: Any = row, plan: Any = plan) -> Any:
                return row.solve(key, plan, data).params

            yield row.name, row.float64, (run, (jax.random.key(0), row.data()))


def _said(found: chips.Figures, chip: str) -> str:
    inside = f" + {found.in_loops} a turn" if found.in_loops else ""
    turn = f" ({found.megabytes_in_loops:,.1f} of a turn)" if found.in_loops else ""
    sent = "".join(f", {number} {kind}" for kind, number in found.collectives.items())
    return (
        f"{found.megabytes:9,.1f} MB{turn}  {found.kernels:4d}{inside} kernels"
        f"  {found.scratch:8,.1f} MB scratch  {found.microseconds(chip):8,.0f} µs"
        f"  compiled in {found.seconds:.1f} s{sent}"
    )


def _budgeted(found: chips.Figures | None, parts: int) -> dict[str, float] | None:
    """What the budget says of a program: of one that refuses the chip nothing, of several chips exchanges."""
    if found is None or parts > 1:
        return found and dict(found.collectives)
    launched = found.kernels + found.in_loops
    return {"megabytes": round(found.megabytes, 3), "kernels": launched}


def _within(found: chips.Figures | None, allowed: dict[str, float] | None, parts: int) -> bool:
    takes = _budgeted(found, parts)
    if takes is None or allowed is None or parts > 1:
        return takes == allowed
    return (
        takes["megabytes"] <= MORE_BYTES * allowed["megabytes"] + 0.01
        and takes["kernels"] <= allowed["kernels"] + MORE_KERNELS
    )


def _read() -> dict[str, Any]:
    return json.loads(BUDGET.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.aot")
    parser.add_argument("chip", choices=sorted(chips.BANDWIDTH))
    parser.add_argument("--only", default="", help="what has this text in its name")
    parser.add_argument(
        "--solvers",
        metavar="CHIPS",
        type=int,
        nargs="?",
        const=1,
        help="rows of the table of releases instead, users spread over so many chips: 1 if left out, or 4",
    )
    parser.add_argument("--check", action="store_true", help="fail where a budget is exceeded")
    parser.add_argument(
        "--write", action="store_true", help="write the budget of what was compiled"
    )
    options = parser.parse_args()
    parts = options.solvers or 1
    where = options.chip if parts == 1 else f"{options.chip}, {parts} chips"
    allowed, failed = _read().get(where, {}), []

    def compiled(name: str, program: Program) -> None:
        function, given = program
        # Of users who are no multiple of four two chips hold the halves.
        cut = math.gcd(parts, len(jax.tree.leaves(given[-1])[0])) if parts > 1 else 1
        try:
            found = chips.compiled(function, *given, chip=options.chip, parts=cut)
            print(f"{name:66} {_said(found, options.chip)}", flush=True)
        except Exception as error:
            if not (isinstance(error, NotImplementedError) and "IEEE float64" in str(error)):
                failed.append(name)
                print(f"{name}: does not compile: {str(error)[:300]}", flush=True)
                return
            found = None
            print(f"{name}: refuses a {options.chip}, whose float64 is none", flush=True)
        if not (name.endswith(": ours") or options.solvers):
            return
        if options.check and not (name in allowed and _within(found, allowed[name], parts)):
            failed.append(name)
            print(f"{name}: not within its budget, {allowed.get(name, 'of nothing')}", flush=True)
        if options.write:
            # At once, and of the file as it is: other runs may have written meanwhile.
            budget = _read()
            budget.setdefault(where, {})[name] = _budgeted(found, parts)
            new = BUDGET.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(budget, indent=1, sort_keys=True) + "\n")
            new.replace(BUDGET)

    # The first program pays for the start of the compiler.
    chips.compiled(jnp.sin, jnp.zeros(8), chip=options.chip)
    if options.solvers:
        for name, wide, program in solvers(options.only):
            with jax.enable_x64(wide):
                compiled(name, program)
    else:
        for work in works():
            for by, program in work.programs.items():
                if options.only in (name := f"{work.name}: {by}"):
                    compiled(name, program)
        for part, program in solver_steps.parts():
            if options.only in f"a step: {part}":
                compiled(f"a step: {part}", program)
        for case in solver_steps.CASES:
            if options.only in (name := f"solver {case.name}: ours"):
                with jax.enable_x64(case.wide):
                    compiled(name, case.program())
    print(f"failed: {', '.join(failed)}" if failed else "all compiled")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
