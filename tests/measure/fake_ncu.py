"""Stands in for Nsight Compute: runs what it is to profile, and writes a report of the calls it noted.

`$FAKE_NCU` says what is wrong with this one: `permission`, `old`, `lossy` (a kernel is missing in the
table), `mute` (no table if what it profiled failed), `error` (it counts nothing, and says why).
"""

import csv
import json
import os
import subprocess
import sys

# Bytes read, written and through L2, tensor-pipe %, ns of each kernel of a call.
KERNELS = [(1000, 200, 5000, 80.0, 300), (30, 4, 600, 20.0, 100), (7, 1, 11, 0.0, 600)]
MARK = (0, 0, 32, 0.0, 1000)


def n_kernels(case):
    """How many kernels a call has: of `x:three` three, of naive three, of others one."""
    return 3 if case["backend"].endswith(("naive", "three")) else 1


def main():
    """Do what the tool would, and return its exit code."""
    mode = os.environ.get("FAKE_NCU", "")
    words = sys.argv[1:]
    if words == ["--version"]:
        print("Version 2025.3.1.0 (build 0)")
        return 0
    if words == ["--query-metrics"]:
        print("dram__bytes_read dram__bytes_write lts__t_bytes sm__pipe_tensor_cycles_active")
        print("gpu__time_duration")
        return 0
    if mode == "old":
        print("==ERROR== unrecognised option '--print-units'. Use --help for further details.")
        return 1
    log = words[words.index("--log-file") + 1]
    metrics = words[words.index("--metrics") + 1].split(",")
    child = words[words.index(log) + 1 :]
    print("==PROF== Connected to process 1")
    code = subprocess.run(child).returncode
    with open(child[-2], encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    with open(child[-1], encoding="utf-8") as file:
        notes = [json.loads(line) for line in file]
    kernels = []
    for note in notes:
        if note["what"] == "call":
            kernels.append(("spin_kernel(long)", MARK))
            kernels += [(f"k<{i}, 1>(int)", KERNELS[i]) for i in range(n_kernels(cases[note["index"]]))]
    with open(log, "w", encoding="utf-8", newline="") as file:
        if mode == "permission":
            file.write("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access ...\n")
            return 1
        if mode == "error":
            file.write("==ERROR== The GPU is too new.\n")
            return 1
        if mode == "mute" and code:
            file.write(f"==ERROR== The application returned an error code ({code}).\n")
            return code
        passes = "3 passes" if "none" in words else "1 pass"
        for i, (name, _) in enumerate(kernels):
            file.write(f'==PROF== Profiling "{name}" - {i}: 0%....50%....100% - {passes}\n')
        table = csv.writer(file, quoting=csv.QUOTE_ALL)
        table.writerow(["ID", "Process ID", "Kernel Name", *metrics])
        table.writerow(["", "", "", "byte", "byte", "byte", "%", "ns"])
        for i, (name, values) in enumerate(kernels[: -1 if mode == "lossy" else None]):
            table.writerow([i, 1, name, *(f"{x:,}" for x in values)])
        if code:
            file.write(f"==ERROR== The application returned an error code ({code}).\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
