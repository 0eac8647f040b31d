"""Uneven stages: 10 layers over 4 ranks, fewer where the embedding and the head are.

8 emulated devices as pipe 4 x tensor 2, 1F1B. The layers of each stage are a list of your own; all ranks run one
program, and each allocates what the deepest needs (the layout table says how much that is). A short run to look at:
about a minute and a half on two cores.

    python -m experiments.train --config=configs/uneven.py
"""

from jaxpar.config import base_config


def get_config():
    """The settings."""
    config = base_config()
    config.emulate_devices = 8
    config.mesh.pipe = 4
    config.mesh.tensor = 2
    config.pipeline.schedule = "1f1b"
    config.pipeline.num_microbatches = 8
    config.pipeline.stage_layers = (2, 3, 3, 2)
    config.model.num_layers = 10
    config.model.width = 96
    config.model.mlp_width = 256
    config.train.global_batch = 16
    config.train.num_steps = 150
    return config
