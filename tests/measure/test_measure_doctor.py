"""The doctor: looks at everything, breaks on nothing, and tells how to get what is missing."""

import sys

import pytest

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


@pytest.mark.parametrize(("capabilities", "state"), [("00000000a80425fb", "no"), ("000001ffffffffff", "yes")])
def test_counters_for_the_administrator_only(monkeypatch, tmp_path, capabilities, state):
    """The driver's own parameter decides and the remedy is its name; who has CAP_SYS_ADMIN needs none."""
    parameters, status = tmp_path / "params", tmp_path / "status"
    monkeypatch.setattr(doctor, "_PARAMETERS", parameters)
    monkeypatch.setattr(doctor, "_STATUS", status)
    status.write_text(f"Name:\tpython\nCapPrm:\t0\nCapEff:\t{capabilities}\n")
    assert doctor._permission().state == "unsure"
    parameters.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    found = doctor._permission()
    assert found.state == state
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in found.remedy) == (state == "no")
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert doctor._permission().state == "yes"
    parameters.write_text("EnableMSI: 1\n")
    assert doctor._permission().state == "unsure"


def test_nsight_compute(monkeypatch):
    """Its version where it is there, and how to get it where it is not."""
    monkeypatch.setattr(doctor.ncu, "find", lambda: None)
    (found,) = doctor._counters([object()])
    assert (found.state, "install" in found.remedy) == ("no", True)
    monkeypatch.setattr(doctor.ncu, "find", lambda: "/bin/ncu")
    monkeypatch.setattr(doctor.ncu, "version", lambda tool: "2025.3.1.0")
    assert [x.what for x in doctor._counters([object()])] == ["ncu", "counters"]
    assert doctor._counters([object()])[0].seen == "2025.3.1.0"
