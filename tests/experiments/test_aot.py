"""Programs that are compiled for chips that are not there: what is counted, and that budgets hold (slow)."""

import os
import pathlib
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest
from jax._src.lib import xla_client

from experiments.benchmarks import chips

ROOT = pathlib.Path(__file__).parents[2]


def _counted(text):
    return chips._launched(textwrap.dedent(text))


def test_instructions_that_run_are_kernels_and_those_inside_of_fusions_are_not():
    kernels = _counted("""\
        HloModule jit_f

        %fused_computation (p.1: f32[8]) -> f32[8] {
          %p.1 = f32[8]{0} parameter(0)
          %m = f32[8]{0} multiply(%p.1, %p.1)
          ROOT %a = f32[8]{0} add(%m, %p.1)
        }

        %region_0.1 (x: f32[], y: f32[]) -> f32[] {
          %x = f32[] parameter(0)
          %y = f32[] parameter(1)
          ROOT %s = f32[] add(%x, %y)
        }

        ENTRY %main.5 (p.0: f32[8]) -> (f32[8], f32[4]) {
          %p.0 = f32[8]{0} parameter(0)
          %c = f32[] constant(0)
          %fusion = f32[8]{0} fusion(%p.0), kind=kLoop, calls=%fused_computation
          %b = f32[2,4]{1,0} bitcast(%fusion)
          %reduce = f32[4]{0} reduce(%b, %c), dimensions={0}, to_apply=%region_0.1
          %cs = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%fusion)
          %cd = f32[8]{0} copy-done(%cs)
          ROOT %t = (f32[8]{0}, f32[4]{0}) tuple(%cd, %reduce)
        }
        """)
    assert kernels == (3, 0, {}, [], {"once": 0})


def test_bodies_of_loops_are_apart_and_branches_and_calls_are_where_they_stand():
    kernels = _counted("""\
        HloModule jit_f

        %branch (a: f32[8]) -> f32[8] {
          %a = f32[8]{0} parameter(0)
          ROOT %n = f32[8]{0} negate(%a)
        }

        %other (b: f32[8]) -> f32[8] {
          %b = f32[8]{0} parameter(0)
          %e = f32[8]{0} exponential(%b)
          ROOT %l = f32[8]{0} log(%e)
        }

        %called (d: f32[8]) -> f32[8] {
          %d = f32[8]{0} parameter(0)
          ROOT %q = f32[8]{0} sqrt(%d)
        }

        %body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
          %s = (s32[], f32[8]{0}) parameter(0)
          %i = s32[]{:T(128)S(6)} get-tuple-element(%s), index=0
          %v = f32[8]{0} get-tuple-element(%s), index=1
          %one = s32[] constant(1)
          %next = s32[]{:T(128)S(6)} add(%i, %one)
          %w = f32[8]{0} conditional(%i, %v, %v), branch_computations={%branch, %other}
          ROOT %r = (s32[], f32[8]{0}) tuple(%next, %w)
        }

        %test (s.1: (s32[], f32[8])) -> pred[] {
          %s.1 = (s32[], f32[8]{0}) parameter(0)
          %i.1 = s32[] get-tuple-element(%s.1), index=0
          %most = s32[] constant(9)
          ROOT %less = pred[]{:T(512)S(6)} compare(%i.1, %most), direction=LT
        }

        ENTRY %main (p: f32[8]) -> f32[8] {
          %p = f32[8]{0} parameter(0)
          %zero = s32[] constant(0)
          %c = f32[8]{0} call(%p), to_apply=%called
          %start = (s32[], f32[8]{0}) tuple(%zero, %c)
          %loop = (s32[], f32[8]{0}) while(%start), condition=%test, body=%body
          %end = f32[8]{0} get-tuple-element(%loop), index=1
          ROOT %k = f32[8]{0} conditional(%zero, %end, %end), branch_computations={%branch, %other}
        }
        """)
    assert kernels[:4] == (1 + 3, 3, {}, ["%body"])


def test_collectives_are_counted_once_wherever_they_are():
    _, in_loops, collectives, _, _ = _counted("""\
        HloModule jit_f

        %add (x: f32[], y: f32[]) -> f32[] {
          %x = f32[] parameter(0)
          %y = f32[] parameter(1)
          ROOT %s = f32[] add(%x, %y)
        }

        %body (s: (f32[8])) -> (f32[8]) {
          %s = (f32[8]{0}) parameter(0)
          %v = f32[8]{0} get-tuple-element(%s), index=0
          %moved = f32[8]{0} collective-permute(%v), source_target_pairs={{0,1},{1,0}}
          ROOT %r = (f32[8]{0}) tuple(%moved)
        }

        %test (s.1: (f32[8])) -> pred[] {
          %s.1 = (f32[8]{0}) parameter(0)
          ROOT %yes = pred[] constant(true)
        }

        ENTRY %main (p: f32[8]) -> f32[8] {
          %p = f32[8]{0} parameter(0)
          %started = f32[8]{0} all-reduce-start(%p), replica_groups={{0,1}}, to_apply=%add
          %sum = f32[8]{0} all-reduce-done(%started)
          %start = (f32[8]{0}) tuple(%sum)
          %loop = (f32[8]{0}) while(%start), condition=%test, body=%body
          %end = f32[8]{0} get-tuple-element(%loop), index=0
          ROOT %whole = f32[8]{0} all-reduce(%end), replica_groups={{0,1}}, to_apply=%add
        }
        """)
    assert in_loops == 1
    assert collectives == {"all-reduce": 2, "collective-permute": 1}


def test_of_what_a_fusion_gathers_from_the_rows_that_it_takes_are_read():
    *_, unread = _counted("""\
        HloModule jit_f

        %fused_computation (p.1: bf16[1000,8], p.2: s32[4], p.3: bf16[1000], p.4: s32[500]) -> bf16[4,8] {
          %p.1 = bf16[1000,8]{1,0} parameter(0)
          %p.2 = s32[4]{0} parameter(1)
          %p.3 = bf16[1000]{0} parameter(2)
          %p.4 = s32[500]{0} parameter(3)
          %bits = pred[2]{0} constant({0, 1})
          %picked = pred[500]{0} gather(%bits, %p.4), offset_dims={}, slice_sizes={1}
          %rows = bf16[4,8]{1,0} gather(%p.1, %p.2), offset_dims={1}, slice_sizes={1,8}
          %again = bf16[4,8]{1,0} gather(%p.1, %p.2), offset_dims={1}, slice_sizes={1,8}
          %some = bf16[4]{0} gather(%p.3, %p.2), offset_dims={}, slice_sizes={1}
          %all = bf16[] reduce(%p.3, %zero), dimensions={0}, to_apply=%region
          ROOT %sum = bf16[4,8]{1,0} add(%rows, %again)
        }

        ENTRY %main (p: bf16[1000,8], i: s32[4], w: bf16[1000], j: s32[500]) -> bf16[4,8] {
          %p = bf16[1000,8]{1,0} parameter(0)
          %i = s32[4]{0} parameter(1)
          %w = bf16[1000]{0} parameter(2)
          %j = s32[500]{0} parameter(3)
          ROOT %fusion = bf16[4,8]{1,0} fusion(%p, %i, %w, %j), kind=kLoop, calls=%fused_computation
        }
        """)
    # The weights are summed as well as gathered: all of them are read, and all numbers of rows.
    assert unread == {"once": 1000 * 8 * 2 - 2 * 4 * 8 * 2}


def test_a_model_of_seconds_is_bytes_over_bandwidth_and_a_constant_for_a_kernel():
    found = chips.Figures(3350.0, 10, 5, 0.0, 0.0, {}, 1.0)
    assert found.microseconds("h100") == pytest.approx(1000.0 + 15 * 6.0)


def test_a_turn_is_a_program_of_its_own():
    def run(rows, times):
        return jax.lax.fori_loop(
            0, times, lambda i, w: jnp.tanh(w + rows[i]), jnp.sum(rows, axis=0)
        )

    text = jax.jit(run).lower(jnp.ones((300, 1000)), 3).compile().as_text()
    loops = chips._launched(text)[3]
    (turn,) = (chips._turn(text, body) for body in loops)
    module = xla_client.hlo.hlo_module_from_text(turn)
    # A row and the sum are read, the sum is written; what comes besides is smaller than another row.
    assert 3 * 4e-3 <= chips._megabytes(module) < 20 * 4e-3


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["", "--solvers", "--solvers 4"])
@pytest.mark.parametrize("chip", ["h100", "v5e"])
def test_programs_are_within_their_budgets(chip, rows):
    # A target of its own, so that no package is fetched for the other chip.
    made = subprocess.run(
        ["make", f"PYTHON={sys.executable}", f".aot-{chip}/.installed"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no environment for {chip} can be made here: {made.stderr[-300:]}")
    given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    run = subprocess.run(
        ["make", f"bench-aot-{chip}", f"AOT={rows}"],
        cwd=ROOT, capture_output=True, text=True, env=given,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
