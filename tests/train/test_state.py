"""The state lies where its shardings say, moments beside their parameters, and is never whole on one device."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpar.accounting.memory import bytes_per_device
from jaxpar.config import OptimizerConfig
from jaxpar.mesh import make_mesh
from jaxpar.models.decoder import DecoderConfig, decoder
from jaxpar.train.optimizer import make_optimizer
from jaxpar.train.state import init_state, new_state, state_shardings

CONFIG = DecoderConfig(8, width=64, num_heads=8, num_kv_heads=8, mlp_width=256, vocab_size=256, tie_embeddings=False)
ROWS = np.arange(8).reshape(4, 2)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_every_moment_has_its_parameters_sharding(clip):
    model, mesh = decoder(CONFIG), make_mesh(1, 4, 2)
    optimizer, _ = make_optimizer(OptimizerConfig(clip_norm=clip), 10)
    shardings = state_shardings(model, optimizer, mesh, ROWS, "pipe")
    assert shardings.params["layers"]["mlp"]["out"]["kernel"] == NamedSharding(mesh, P("pipe", "tensor"))
    assert shardings.params["embed"]["table"] == NamedSharding(mesh, P(("pipe", "tensor")))
    structure, moments = jax.tree.structure(shardings.params), []

    def is_moments(node):
        return jax.tree.structure(node) == structure

    for node in jax.tree.leaves(shardings.opt_state, is_leaf=is_moments):
        if is_moments(node):
            moments.append(node)
        else:
            assert node == NamedSharding(mesh, P())
    assert len(moments) == 2 and all(moment == shardings.params for moment in moments)


def test_the_state_is_made_in_place():
    model, mesh = decoder(CONFIG), make_mesh(1, 4, 2)
    optimizer, _ = make_optimizer(OptimizerConfig(), 10)
    shardings = state_shardings(model, optimizer, mesh, ROWS, "pipe")
    state = init_state(model, optimizer, jax.random.key(0), ROWS, shardings)
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding == sharding
    assert int(state.step) == int(state.skipped) == 0
    whole = jax.eval_shape(lambda p: new_state(p, optimizer), state.params)
    assert bytes_per_device(state) < bytes_per_device(whole) / 8 * 1.02
    assert bytes_per_device(state.opt_state) >= 2 * bytes_per_device(state.params)
