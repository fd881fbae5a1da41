"""Compiling ahead: which cases stand for which, and that a worker finds what was compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fa_core import hopper
from fa_core.kernels import tuning
from fa_core.launch import Problem
from profiling.case import Case
from profiling.measure.precompile import Precompiler, representatives
from profiling.records import Environment

H200 = Environment(
    device_kind="cuda", device_name="H200", compute_capability="9.0", sram_bytes=232448, sm_count=132
)
pytest.importorskip("triton")


def flash(n: int, **fields: object) -> Case:
    """A square flash case, 16 heads of 64."""
    shape = {"heads": 16, "kv_heads": 16, "seq_len_q": n, "seq_len_k": n, "head_dim": 64, "head_dim_v": 64}
    return Case.model_validate({"backend": "flash", **shape, **fields})


def test_lengths_that_leave_no_rest_are_compiled_once():
    """N = 1024 to 16384 and any batch are one set of kernels; another mask, width or rest is another."""
    wide = {"head_dim": 128, "head_dim_v": 128}
    same = [flash(n, batch=b, **wide) for n in (1024, 4096, 16384) for b in (1, 4)]
    assert len(representatives(same)) == 1
    others = [flash(1024), flash(1000, **wide)]
    others += [flash(1024, **wide, **more) for more in ({"causal": True}, {"direction": "bwd"})]
    assert len(representatives([*same, *others])) == 5


def test_each_name_of_flash_is_compiled():
    """`flash_hopper`'s split backward too; the portable kernels know no other tile for longer sequences.

    And both of them for `flash`, where some forwards of a plan are too short for those of sm_90.
    """
    names = ("flash", "flash_portable", "flash_hopper")
    plan = [flash(n, backend=name) for name in names for n in (256, 16384)]
    plan += [flash(256, backend="flash_hopper", direction="bwd", variant=v) for v in ("", "deterministic")]
    found = [(c.backend, c.direction, c.variant) for c in representatives(plan)]
    assert found.count(("flash_portable", "fwd", "")) == 1
    assert found.count(("flash_hopper", "fwd", "")) == 2
    assert {("flash_hopper", "bwd", ""), ("flash_hopper", "bwd", "deterministic")} <= set(found)


@pytest.mark.parametrize("d", [40, 64, 72, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_that_choose_another_tile_are_compiled_apart(monkeypatch, d, causal):
    """On sm_90, of the lengths 256 to 32768: as many sets as there are tiles."""
    lengths = [2**i for i in range(8, 16)]
    cases = [flash(n, backend="flash_hopper", head_dim=d, head_dim_v=d, causal=causal) for n in lengths]
    tiles = set()
    for n in lengths:
        q = torch.empty(2, 16, n, d, dtype=torch.bfloat16, device="meta")
        band = (None, 0) if causal else (None, None)
        problem = Problem(q, q, q, *(None,) * 6, 1.0, *band, False, 0.0)
        monkeypatch.setattr(tuning, "elsewhere", tuning.Gpu(232448, (9, 0), 132))
        tiles.add(hopper.forward_tile(problem)._replace(persistent=True))  # that is a matter of the grid
    assert len(representatives(cases)) == len(tiles)


def test_only_what_is_ours_is_compiled():
    """PyTorch's kernels come compiled, and a compiler of its own cannot be run ahead of its inputs."""
    backends = ("naive", "sdpa_flash", "naive_compiled", "flex", "tiled")
    assert representatives([flash(1024, backend=name) for name in backends]) == []


def test_what_takes_longest_comes_first():
    """The backward of wide heads must not be the last to start."""
    found = representatives(
        [flash(512), flash(512, direction="bwd"), flash(512, direction="bwd", head_dim=256)]
    )
    assert [(c.direction, c.head_dim) for c in found] == [("bwd", 256), ("bwd", 64), ("fwd", 64)]


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_a_window_counts_where_it_hides_something(n, left):
    """A window over everything is no window to the compiler; one that hides a key is."""
    wide = {"head_dim": 128, "head_dim_v": 128}
    both = representatives([flash(8192, **wide), flash(n, window_left=left, **wide), flash(n, **wide)])
    plain = representatives([flash(8192, **wide), flash(n, **wide)])
    assert len(both) == len(plain) + (left < n or n <= 64)


def test_children_compile_and_a_later_process_compiles_nothing(tmp_path, monkeypatch):
    """For an H200 that is not there: the forwards of a plan lie in Triton's cache afterwards, the portable
    one of short sequences too.
    """
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with Precompiler([flash(512), flash(1024), flash(4096), flash(512, causal=True)], 2) as ahead:
        assert len(ahead.cases) == 3
        assert ahead.compile(H200)
    made = {path.stem for path in tmp_path.rglob("*.cubin")}
    assert made == {"hopper_forward_kernel", "forward_kernel"}
    code = (
        "import torch\n"
        "from fa_core import attention\n"
        "from fa_core.ahead import compiling_for\n"
        "from fa_core.kernels.tuning import Gpu\n"
        "from profiling.measure.compiling import CompileClock\n"
        "q = torch.empty(2, 16, 1792, 64, dtype=torch.bfloat16, device='meta')\n"
        "with compiling_for(Gpu(232448, (9, 0), 132)), CompileClock().watch() as clock:\n"
        "    attention(q, q, q, impl='flash')\n"
        "    known = clock.ms\n"
        "    half = q.half()\n"
        "    attention(half, half, half, impl='flash')\n"
        "print(known, clock.ms)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    known, new = map(float, told.stdout.split())
    assert known == 0.0
    assert new > 0.0


def test_children_compile_the_kernels_for_sm_90(tmp_path, monkeypatch):
    """Forward and both backwards of `flash_hopper`: its kernels by name, in Triton's cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    plan = [flash(512, backend="flash_hopper", direction="bwd", variant=v) for v in ("", "deterministic")]
    with Precompiler(plan, 2) as ahead:
        assert ahead.compile(H200)
    made = {path.stem for path in tmp_path.rglob("*.cubin")}
    assert made >= {"hopper_forward_kernel", "hopper_backward_kernel", "hopper_dq_kernel", "finish_kernel"}


def test_a_child_that_dies_or_hangs_costs_no_run(tmp_path):
    """The run goes on: the workers compile what the children did not."""
    dies = (sys.executable, "-c", "raise SystemExit(3)")
    with Precompiler([flash(512)], 1, command=dies) as ahead:
        assert not ahead.compile(H200)
    hangs = (sys.executable, "-c", "import time; time.sleep(600)")
    began = time.monotonic()
    with Precompiler([flash(512)], 1, command=hangs) as ahead:
        assert not ahead.compile(H200, limit_s=0.5)
        (child,) = ahead._children
    assert child.poll() is not None
    assert time.monotonic() - began < 60


def test_children_take_the_tiles_that_workers_take(tmp_path, monkeypatch):
    """Autotuning is no more for them than for a worker: their kernels would be others."""
    monkeypatch.setenv("FLASHSCOPE_AUTOTUNE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with Precompiler([flash(512)], 1) as ahead:
        assert ahead.compile(H200)
    assert list(tmp_path.rglob("*.cubin"))


def test_children_end_with_their_parent(tmp_path):
    """A run that is killed leaves nobody compiling behind."""
    code = (
        "import os, signal, sys\n"
        "from profiling.measure.children import die_with_parent\n"
        "if os.fork():\n"
        "    os.read(0, 1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "die_with_parent()\n"
        "print(os.getpid(), flush=True)\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    parent.stdin.write("x")
    parent.stdin.flush()
    assert parent.stdout.read() == ""  # its end is the child's: nobody else holds the pipe
    parent.wait()


def test_nothing_to_compile_starts_nobody():
    """A plan without our kernels has no children."""
    with Precompiler([flash(512, backend="naive")], 8) as ahead:
        assert ahead._children == []
        assert ahead.compile(H200)


def test_the_parent_needs_no_torch():
    """It is part of the command line's own process."""
    code = "import sys; sys.modules['torch'] = None; import profiling.measure.precompile"
    subprocess.run([sys.executable, "-c", code], check=True)
