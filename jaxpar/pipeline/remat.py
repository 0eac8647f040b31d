"""What a layer keeps for its backward pass: named policies of recomputation.

Source: Chen et al. 2016, arXiv:1604.06174; "dots" keeps the matrix products, as Korthikanti et al. 2022,
arXiv:2205.05198, section 5 advises for what is cheap to keep and dear to recompute.
"""

import jax

from jaxpar.errors import SettingError
from jaxpar.pipeline.graph import trace
from jaxpar.schedule.recompute import POLICIES, saved_names


def checkpointed(layer, remat):
    """The layer under a policy; the split turns what a checkpoint recomputes into R actions.

    Args:
      layer: (p, x, side, rng) -> x or (x, aux).
      remat: one of POLICIES, or "names:a,b", which keeps the values that the layer marks by these names
        (``jax.ad_checkpoint.checkpoint_name``).

    Raises:
      SettingError: neither.
    """
    if remat == "none":
        return layer
    names = saved_names(remat)
    if names:
        return jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names(*names))
    return jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable if remat == "dots" else None)


def check_names(layer, remat, *args):
    """Refuses names that the layer marks no value by: JAX would recompute everything and not say why.

    Args:
      layer, remat: as `checkpointed` takes them.
      *args: p, x, side, rng: arrays or ShapeDtypeStructs.

    Raises:
      SettingError: names the first, and those there are.
    """
    wanted = saved_names(remat)
    if not wanted:
        return
    marked = sorted({eqn.params["name"] for eqn in trace(layer, *args).equations if eqn.name == "name"})
    for name in wanted:
        if name not in marked:
            remedy = f"Use one of {', '.join(marked)}" if marked else "Mark one with checkpoint_name, or use dots"
            raise SettingError(
                f"pipeline.remat={remat} asks for {name}, which the layer marks no value by: nothing would be kept. "
                f"{remedy}."
            )


__all__ = ["POLICIES", "check_names", "checkpointed"]
