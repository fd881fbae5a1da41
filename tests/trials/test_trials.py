"""Kernels under trial compile for sm_90 with the Triton at hand; what they compute is for a GPU to say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Triton's interpreter replaces the compiler in the whole process, so a child without it compiles.
SCRIPT = """
from run import Kind, compile_kind
print(compile_kind(Kind({kind})))
"""


@pytest.mark.parametrize(
    "kind",
    [
        "'bf16', 64, 4, 4, 256, 256, None, None",
        "'fp16', 128, 4, 2, 300, 300, None, 0",
        "'bf16', 256, 4, 4, 256, 300, 100, 30",
    ],
)
def test_kernels_under_trial_compile(kind):
    """Forward, fused and split backward, with and without edges and grouped heads: no compiler error."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(kind=kind)],
        cwd=HERE, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == ""
