"""The real worker, killed as soon as it has said a step that a case's backend names: `x:<step>_kill`."""

import os
import signal

from profiling.measure import block, worker

_whole = block._BlockRun.__init__


def _init(self, bench, request, stage):
    def say(index, name):
        stage(index, name)
        if index is not None and request.cases[index].backend.endswith(f":{name.replace(' ', '_')}_kill"):
            os.kill(os.getpid(), signal.SIGKILL)

    _whole(self, bench, request, say)


if __name__ == "__main__":
    block._BlockRun.__init__ = _init
    worker.main()
