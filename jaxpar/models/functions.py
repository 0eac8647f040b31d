"""What a layer computes without parameters: rotary positions, who sees whom, dropout. Written as for one device."""

import jax
import jax.numpy as jnp


def rotate(x, positions, base):
    """Rotary positions: turns the pairs (x[i], x[i + H/2]) by the angle positions * base ** (-2i / H).

    Args:
      x: float [..., H].
      positions: int, shape broadcasting to x's without its last dim.
      base: float.

    Returns:
      x's shape and dtype; computed in float32.
    """
    half = x.shape[-1] // 2
    frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[..., None].astype(jnp.float32) * frequency
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def attention_inputs(side, shape):
    """(positions int [B or 1, T], mask bool [B or 1, T, T]) from the side inputs, all of them optional.

    side["segment_ids"] int [B, T]: tokens see their own segment only. side["positions"] int [B, T]: default 0, 1, ...
    What sees what goes by place in the row, so positions may start again in each segment.
    """
    steps = shape[1]
    mask = jnp.tril(jnp.ones((steps, steps), bool))[None]
    segments_BT = side.get("segment_ids")
    if segments_BT is not None:
        mask = mask & (segments_BT[:, :, None] == segments_BT[:, None, :])
    positions = side.get("positions")
    return jnp.arange(steps, dtype=jnp.int32)[None] if positions is None else positions, mask


def drop(x, share, keys_B, site):
    """Dropout (Srivastava et al. 2014, JMLR 15): zero for a random share of the elements, the rest scaled up for it.

    A row's mask comes from its own key alone, so it is the same wherever the row is computed, and computed again.

    Args:
      x: float [B, ...].
      share: of the elements that are dropped, in [0, 1).
      keys_B: a key a row, for this layer; None: nothing is dropped.
      site: int, which dropout of the layer this is.

    Returns:
      x's shape and dtype.
    """
    if keys_B is None or not share:
        return x
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, site)
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - share, x.shape[1:]))(keys_B)
    return jnp.where(kept, x / (1 - share), 0).astype(x.dtype)
