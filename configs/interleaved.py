"""Interleaved 1F1B: each of 4 ranks holds two stages, which halves the bubble of 1F1B for twice the messages.

8 emulated devices as data 2 x pipe 4, and the vocabulary split over the ranks, so that the head is shared work. A short
run to look at: about a minute and a half on two cores. Compare its bubble with --config.pipeline.schedule=1f1b and
--config.pipeline.num_chunks=1.

    python -m experiments.train --config=configs/interleaved.py
"""

from jaxpar.config import base_config


def get_config():
    """The settings."""
    config = base_config()
    config.emulate_devices = 8
    config.mesh.data = 2
    config.mesh.pipe = 4
    config.pipeline.schedule = "interleaved_1f1b"
    config.pipeline.num_chunks = 2
    config.pipeline.num_microbatches = 8
    config.pipeline.vocabulary = "pipe"
    config.model.num_layers = 8
    config.model.width = 128
    config.model.mlp_width = 352
    config.train.global_batch = 16
    config.train.num_steps = 200
    return config
