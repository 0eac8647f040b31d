"""One device, no parallelism: what all other runs are compared with.

The quickstart's model, text, batches and learning rate, so its loss curve too, up to rounding. No bubble, no
collective; about 3 minutes on two cores. It also serves for a text of your own:

    python -m experiments.train --config=configs/one_device.py
    python -m experiments.train --config=configs/one_device.py --config.data.kind=bytes --config.data.path=FILE
"""

from jaxpar.config import base_config


def get_config():
    """The settings."""
    config = base_config()
    config.emulate_devices = 1
    config.pipeline.schedule = "naive"
    config.pipeline.num_microbatches = 1
    return config
