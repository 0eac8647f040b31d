"""Model FLOPs by hand and against the matrix products of the traced model."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from reference import random_batch, random_params, reference_loss

from jaxpar.accounting.flops import forward_flops_per_token, model_flops_utilization, train_flops_per_token
from jaxpar.models.decoder import DecoderConfig, decoder

CONFIG = DecoderConfig(3, width=32, num_heads=4, num_kv_heads=2, mlp_width=48, vocab_size=40)


def _matrix_products(jaxpr):
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(shape[d] for d in contracted)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += _matrix_products(inner) if hasattr(inner, "eqns") else 0
    return total


def test_by_hand():
    layer = 32 * (4 + 2 + 2) * 8 + 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48
    assert forward_flops_per_token(CONFIG, 16) == 2 * (3 * layer + 32 * 40)


@pytest.mark.parametrize("tied", [True, False])
def test_equals_the_traced_models_matrix_products(tied):
    model, batch = decoder(dataclasses.replace(CONFIG, tie_embeddings=tied)), random_batch(40, 2, 16)

    def loss(params):
        return reference_loss(model, params, batch)[0]

    params = random_params(model)
    forward, both = jax.make_jaxpr(loss)(params), jax.make_jaxpr(jax.grad(loss))(params)
    assert _matrix_products(forward.jaxpr) == 2 * 16 * forward_flops_per_token(CONFIG, 16)
    assert _matrix_products(both.jaxpr) == 2 * 16 * train_flops_per_token(CONFIG, 16)


def test_utilization_is_none_on_a_device_without_a_known_peak():
    assert model_flops_utilization(1e12, "cpu", 8) is None
    np.testing.assert_allclose(model_flops_utilization(459e12, "TPU v5p", 2), 0.5)
