"""pipeline.schedule=auto and the memory cap: from settings to the search, and what they may not be. No JAX here."""

import functools
import math

from jaxpar.config_values import refuse
from jaxpar.errors import SettingError
from jaxpar.schedule import Costs
from jaxpar.schedule.check import peak_chunks
from jaxpar.schedule.search import search

# Far below a chunk's share of a microbatch, far above a rounding.
_ROUNDING = 1e-6


def searched(config):
    """The schedule that is found for the run's costs, cap, vocabulary and recomputation; searched for once.

    Raises:
      SettingError: a costs file that is none, or for another number of stages; a cap that no schedule keeps.
    """
    pipeline = config.pipeline
    costs = Costs.from_json(pipeline.costs) if pipeline.costs else Costs.unit(pipeline.num_chunks)
    try:
        for kind in "FIWR":
            costs.by_stage(kind, config.num_stages)
    except SettingError as error:  # a file for another number of stages
        raise SettingError(f"pipeline.costs={pipeline.costs}: {error}") from None
    hashable = {name: tuple(value) if hasattr(value, "__len__") else value for name, value in vars(costs).items()}
    return _search(
        (config.mesh.pipe, pipeline.num_microbatches, pipeline.num_chunks),
        Costs(**hashable),
        pipeline.search_mode,
        pipeline.max_live or None,
        pipeline.vocabulary,
        pipeline.remat != "none",
    )


@functools.lru_cache(maxsize=16)
def _search(sizes, costs, mode, max_live, vocabulary, recompute):
    """A run asks for its schedule twice: to check its settings and to train."""
    found = search(*sizes, costs=costs, mode=mode, max_live=max_live, vocabulary=vocabulary, recompute=recompute)
    return found.schedule


def check_unused(pipeline):
    """Refuses settings of the search where nothing is searched for."""
    for setting, default in (("costs", ""), ("search_mode", "free")):
        value = getattr(pipeline, setting)
        if pipeline.schedule != "auto" and value != default:
            reason = f"pipeline.schedule={pipeline.schedule} does not search"
            remedy = f"Set pipeline.schedule=auto, or pipeline.{setting}={default or repr(default)}"
            refuse(f"pipeline.{setting}", value, "would not be read", reason, remedy)


def check_cap(pipeline, schedule):
    """A named schedule or a file's keeps the cap, or is refused."""
    peak = peak_chunks(schedule) / schedule.num_chunks
    if pipeline.max_live and peak > pipeline.max_live + _ROUNDING:
        shown = math.ceil(peak * 1000) / 1000
        reason = f"pipeline.schedule={pipeline.schedule} holds {shown:g} microbatches of activations on one rank"
        remedy = f"Set pipeline.max_live={shown:g}, or pipeline.schedule=auto"
        refuse("pipeline.max_live", f"{pipeline.max_live:g}", "is exceeded", reason, remedy)
