"""Run-once loops and the buffers they update in place.

``lax.cond`` on a buffer makes XLA copy it in every branch. A loop that runs zero or one times updates its carry in
place instead, and where it runs zero times it costs nothing. Two things keep it so: the indices pass through an
optimization barrier with the loop counter (else XLA sees that the body does not depend on the counter, hoists it out
of the loop and runs it always), and only the buffers that the body touches are in the carry.
"""

import jax
from jax import lax


def run_once(flag, body, carry, indices):
    """``body(carry, indices)`` where ``flag`` (int32, 0 or 1) is set, else ``carry`` untouched and no work done."""

    def step(i, carry):
        held, _ = lax.optimization_barrier((indices, i))
        return body(carry, held)

    return lax.fori_loop(0, flag, step, carry)


def load(buffer, *index):
    """Element ``buffer[index]`` of each leaf, the leading dims indexed by ints or int32 scalars.

    In a dim of size one XLA drops the index, and with it what may tie the load to its run-once loop: all that follows
    from the value would be hoisted and run in every tick. Where no other index does, the value itself passes a barrier.
    """
    traced = [number for number, i in enumerate(index) if isinstance(i, jax.Array)]

    def leaf(a):
        loose = all(a.shape[number] == 1 for number in traced)
        for number, i in enumerate(index):
            a = lax.dynamic_index_in_dim(a, i, 0, keepdims=False)
            if loose and number in traced:
                a, _ = lax.optimization_barrier((a, i))
        return a

    return jax.tree.map(leaf, buffer)


def store(buffer, value, *index):
    """``buffer`` with ``buffer[index] = value``, leaf by leaf; in place where the buffer is a loop's carry."""

    def leaf(a, v):
        v = v.reshape((1,) * len(index) + v.shape)
        return lax.dynamic_update_slice(a, v.astype(a.dtype), (*index, *[0] * (a.ndim - len(index))))

    return jax.tree.map(leaf, buffer, value)


def rows_of(batch, microbatch, num_rows):
    """Rows of one microbatch from each leaf [B, ...]."""
    return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, microbatch * num_rows, num_rows, 0), batch)
