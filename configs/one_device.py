"""One device, no parallelism: what all other runs are compared with.

The quickstart's model, text, batches and learning rate, so its loss curve too, up to rounding. No bubble, no
collective; about 3 minutes on two cores. It also serves for a text of your own:

    python -m experiments.train --config=configs/one_device.py
    python -m experiments.train --config=configs/one_device.py --config.data.kind=text --config.data.path=FILE
"""

from jaxpar.config import base_config


def get_config():
    """The settings."""
    config = base_config()
    config.emulate_devices = 1
    config.pipeline.schedule = "naive"
    config.pipeline.num_microbatches = 1
    config.model.num_layers = 4
    config.model.width = 160
    config.model.mlp_width = 448
    config.data.seq_len = 128
    config.data.max_held_out_bytes = 65_536
    config.train.global_batch = 8
    config.train.num_steps = 900
    config.train.eval_every = 300
    config.optimizer.peak_rate = 3e-3
    config.optimizer.warmup_steps = 50
    config.optimizer.final_rate_ratio = 0.05
    return config
