"""Gradients that come in parts (ZeRO-1) are the reference's, leaf by leaf, and each part is where it is said to be."""

import jax
import pytest
from reference import assert_grads_close, assert_loss_close
from tiny import VOCAB_SIZE, make_mesh, pipeline, place, reference, schedule_of, tiny_batch, tiny_decoder, tiny_params

from jaxpar.errors import SettingError
from jaxpar.pipeline import Layout, value_and_grad
from jaxpar.schedule import build
from jaxpar.train.shards import update_shardings


@pytest.mark.parametrize(
    ("mesh", "num_layers", "layers", "vocabulary"),
    [
        ((4, 2, 1), 4, "unroll", "ends"),  # rows apart
        ((2, 2, 2), 4, "loop", "ends"),  # whole layers to each data rank
        ((2, 2, 2), 3, "loop", "pipe"),  # a padded row, tables split over pipe already
        ((8, 1, 1), 3, "loop", "ends"),  # data divides no rows: matrices are cut
    ],
)
def test_every_part_is_the_references(mesh, num_layers, layers, vocabulary):
    model, mesh, apart = tiny_decoder(num_layers), make_mesh(*mesh), layers == "unroll"
    schedule = schedule_of("1f1b", mesh.shape["pipe"], 2, vocabulary=vocabulary)
    layout = Layout.of(schedule, num_layers)
    shards = update_shardings(model, mesh, layout.rows, vocabulary, apart=apart)
    fn = pipeline(model, mesh, schedule, layout, layers=layers, vocabulary=vocabulary, shards=shards)
    placed = place(tiny_params(model), mesh, layout, model, vocabulary, apart)
    output, grads = fn(placed, tiny_batch(16))
    (loss, tokens), expected = reference(model, 16)
    assert int(output.num_tokens) == int(tokens)
    assert_loss_close(output.loss, loss)
    for grad, param, shard in zip(*map(jax.tree.leaves, (grads, placed, shards)), strict=True):
        assert grad.sharding.is_equivalent_to(shard, grad.ndim), (grad.sharding, shard)
        ways = mesh.shape["data"] * (1 if "pipe" in str(param.sharding.spec) else mesh.shape["pipe"])
        assert grad.addressable_shards[0].data.size * ways == param.addressable_shards[0].data.size
    host = jax.device_get(grads)
    assert_grads_close({**host, "layers": jax.device_get(fn.layout.unpack(host["layers"]))}, expected)
    assert not host["embed"]["table"][VOCAB_SIZE:].any()


def test_parts_of_layers_by_global_index_are_refused():
    with pytest.raises(SettingError, match="grad_specs without packed=True"):
        value_and_grad(lambda p, x, side, rng: x, lambda p, y, l: (0.0, 0), build("1f1b", 4, 4), make_mesh(2, 4, 1),
                       grad_specs={})  # fmt: skip
