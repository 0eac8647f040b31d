"""A tiny decoder, its batch and reference, and the pipeline on any mesh."""

import functools

import jax
import numpy as np
from reference import assert_grads_close, assert_loss_close, random_batch, random_params, reference_value_and_grad

from jaxpar import mesh as meshes
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.schedule import build, chunk_counts, names
from jaxpar.sharding import TENSOR_RULES, param_shardings
from jaxpar.train.grads import make_grad_fn

SEQ_LEN, VOCAB_SIZE, VOCAB_ROWS = 8, 13, 16  # 13 divides by nothing; 16 rows split over pipe x tensor of up to 8


def _family(name):
    """Which schedules can share a program with it: those of one chunk, of two, or of two in a V."""
    if 2 not in chunk_counts(name):
        return "one"
    return "v" if build(name, 2, 2, 2).placement == "v" else "two"


FAMILIES = {kind: tuple(name for name in names() if _family(name) == kind) for kind in ("one", "two", "v")}
FAMILIES = {kind: members for kind, members in FAMILIES.items() if members}


def make_mesh(data, pipe, tensor):
    """A mesh of the first devices, as many as it needs."""
    return meshes.make_mesh(data, pipe, tensor, devices=jax.devices()[: data * pipe * tensor])


@functools.cache
def tiny_decoder(num_layers, tied=True, dtype="float32"):
    """Two heads, width 16."""
    config = DecoderConfig(num_layers, 16, 2, 2, 32, VOCAB_SIZE, tie_embeddings=tied, dtype=dtype)
    return decoder(config, VOCAB_ROWS)


@functools.cache
def tiny_batch(num_rows):
    """Packed rows: two segments each, positions that start again, uneven numbers of counted labels."""
    batch = random_batch(VOCAB_SIZE, num_rows, SEQ_LEN)
    cut = 2 + np.arange(num_rows)[:, None] % 5
    place = np.arange(SEQ_LEN)[None]
    segments = (place >= cut).astype(np.int32)
    positions = np.where(place >= cut, place - cut, place).astype(np.int32)
    return {**batch, "side": {"segment_ids": segments, "positions": positions}}


def tiny_params(model):
    """By global layer index; padding rows of the tables are zero, as the model makes them."""
    return _params(model.num_layers, bool(model.tied))


@functools.cache
def _params(num_layers, tied):
    params = random_params(tiny_decoder(num_layers, tied))
    for part in ("embed", "head"):
        if "table" in params[part]:
            params[part]["table"][VOCAB_SIZE:] = 0
    return params


def reference(model, num_rows):
    """((loss, num_tokens), grads) of the tiny batch on one device."""
    return _reference(model.num_layers, bool(model.tied), num_rows)


@functools.cache
def _reference(num_layers, tied, num_rows):
    model = tiny_decoder(num_layers, tied)
    return reference_value_and_grad(model, tiny_params(model), tiny_batch(num_rows))


def place(params, mesh, layout, model, vocabulary="ends", apart=False):
    """Packed parameters on the mesh."""
    params = {**params, "layers": layout.pack(jax.tree.map(jax.numpy.asarray, params["layers"]))}
    specs = TENSOR_RULES.specs(model.dims)
    if apart:
        params["layers"] = layout.apart(params["layers"])
        specs["layers"] = [specs["layers"]] * len(params["layers"])
    return jax.device_put(params, param_shardings(mesh, specs, vocabulary))


def pipeline(model, mesh, schedule, layout=None, **options):
    """``value_and_grad`` for the tiny decoder, packed."""
    return make_grad_fn(model, schedule, mesh, layout=layout, **options)


def assert_exact(model, fn, mesh, num_rows, vocabulary="ends", plan=None, apart=False):
    """Loss, token count and every gradient leaf equal the reference; gradients lie as their parameters do."""
    placed = place(tiny_params(model), mesh, fn.layout, model, vocabulary, apart)
    output, grads = fn.run(placed, tiny_batch(num_rows), None, fn.tables(plan))
    (loss, tokens), expected = reference(model, num_rows)
    assert int(output.num_tokens) == int(tokens)
    assert_loss_close(output.loss, loss)
    for grad, param in zip(jax.tree.leaves(grads), jax.tree.leaves(placed), strict=True):
        assert grad.sharding.is_equivalent_to(param.sharding, grad.ndim), (grad.sharding, param.sharding)
    host = jax.device_get(grads)
    assert_grads_close({**host, "layers": jax.device_get(fn.layout.unpack(host["layers"]))}, expected)
    return output, grads


def schedule_of(name, num_ranks, num_microbatches, num_chunks=1, vocabulary="ends"):
    """A schedule with its vocabulary."""
    return build(name, num_ranks, num_microbatches, num_chunks).with_vocabulary(vocabulary)
