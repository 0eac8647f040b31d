"""report.json: what a run was, what it cost and what it reached."""

import math
import statistics

import jax

from jaxpar.accounting.collectives import collectives, count_by_axes
from jaxpar.accounting.flops import train_flops_per_token
from jaxpar.accounting.memory import bytes_by_rank, bytes_per_device, temporary_bytes
from jaxpar.metrics import bits_per_byte
from jaxpar.schedule import Costs
from jaxpar.schedule.messages import CHANNELS


def stage_costs(layout):
    """Costs where an average rank's whole forward takes one unit and a stage costs what its layers do."""
    unit = layout.num_layers / layout.num_ranks
    by_stage = [layers / unit for layers in layout.stage_layers]
    return Costs(F=by_stage, I=by_stage, W=by_stage)


def program_report(config, schedule, plan, mesh, state, compiled, bubbles, rows):
    """The part that is known before the first step.

    Args:
      config: Config, fitted.
      schedule: Schedule.
      plan: the Plan that runs.
      mesh: the device mesh.
      state: TrainState of arrays or ShapeDtypeStructs with shardings.
      compiled: the compiled training step.
      bubbles: simulated, of ranks running freely and in lockstep ticks, gradients sent after I.
      rows: int [num_ranks, rows], `Layout.rows`.

    Returns:
      dict: bytes are those of one device, and every device allocates as much as the one that needs most;
      bytes_by_rank says what each rank's own layers, embedding and head need of that; collectives
      are counted in the compiled text, in its loops and outside: {"tensor": {"all-reduce": {"loop": 4, "once": 0}}}.
    """
    return {
        "schedule": schedule.name,
        "mesh": dict(mesh.shape),
        "device": mesh.devices.flat[0].device_kind,
        "ticks": plan.num_ticks,
        "bubble": bubbles[0],
        "bubble_lockstep": bubbles[1],
        "peak_slots": {name: int(count) for name, count in plan.num_slots.items()},
        "message_patterns": {c: len(p) - 1 for c, p in zip(CHANNELS, plan.patterns, strict=True)},
        "temp_bytes": temporary_bytes(compiled),
        "param_bytes": bytes_per_device(state.params),
        "optimizer_bytes": bytes_per_device(state.opt_state),
        "bytes_by_rank": {
            "params": bytes_by_rank(state.params, rows),
            "optimizer": bytes_by_rank(state.opt_state, rows),
        },
        "num_params": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)),
        "collectives": count_by_axes(collectives(compiled.as_text(), mesh)),
        "flops_per_token": train_flops_per_token(config.model, config.data.seq_len),
    }


def run_report(history, step, baseline, bytes_per_token=1.0):
    """The part that is known at the end.

    Args:
      history: has losses and held_out, lists of (step, nats a token); step_times and waits, seconds, each measured
        after the step's work was done; skipped; interrupted; finished.
      step: batches done, of the whole run.
      baseline: bits per byte of the order-2 byte model, or None.
      bytes_per_token: of the held-out text; None where tokens stand for no text.

    Returns:
      dict; num_steps counts this start's; final_loss and held_out_loss in nats a token, step_time_s the median,
      input_wait_share the share of this start's time that steps waited for data; None where there is none.
    """
    losses, held_out, times = history.losses, history.held_out, history.step_times
    last = held_out[-1][1] if held_out else None
    return {
        "interrupted": history.interrupted,
        "finished": history.finished,
        "step": step,
        "num_steps": len(times),
        "num_skipped": history.skipped,
        "step_time_s": statistics.median(times) if times else None,
        "input_wait_share": sum(history.waits) / (sum(times) + sum(history.waits)) if times else None,
        "final_loss": losses[-1][1] if losses else None,
        "held_out_loss": last,
        "held_out_bits_per_byte": bits_per_byte(last, bytes_per_token),
        "order2_bits_per_byte": baseline,
    }
