"""A run that may be killed at any time: saves every 100 steps, and goes on from there when started again.

8 emulated devices as data 2 x pipe 2 x tensor 2, interleaved 1F1B; bfloat16 parameters with float32 master weights,
which are split over data too, as the moments are; dropout; the rate constant, then linear down. About 5 minutes on two
cores.
Interrupt it with Ctrl-C, or kill it, and give the same command again, with another mesh if you like:

    python -m experiments.train --config=configs/long_run.py
    python -m experiments.train --config=configs/long_run.py --config.mesh.data=1 --config.mesh.pipe=4
    python -m experiments.export --workdir=runs/long_run --to=safetensors
"""

from jaxpar.config import base_config


def get_config():
    """The settings."""
    config = base_config()
    config.emulate_devices = 8
    config.mesh.data = 2
    config.mesh.pipe = 2
    config.mesh.tensor = 2
    config.pipeline.schedule = "interleaved_1f1b"
    config.pipeline.num_chunks = 2
    config.pipeline.num_microbatches = 4
    config.model.num_layers = 8
    config.model.width = 128
    config.model.mlp_width = 384
    config.model.dropout = 0.1
    config.model.param_dtype = "bfloat16"
    config.optimizer.master_weights = True
    config.optimizer.schedule = "wsd"
    config.optimizer.warmup_steps = 50
    config.optimizer.decay_steps = 200
    config.train.global_batch = 16
    config.train.num_steps = 1000
    config.train.eval_every = 500
    config.train.resume = "auto"
    config.checkpoint.every = 100
    config.checkpoint.keep_every = 500
    config.data.log_ids = True
    return config
