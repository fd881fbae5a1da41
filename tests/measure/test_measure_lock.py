"""One run at a time on a device."""

import threading

import pytest

from profiling.case import InputError
from profiling.measure import lock


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def test_a_free_device_is_taken_without_a_word():
    """Nothing is said where nobody waits."""
    said = []
    with lock.device_lock("cpu", said.append):
        pass
    assert said == []


def test_the_second_says_that_it_waits_and_then_has_its_turn():
    """The second run waits for the first, says so, and goes on when the first has ended."""
    waiting, order = threading.Event(), []

    def second():
        with lock.device_lock("GPU-1", lambda text: (order.append(text), waiting.set())):
            order.append("second")

    thread = threading.Thread(target=second)
    with lock.device_lock("GPU-1", order.append):
        thread.start()
        assert waiting.wait(30)
        order.append("first")
    thread.join(30)
    assert "waiting" in order[0]
    assert order[1:] == ["first", "second"]


def test_devices_have_locks_of_their_own():
    """Two GPUs are measured side by side."""
    with lock.device_lock("GPU-1", pytest.fail), lock.device_lock("GPU-2", pytest.fail):
        pass


def test_names_stay_in_the_folder(tmp_path):
    """A name cannot lead out of the temporary folder."""
    assert lock.lock_path("../cuda:0").parent == tmp_path


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    """One sentence, not a traceback."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "file" / "below"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="lock file"), lock.device_lock("cpu", pytest.fail):
        pass
