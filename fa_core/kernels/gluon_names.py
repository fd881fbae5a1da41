"""Gluon's names that changed between triton 3.6 and 3.9, under one name each.

What a kernel calls must be found here by the compiler, so these are the functions themselves: nothing is
decided while a kernel runs.
"""

from triton._C.libtriton import ir
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core
from triton.experimental.gluon.language.nvidia.hopper import tma

# All threads of a partition meet. Renamed in 3.7.
barrier = getattr(gl, "thread_barrier", None) or gl.barrier
# A tile between global and shared memory by the copy engine. Renamed in 3.8, the older names are gone in 3.9.
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@_core.builtin
def _async_add(tensor_desc, coord, src, _semantic=None):
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(
        ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle
    )


# The copy engine adds a tile of shared memory to global memory. Public from 3.8 on; the binding is older.
async_add = getattr(tma, "async_atomic_add", None) or _async_add
