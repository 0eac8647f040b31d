"""Rules between the optimizer's settings and others."""

import pytest

from jaxpar.config import resolve
from jaxpar.errors import SettingError


@pytest.mark.parametrize(
    ("tree", "part"),
    [
        ({"optimizer": {"decay_steps": 5}}, "optimizer.decay_steps=5 would not be read: optimizer.schedule=cosine"),
        ({"optimizer": {"schedule": "wsd"}}, "optimizer.decay_steps=0 gives wsd no end"),
        (
            {"optimizer": {"schedule": "wsd", "decay_steps": 95}},
            "decay_steps=95 and optimizer.warmup_steps=10 are more than train.num_steps=100: the rate would fall "
            "before it has risen. Use optimizer.decay_steps=90 or less.",
        ),
        ({"optimizer": {"master_weights": True}}, "master_weights=True keeps a copy for nothing"),
        ({"optimizer": {"momentum": 1.0}}, "optimizer.momentum=1.0 is not in 0 .. 1"),
        ({"optimizer": {"schedule": "cosin"}}, "Did you mean cosine?"),
        ({"optimizer": {"name": "adam"}}, "Did you mean adamw?"),
        ({"model": {"dropout": 1.0}}, "model.dropout=1.0 is not in 0 .. 1"),
        ({"model": {"param_dtype": "bf16"}}, "model.param_dtype=bf16 is not known"),
    ],
)
def test_what_does_not_go_together_is_refused(tree, part):
    with pytest.raises(SettingError) as caught:
        resolve(tree)
    assert part in str(caught.value)


def test_what_does_is_taken():
    optimizer = {"schedule": "wsd", "decay_steps": 90, "master_weights": True, "name": "muon"}
    config = resolve({"optimizer": optimizer, "model": {"param_dtype": "bfloat16", "dropout": 0.1}})
    assert config.optimizer.decay_steps == 90 and config.optimizer.shard_state
