"""A run without workers: what stands in for them, and small sweeps."""

import contextlib
from typing import ClassVar

from profiling.records import Measurement
from tests.synthetic import synthetic_environment

SWEEP = """
name = "tiny"
[protocol]
clocks = ["wall", "device"]
processes = 1
[[group]]
backends = ["naive", "naive/fill", "tiled"]
seq_len = [16, 32]
head_dim = [8]
"""

CROSSING = """
name = "crossing"
[protocol]
clocks = ["wall"]
processes = 1
[[group]]
backends = ["naive", "tiled"]
seq_len = [64, 1024]
head_dim = [8]
"""


class StandIn:
    """Measures without workers. `environment` is where it claims to run, `stop_at` the N of its Ctrl-C."""

    environment = synthetic_environment(device_kind="cpu", device_name="stand-in", git_commit="")
    stop_at = None
    measured: ClassVar[list] = []

    def __init__(self, device, protocol, clocks, **options):
        self.clocks = clocks
        self.timed_s = 0.25

    def start(self):
        """The environment."""
        return self.environment

    @contextlib.contextmanager
    def rehearsal(self, cases):
        """There is nothing to load."""
        yield

    def measure(self, block):
        """A row for each case."""
        if block[0].seq_len_q == self.stop_at:
            raise KeyboardInterrupt
        self.measured.extend(block)
        return [Measurement(case=case, status="ok") for case in block]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
