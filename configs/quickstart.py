"""Quickstart: a byte-level decoder of 1.3 million parameters on the text that comes with Python.

8 emulated devices as pipe 4 x tensor 2: each of 4 ranks holds a layer, whose matrices are split over two devices, and
1F1B keeps at most 4 microbatches in flight. The text is the language reference and the standard library's sources, a
tenth of the files held out; nothing is downloaded. Costs about 4 minutes on two cores and 1 GB of memory.
Expect about 2.1 bits per byte on the held-out files, where an order-2 byte model has 2.7.

    python -m experiments.train --config=configs/quickstart.py
"""

from jaxpar.config import base_config


def get_config():
    """The settings."""
    config = base_config()
    config.emulate_devices = 8
    config.mesh.pipe = 4
    config.mesh.tensor = 2
    config.pipeline.schedule = "1f1b"
    config.pipeline.num_microbatches = 4
    config.model.num_layers = 4
    config.model.width = 160
    config.model.mlp_width = 448
    config.data.seq_len = 128
    config.train.global_batch = 8
    config.data.max_held_out_bytes = 65_536
    config.train.num_steps = 900
    config.train.eval_every = 300
    config.optimizer.peak_rate = 3e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.final_rate_ratio = 0.05
    return config
