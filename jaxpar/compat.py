"""Every private or unstable JAX name that jaxpar uses, each with its reason. Tested on jax 0.10 and 0.12."""

import jax


def bind(primitive, params, values):
    """Applies a primitive of a traced jaxpr to values.

    Why: ``jax.extend.core`` runs whole jaxprs only, and the split runs parts of one. ``get_bind_params`` turns a
    jaxpr's stored parameters back into ``bind``'s (custom derivatives); it is not documented.
    """
    return primitive.bind(*values, **primitive.get_bind_params(params))


def row_major(a):
    """The array in row-major layout (dims of size one first), whatever its producer or reader would like.

    Why: ``with_layout_constraint`` is experimental, and before jax 0.11 the partitioner gathers an array whose layout
    is pinned; there the array stays as it is, and a TPU's compiler may turn whole buffers.
    """
    if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11):
        return a
    from jax.experimental.layout import Layout, with_layout_constraint

    order = sorted(range(a.ndim), key=lambda dim: a.shape[dim] > 1)
    return with_layout_constraint(a, Layout(major_to_minor=tuple(order)))


def overlap_options(mesh):
    """Compiler options that let both of a tick's messages run beside its work; None where none is needed.

    Why: XLA keeps one collective in flight on a GPU unless told otherwise, and makes the second synchronous. The option
    is experimental. It goes to the outermost ``jit`` or ``compile`` alone.
    """
    on_gpu = mesh.devices.flat[0].platform in ("gpu", "cuda", "rocm")
    return {"xla_gpu_experimental_parallel_collective_overlap_limit": 2} if on_gpu else None
