"""Shared by the tests of fa_core."""

import pytest
import torch

from fa_core.kernels import tuning


@pytest.fixture(autouse=True, scope="session")
def _patched_once():
    """Halve the interpreter's time, which goes into swapping its language in at each call of a function.

    Once a launch is enough, for each of the modules that the functions know the language by.
    """
    if torch.cuda.is_available():
        yield
        return
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):  # another version of Triton: leave it alone
        yield
        return
    patch = interpreter._patch_lang
    swapped = set()

    def patch_once(fn):
        languages = tuple(name for name in ("tl", "core") if name in fn.__globals__)
        if languages in swapped:
            return None
        scope = patch(fn)
        if not swapped:  # the launch itself: what it calls comes before it is undone
            undo = scope.restore

            def restore():
                swapped.clear()
                undo()

            scope.restore = restore
        swapped.add(languages)
        return scope

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
        yield


@pytest.fixture
def interpreter_tiles(monkeypatch):
    """Under the interpreter fp32 runs on the tiles of fp16: it costs by the operation, not by the element."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(tuning, "_SINGLE", tuning._HALF)
        tuning._fitted.cache_clear()
    yield
    tuning._fitted.cache_clear()


@pytest.fixture
def poisoned_outputs(monkeypatch, interpreter_tiles):
    """Every buffer that a launcher allocates starts as NaN, so that an unwritten element shows."""
    import torch._dynamo  # now: it keeps PyTorch's functions as it finds them, and compiled tests come later

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
