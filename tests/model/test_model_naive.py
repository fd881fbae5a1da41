"""The models of the eager baseline, and of flash's memory, against what PyTorch really does when they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from profiling.case import Case
from profiling.model.memory import peak_bytes, retained_bytes
from profiling.model.naive import naive_passes

torch = pytest.importorskip("torch")

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from fa_core import naive_attention  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
VIEWS = ("view", "expand", "unsqueeze", "squeeze", "transpose", "alias", "detach", "slice", "promote_types")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recorded(NamedTuple):
    """Bytes read and written by operators, in order; the most storage alive, and that after the forward."""

    forward: list[tuple[str, int, int]]
    backward: list[tuple[str, int, int]]
    forward_peak: int
    retained: int
    peak: int


class Recorder(TorchDispatchMode):
    """Notes each operator's bytes and the storage that is alive after it, inputs known beforehand apart."""

    def __init__(self, *inputs: Any, on_cuda: bool = False) -> None:
        super().__init__()
        self.on_cuda = on_cuda
        self.kernels: list[tuple[str, int, int]] = []
        self.refs: dict[int, tuple[Any, int]] = {x.untyped_storage()._cdata: (None, 0) for x in inputs}
        self.peak = 0

    def alive(self) -> int:
        """Bytes of the storages that still exist."""
        self.refs = {key: ref for key, ref in self.refs.items() if ref[0] is None or not ref[0].expired()}
        return sum(size for _, size in self.refs.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = sum(_unique_bytes(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
        out = func(*args, **(kwargs or {}))
        results = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        for x in results:
            storage = x.untyped_storage()
            if storage._cdata not in self.refs:
                self.refs[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.alive())
        name = str(func)
        if self.on_cuda and name == "aten._softmax_backward_data.default":
            self.peak = max(self.peak, self.alive() + _unique_bytes(args[0]))  # the product it forms there
        if not any(name.startswith((f"aten.{view}.", f"aten._unsafe_{view}.")) for view in VIEWS):
            self.kernels += _kernels(name, args, read, sum(_unique_bytes(x) for x in results))
        return out


def _kernels(name: str, args: Any, read: int, written: int) -> list[tuple[str, int, int]]:
    """The kernels behind an operator on CUDA: some run two, some read less than they are given."""
    if name == "aten.masked_fill.Scalar":  # a copy, then a fill in place
        scores = _unique_bytes(args[0])
        return [("clone", scores, scores), (name, read, written)]
    if name == "aten.slice_backward.default":  # zeros, then a copy into a part of them
        return [("zeros", 0, written), (name, read, read)]
    if name == "aten._softmax_backward_data.default":  # the product of its arguments, then the softmax of it
        return [("product", read, _unique_bytes(args[0])), (name, read, written)]
    if name.startswith("aten.new_"):  # the argument lends its dtype and device only
        return [(name, 0, written)]
    return [(name, read, written)]


def _unique_bytes(x: Any) -> int:
    """Bytes of the distinct elements: an expanded dimension is read once."""
    n = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        n *= 1 if stride == 0 and size else size
    return n * x.element_size()


def record(case: Case, training: bool, on_cuda: bool = False) -> Recorded:
    """Run the eager baseline on the CPU under a `Recorder`, counting as there or as on CUDA."""

    def random(heads: int, n: int, d: int) -> Any:
        return torch.randn(case.batch, heads, n, d).to(DTYPES[case.dtype])

    q = random(case.heads, case.seq_len_q, case.head_dim).requires_grad_(training)
    k = random(case.kv_heads, case.seq_len_k, case.head_dim).requires_grad_(training)
    v = random(case.kv_heads, case.seq_len_k, case.head_dim_v).requires_grad_(training)
    dout = random(case.heads, case.seq_len_q, case.head_dim_v)
    with Recorder(q, k, v, dout, on_cuda=on_cuda) as recorder:
        out = naive_attention(q, k, v, causal=case.causal, variant=case.variant or "add")
        forward, forward_peak, retained = list(recorder.kernels), recorder.peak, recorder.alive()
        gradients = torch.autograd.grad(out, (q, k, v), dout) if training else ()
    assert len(gradients) == (3 if training else 0)
    return Recorded(forward, recorder.kernels[len(forward) :], forward_peak, retained, recorder.peak)


def make(**changes: Any) -> Case:
    """A small case whose sides all differ, so that no two tensors are the same size by accident."""
    base = {
        "backend": "naive",
        "variant": "add",
        "dtype": "bf16",
        "batch": 2,
        "heads": 3,
        "kv_heads": 3,
        "seq_len_q": 24,
        "seq_len_k": 40,
        "head_dim": 8,
        "head_dim_v": 16,
    }
    return Case(**(base | changes))


SHAPES = [
    {},
    {"heads": 6, "kv_heads": 2},
    {"seq_len_q": 40, "seq_len_k": 24},
    {"seq_len_q": 1},
    {"seq_len_k": 1},
    {"seq_len_q": 7, "seq_len_k": 7, "heads": 4, "kv_heads": 1, "head_dim": 80, "head_dim_v": 80},
]
# fp16 with an fp32 softmax is left out: the CPU widens in a kernel of its own where CUDA fuses.
RUNS = [
    (variant, dtype)
    for variant in ("add", "fill", "fp32_softmax")
    for dtype in ("bf16", "fp32", "fp64", "fp16")
    if (variant, dtype) != ("fp32_softmax", "fp16")
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("variant", "dtype"), RUNS)
def test_passes_are_the_kernels_that_ran(
    variant: str, dtype: str, shape: dict[str, int], causal: bool
) -> None:
    """Kernel by kernel, forward and backward, the model reads and writes what PyTorch's operators do."""
    case = make(variant=variant, dtype=dtype, causal=causal, **shape)
    ran = record(case, training=True)
    for direction, kernels in (("fwd", ran.forward), ("bwd", ran.backward)):
        passes = naive_passes(case.model_copy(update={"direction": direction}))
        modelled = [(p.read_bytes, p.write_bytes) for p in passes]
        assert modelled == [kernel[1:] for kernel in kernels], (
            direction,
            [p.name for p in passes],
            [kernel[0] for kernel in kernels],
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("variant", "dtype"), RUNS)
def test_memory_is_what_was_alive(variant: str, dtype: str, shape: dict[str, int], causal: bool) -> None:
    """Peak and retained bytes equal, to the byte, the storage PyTorch holds while the baseline runs."""
    case = make(variant=variant, dtype=dtype, causal=causal, **shape)
    assert peak_bytes(case) == peak_bytes(case, "cpu") == record(case, training=False).peak
    for kind in ("cpu", "cuda"):
        ran = record(case, training=True, on_cuda=kind == "cuda")
        assert retained_bytes(case) == ran.retained
        for direction in ("bwd", "fwd_bwd"):
            assert peak_bytes(case.model_copy(update={"direction": direction}), kind) == ran.peak


@pytest.mark.parametrize(
    "shape", [{}, {"heads": 4, "kv_heads": 2}, {"seq_len_k": 0}, {"seq_len_q": 0}], ids=str
)
def test_flash_memory_is_what_was_alive(shape: dict[str, int]) -> None:
    """`flash` holds its output, two fp32 rows and three gradients, to the byte, forward and backward.

    The second row (delta) lives inside the backward's operator, where a recorder of operators cannot see it.
    """
    pytest.importorskip("triton")
    from fa_core import attention

    case = make(backend="flash", variant="", dtype="fp16", **({"head_dim": 16, "head_dim_v": 32} | shape))
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def random(heads: int, n: int, d: int) -> Any:
        return torch.randn(case.batch, heads, n, d, device=device).to(torch.float16).requires_grad_()

    q = random(case.heads, case.seq_len_q, case.head_dim)
    k = random(case.kv_heads, case.seq_len_k, case.head_dim)
    v = random(case.kv_heads, case.seq_len_k, case.head_dim_v)
    dout = torch.ones(case.batch, case.heads, case.seq_len_q, case.head_dim_v, device=device).half()
    with Recorder(q, k, v, dout) as recorder:
        out = attention(q, k, v, impl="flash")
        assert recorder.peak == peak_bytes(case)
        assert recorder.alive() == retained_bytes(case)
        gradients = torch.autograd.grad(out, (q, k, v), dout)
    assert len(gradients) == 3
    delta = 4 * case.batch * case.heads * case.seq_len_q
    for direction in ("bwd", "fwd_bwd"):
        assert recorder.peak + delta == peak_bytes(case.model_copy(update={"direction": direction}))
