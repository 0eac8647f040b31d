"""What everything is compared with: the whole batch on one device, no pipeline, float32, plain `jax.value_and_grad`."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxpar.models.model import Model, init_params

TOLERANCE = 1e-5
SMALL_LEAF = 1e-6  # of the global norm; leaves below are held to the absolute size of such a leaf


def reference_loss(model: Model, params, batch, rng=None):
    """(mean nats over counted tokens, num_tokens) with layers stacked by global index."""
    x = model.embed(params["embed"], batch["inputs"])
    for index in range(model.num_layers):
        p = jax.tree.map(lambda leaf, i=index: leaf[i], params["layers"])
        x = model.layer(p, x, batch.get("side", {}), rng)
    nats, tokens = model.loss(model.head(params), x, batch["labels"])
    return nats / jnp.maximum(tokens, 1), tokens


def reference_value_and_grad(model: Model, params, batch, rng=None):
    """((loss, num_tokens), grads): NumPy arrays, computed on one device whatever the inputs' shardings."""
    params, batch = jax.device_get(params), jax.device_get(batch)
    fn = jax.jit(jax.value_and_grad(lambda p, b: reference_loss(model, p, b, rng), has_aux=True))
    return jax.device_get(fn(params, batch))


def assert_loss_close(loss, reference, tolerance=TOLERANCE):
    """Relative difference of two scalars."""
    loss, reference = float(loss), float(reference)
    assert abs(loss - reference) <= tolerance * abs(reference), f"loss {loss} is not the reference's {reference}"


def assert_grads_close(grads, reference, tolerance=TOLERANCE):
    """Every leaf: ||g - ref||_2 <= tolerance ||ref||_2; leaves under 1e-6 of the global norm: absolute at that size.

    Also: same structure and shapes, float32, finite.
    """
    assert jax.tree.structure(grads) == jax.tree.structure(reference), "gradients have another structure"
    norms = [np.linalg.norm(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(reference)]
    floor = SMALL_LEAF * np.sqrt(np.sum(np.square(norms)))
    wrong = []
    leaves = jax.tree_util.tree_leaves_with_path(grads)
    for (path, grad), ref, norm in zip(leaves, jax.tree.leaves(reference), norms, strict=True):
        name = jax.tree_util.keystr(path)
        assert grad.shape == ref.shape, f"gradient {name} has shape {grad.shape}, not {ref.shape}"
        assert grad.dtype == np.float32, f"gradient {name} is {grad.dtype}, not float32"
        error = np.linalg.norm(np.asarray(grad, np.float64) - np.asarray(ref, np.float64))
        if not error <= tolerance * max(norm, floor):  # so written, a nan is wrong
            wrong.append(f"{name}: error {error:.3g} of norm {norm:.3g}")
    assert not wrong, "gradients differ from the reference:\n" + "\n".join(wrong)


def random_batch(vocab_size, num_rows, seq_len, seed=0, masked=0.2):
    """Random tokens; a share of the labels, uneven over rows, is -1."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab_size, (num_rows, seq_len + 1), dtype=np.int32)
    share = masked * 2 * rng.random((num_rows, 1))
    labels = np.where(rng.random((num_rows, seq_len)) < share, -1, tokens[:, 1:]).astype(np.int32)
    return {"inputs": tokens[:, :-1], "labels": labels, "side": {}}


def random_params(model: Model, seed=0):
    """Parameters as `init_params` shapes them, layers by global index, from NumPy: nothing compiles.

    Matrices have variance 1 / (product of all dims but the last); norms are near one, so that their gradients matter.
    """
    rng = np.random.default_rng(seed)

    def leaf(path, shape):
        lead = 1 if path[0].key == "layers" else 0
        values = rng.standard_normal(shape.shape).astype(np.float32)
        if len(shape.shape) - lead < 2:
            return 1 + 0.1 * values
        dims = shape.shape[lead:]
        fan_in = dims[-1] if path[-1].key == "table" else np.prod(dims[:-1])
        return values / np.float32(np.sqrt(fan_in))

    return jax.tree_util.tree_map_with_path(leaf, jax.eval_shape(lambda: init_params(model, jax.random.key(0))))
