"""Run-once loops and the buffers they update in place.

``lax.cond`` on a buffer makes XLA copy it in every branch. A loop that runs zero or one times updates its carry in
place instead, and where it runs zero times it costs nothing. Two things keep it so: the indices pass through an
optimization barrier with the loop counter (else XLA sees that the body does not depend on the counter, hoists it out
of the loop and runs it always), and only the buffers that the body touches are in the carry.
"""

import jax
from jax import lax

from jaxpar import compat


def run_once(flag, body, carry, indices):
    """``body(carry, indices)`` where ``flag`` (int32, 0 or 1) is set, else ``carry`` untouched and no work done."""

    def step(i, carry):
        held, _ = lax.optimization_barrier((indices, i))
        return body(carry, held)

    return lax.fori_loop(0, flag, step, carry)


def load(buffer, *index, pin=False):
    """Element ``buffer[index]`` of each leaf, the leading dims indexed by ints or int32 scalars.

    In a dim of size one XLA drops the index, and with it what may tie the load to its run-once loop: all that follows
    from the value would be hoisted and run in every tick. Where no other index does, the buffer passes a barrier.

    Args:
      pin: keep the value row-major, so that no compiler turns the whole buffer to please one reader.
    """
    traced = [number for number, i in enumerate(index) if isinstance(i, jax.Array)]

    def leaf(a):
        if traced and all(a.shape[number] == 1 for number in traced):
            a, _ = lax.optimization_barrier((a, index[traced[0]]))
        rest = a.shape[len(index) :]
        a = lax.dynamic_slice(a, (*index, *[0] * len(rest)), (*[1] * len(index), *rest)).reshape(rest)
        return compat.row_major(a) if pin else a

    return jax.tree.map(leaf, buffer)


def store(buffer, value, *index, pin=False):
    """``buffer`` with ``buffer[index] = value``, leaf by leaf; in place where the buffer is a loop's carry."""

    def leaf(a, v):
        v = compat.row_major(v.astype(a.dtype)) if pin else v.astype(a.dtype)
        return lax.dynamic_update_slice(a, v.reshape((1,) * len(index) + v.shape), (*index, *[0] * v.ndim))

    return jax.tree.map(leaf, buffer, value)


def rows_of(batch, microbatch, num_rows):
    """Rows of one microbatch from each leaf [B, ...]."""
    return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, microbatch * num_rows, num_rows, 0), batch)
