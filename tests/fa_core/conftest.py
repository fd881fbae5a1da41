"""Shared by the tests of fa_core."""

import pytest
import torch


@pytest.fixture
def poisoned_outputs(monkeypatch):
    """Every buffer that a launcher allocates starts as NaN, so that an unwritten element shows."""

    def poison(allocate):
        def allocated(*args, **kwargs):
            x = allocate(*args, **kwargs)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return allocated

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poison(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(torch.Tensor.new_empty))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a machine with a GPU these tests run the kernels there: `-m gpu` means all but test_aot."""
    if torch.cuda.is_available():
        for item in items:
            if "tests/fa_core/" in item.path.as_posix() and item.path.name != "test_aot.py":
                item.add_marker(pytest.mark.gpu)
