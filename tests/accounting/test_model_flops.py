"""Model FLOPs by hand and against the matrix products of the traced model."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from reference import random_batch, random_params, reference_loss

from jaxpar.accounting.flops import (
    forward_flops_per_token,
    model_flops_utilization,
    peak_flops,
    train_flops_per_token,
)
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


def test_peaks_are_the_data_sheets():
    """In TFLOP/s of one JAX device: a chip of TPU v3 and of TPU7x is two."""
    sheets = {
        "TPU v3": 61.5, "TPU v4": 275, "TPU v5 lite": 197, "TPU v5p": 459, "TPU v6 lite": 918, "TPU7x": 1153.5,
        "NVIDIA A100-SXM4-40GB": 312, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA A100 80GB PCIe": 312,
        "NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA GH200 480GB": 989, "NVIDIA H200": 989,
        "NVIDIA B200": 2250, "NVIDIA B300 SXM6 AC": 2250, "NVIDIA GB200": 2500, "NVIDIA GB300": 2500,
        "NVIDIA L40S": 362, "NVIDIA RTX A6000": 154.8, "NVIDIA GeForce RTX 3090": 71,
        "NVIDIA GeForce RTX 3090 Ti": 80, "NVIDIA GeForce RTX 4090": 165.2, "AMD Instinct MI300X": 1307,
    }  # fmt: skip
    for kind, tflops in sheets.items():
        assert peak_flops(kind) == pytest.approx(tflops * 1e12), kind


@pytest.mark.parametrize("kind", ["cpu", "", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "Tesla V100-SXM2-16GB", "TPU v9"])
def test_what_is_not_known_is_not_guessed(kind):
    assert peak_flops(kind) is None
