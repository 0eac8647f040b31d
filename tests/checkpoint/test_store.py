"""Checkpoints are complete or not there, some are kept, a failed write is said, a save is a snapshot."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpar.checkpoint import Store, saved_steps
from jaxpar.checkpoint.export import named_weights, write_safetensors
from jaxpar.errors import CheckpointError

TREE = {
    "params": {
        "embed": {"table": np.arange(6.0, dtype=np.float32).reshape(3, 2)},
        "layers": {"mlp": {"kernel": np.arange(8, dtype=np.float32).reshape(2, 2, 2)}},
        "head": {"norm": np.ones(2, np.float32)},
    },
    "moments": np.arange(4.0, dtype=np.float32),
}


def arrays(scale=1):
    return jax.tree.map(lambda a: jnp.asarray(a) * scale, TREE)


def like(tree):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)


def test_the_newest_and_the_multiples_stay(tmp_path):
    store = Store(tmp_path, keep=2, keep_every=4)
    for step in range(1, 10):
        store.save(step, arrays(step), {"step": step})
        store.wait()
    assert saved_steps(tmp_path) == [4, 8, 9] and store.latest() == 9
    assert store.about(8) == {"step": 8}
    found = store.restore(4, like(arrays()))
    store.close()
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b * 4), found, TREE)


def test_what_a_killed_save_left_is_no_step(tmp_path):
    (tmp_path / "checkpoints" / "7.orbax-checkpoint-tmp-1").mkdir(parents=True)
    assert saved_steps(tmp_path) == [] and saved_steps(tmp_path / "nowhere") == []
    store = Store(tmp_path)
    store.save(3, arrays(), {})
    store.wait()
    store.close()
    assert saved_steps(tmp_path) == [3]


def test_reading_leaves_what_another_run_is_saving(tmp_path):
    store = Store(tmp_path)
    store.save(3, arrays(), {"step": 3})
    store.wait()
    store.close()
    begun = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp"
    begun.mkdir()
    other = Store(tmp_path)
    assert other.about(3) == {"step": 3}
    other.restore(3, like(arrays()))
    other.weights(3)
    other.close()
    assert begun.is_dir()


def test_the_same_step_twice_is_refused_not_half_replaced(tmp_path):
    store = Store(tmp_path)
    store.save(3, arrays(), {"turn": 1})
    store.wait()
    with pytest.raises(CheckpointError, match="step 3, or the one before it, could not be written"):
        store.save(3, arrays(2), {"turn": 2})
    assert store.about(3) == {"turn": 1}
    store.close()


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path):
    store = Store(tmp_path, keep=5)
    for step in (1, 2):
        store.save(step, arrays(), {"step": step})
        store.wait()
    for file in (tmp_path / "checkpoints" / "2" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:3])
    with pytest.raises(CheckpointError, match=r"checkpoints/2 cannot be read.*delete that folder"):
        store.restore(2, like(arrays()))
    store.restore(1, like(arrays()))
    other = arrays()
    other["params"]["layers"]["mlp"]["kernel"] = jnp.zeros((3, 2, 2))
    with pytest.raises(CheckpointError, match="checkpoints/1 cannot be read"):
        store.restore(1, like(other))
    store.close()


_FULL_DISK = """
import resource, sys
import jax.numpy as jnp
from jaxpar.checkpoint import Store
from jaxpar.errors import CheckpointError
store = Store(sys.argv[1])
store.save(1, {"a": jnp.arange(1000.0)}, {})
store.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    store.save(2, {"a": jnp.sin(jnp.arange(1_000_000.0))}, {})
    store.wait()
except CheckpointError as error:
    print(error)
    sys.exit(1)
"""


def test_a_full_disk_is_said_and_the_last_step_stays_good(tmp_path):
    command = [sys.executable, "-c", _FULL_DISK, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=_env())
    assert run.returncode == 1, run.stderr
    assert "The last complete step is 1" in run.stdout and run.stdout.count("\n") == 1
    assert saved_steps(tmp_path) == [1]
    store = Store(tmp_path)
    found = store.restore(1, like({"a": jnp.arange(1000.0)}))
    np.testing.assert_array_equal(found["a"], np.arange(1000.0))
    store.close()


def _env():
    return {**{k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}, "JAX_PLATFORMS": "cpu"}


def test_weights_alone_need_no_knowledge_of_the_rest(tmp_path):
    store = Store(tmp_path)
    store.save(1, arrays(), {})
    store.wait()
    weights = named_weights(store.weights(1))
    store.close()
    assert list(weights) == ["embed.table", "head.norm", "layers.0.mlp.kernel", "layers.1.mlp.kernel"]
    np.testing.assert_array_equal(weights["layers.1.mlp.kernel"], TREE["params"]["layers"]["mlp"]["kernel"][1])


def test_safetensors_hold_the_same_arrays(tmp_path):
    from safetensors import safe_open

    weights = named_weights(TREE["params"])
    write_safetensors(tmp_path / "w.safetensors", weights, {"step": "1"})
    with safe_open(str(tmp_path / "w.safetensors"), "numpy") as file:
        assert set(file.keys()) == set(weights) and file.metadata() == {"step": "1"}
        for name, array in weights.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)


def test_bfloat16_survives(tmp_path):
    tree = {"a": jnp.arange(3.0, dtype=jnp.bfloat16)}
    store = Store(tmp_path)
    store.save(1, tree, {})
    store.wait()
    found = store.restore(1, like(tree))["a"]
    store.close()
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(found, np.float32), [0, 1, 2])


def test_the_folder_is_not_made_before_the_first_save(tmp_path):
    Store(tmp_path).close()
    assert list(pathlib.Path(tmp_path).iterdir()) == [] and json.dumps(saved_steps(tmp_path)) == "[]"
