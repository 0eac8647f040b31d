"""What a layer keeps for its backward pass: named policies of recomputation.

Source: Chen et al. 2016, arXiv:1604.06174; "dots" keeps the matrix products, as Korthikanti et al. 2022,
arXiv:2205.05198, section 5 advises for what is cheap to keep and dear to recompute.
"""

import jax

POLICIES = ("none", "dots", "full")


def checkpointed(layer, remat):
    """The layer under a policy of POLICIES; the split turns what a checkpoint recomputes into R actions."""
    if remat == "none":
        return layer
    policy = jax.checkpoint_policies.dots_saveable if remat == "dots" else None
    return jax.checkpoint(layer, policy=policy)
