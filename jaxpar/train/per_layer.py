"""Optimizers that look at whole arrays, made independent of how layers and vocabulary are packed.

Packed layers are [P * N, ...] with rows of padding, or a list of rows; tables have padding too. An optimizer that takes
a mean over an array, or its singular vectors, would see another array under every layout. Here it sees one layer, and
tables without padding.
"""

import jax
import jax.numpy as jnp
import optax


def per_layer(tx, ends=None):
    """Runs an optimizer on each layer by itself, and on embedding and head.

    Args:
      tx: optax.GradientTransformation; sees the parameters of one layer, without a leading dim.
      ends: the same for embedding and head, one at a time; default tx.

    Returns:
      optax.GradientTransformation for packed parameters. Its state is a dict like they are, with the packed rows as dim
      0 of every leaf below "layers" (step counters too), in a list where rows are apart.
    """

    def run(method, *trees):
        out = {name: getattr(ends or tx, method)(*(t[name] for t in trees)) for name in trees[0] if name != "layers"}
        if "layers" in trees[0]:
            each, layers = jax.vmap(getattr(tx, method)), [t["layers"] for t in trees]
            apart = isinstance(layers[0], list)
            out["layers"] = [each(*row) for row in zip(*layers, strict=True)] if apart else each(*layers)
        return out

    def init(params):
        return run("init", params)

    def update(updates, state, params):
        out = run("update", updates, state, params)
        if isinstance(out.get("layers"), list):
            rows = out["layers"]
            out["layers"] = [update for update, _ in rows], [state for _, state in rows]
        return {name: pair[0] for name, pair in out.items()}, {name: pair[1] for name, pair in out.items()}

    return optax.GradientTransformation(init, update)


def real_rows(tx, vocab_size, tables=("table",)):
    """Runs an optimizer on a dict of parameters whose tables are cut to their first vocab_size rows.

    The rows after them are padding: their update is zero, and the state has none for them.

    Args:
      tx: optax.GradientTransformation.
      vocab_size: rows that are tokens; None: all.
      tables: keys of the [vocabulary, ...] leaves.
    """
    if vocab_size is None:
        return tx

    def cut(tree):
        return _map_tables(lambda leaf: leaf[:vocab_size], tree, tables)

    def update(updates, state, params):
        out, state = tx.update(cut(updates), state, cut(params))

        def pad(leaf, like):
            return jnp.pad(leaf, [(0, like.shape[0] - leaf.shape[0])] + [(0, 0)] * (leaf.ndim - 1))

        return _map_tables(pad, out, tables, updates), state

    return optax.GradientTransformation(lambda params: tx.init(cut(params)), update)


def _map_tables(fn, tree, tables, *rest):
    def leaf(path, *leaves):
        return fn(*leaves) if path and getattr(path[-1], "key", None) in tables else leaves[0]

    return jax.tree_util.tree_map_with_path(leaf, tree, *rest)
