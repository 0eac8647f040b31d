"""The learning rate's curves: warm-up, then cosine, linear, constant-then-linear, constant."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.config import OptimizerConfig
from jaxpar.train.rates import rate_schedule

CONFIG = OptimizerConfig(peak_rate=1e-2, warmup_steps=4, final_rate_ratio=0.1)


def _rates(num_steps, count=None, **changes):
    rate = rate_schedule(dataclasses.replace(CONFIG, **changes), num_steps)
    return np.asarray(jax.vmap(rate)(jnp.arange(count or num_steps)))


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "constant"])
def test_every_rate_rises_to_the_peak_first_and_is_float32(schedule):
    rates = _rates(25, schedule=schedule, decay_steps=5)
    assert rates.dtype == np.float32
    np.testing.assert_allclose(rates[:5], [0.0025, 0.005, 0.0075, 0.01, 0.01], rtol=1e-6)


def test_cosine():
    rates = _rates(25, 30)
    np.testing.assert_allclose(rates[14], 0.0055, rtol=1e-6)
    np.testing.assert_allclose(rates[24:], 0.001, rtol=1e-6)
    assert np.all(np.diff(rates[4:25]) < 0)


def test_linear_falls_by_equal_steps():
    rates = _rates(25, 30, schedule="linear")
    np.testing.assert_allclose(np.diff(rates[4:25]), -0.009 / 20, rtol=1e-3)
    np.testing.assert_allclose(rates[24:], 0.001, rtol=1e-6)


def test_wsd_stays_at_the_peak_then_falls_in_its_last_steps():
    rates = _rates(25, 30, schedule="wsd", decay_steps=5)
    np.testing.assert_allclose(rates[4:20], 0.01, rtol=1e-6)
    np.testing.assert_allclose(rates[19:25], np.linspace(0.01, 0.001, 6), rtol=1e-5)
    np.testing.assert_allclose(rates[25:], 0.001, rtol=1e-6)


def test_constant_stays():
    np.testing.assert_allclose(_rates(25, schedule="constant")[4:], 0.01, rtol=1e-6)


def test_no_warm_up_starts_at_the_peak_and_a_whole_warm_up_ends_there():
    np.testing.assert_allclose(_rates(10, warmup_steps=0)[0], 0.01, rtol=1e-6)
    np.testing.assert_allclose(_rates(10, warmup_steps=10)[9], 0.01, rtol=1e-6)
