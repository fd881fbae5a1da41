"""The doctor: looks at everything, breaks on nothing, and tells how to get what is missing."""

import sys

from profiling.measure import doctor


def findings():
    """What the doctor finds here, by name."""
    return {finding.what: finding for finding in doctor.examine()}


def test_everything_is_looked_at():
    """Each thing that decides what can be measured has a line."""
    found = findings()
    assert {"python", "cpu", "torch", "triton", "psutil", "nvml", "ncu", "c++", "cpu memory"} <= set(found)
    assert all(finding.seen for finding in found.values())


def test_without_torch(monkeypatch):
    """Where torch is missing the doctor still answers, and says how to get it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    found = findings()
    assert found["torch"].state == "no"
    assert "pip install" in found["torch"].remedy
    assert found["gpu"].state == "unsure"


def test_counters_for_the_administrator_only(monkeypatch, tmp_path):
    """The driver's own parameter decides, and the remedy is its name."""
    parameters = tmp_path / "params"
    monkeypatch.setattr(doctor, "_PARAMETERS", parameters)
    assert doctor._permission().state == "unsure"
    parameters.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in doctor._permission().remedy
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert doctor._permission().state == "yes"
    parameters.write_text("EnableMSI: 1\n")
    assert doctor._permission().state == "unsure"
