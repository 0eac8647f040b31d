"""What a compiled step communicates, moves and needs, as plain numbers."""

from jaxpar.accounting.collectives import collectives, count_by_axes, select
from jaxpar.accounting.memory import bytes_per_device, temporary_bytes
from jaxpar.targets.messages import asynchronous, overlapped
from jaxpar.targets.moves import largest, moves, of_buffers
from jaxpar.targets.paper import step_bytes


def report(step):
    """The report of a `jaxpar.targets.compile.Step`.

    Returns:
      dict, all bytes those of one device:
        device, compile_s, ticks;
        param_bytes; temp_bytes, as the compiler allocates; expected_bytes, its parts on paper and their total;
        collectives: {"tensor": {"all-reduce": {"loop": 8, "once": 0}}}, counted in the text;
        permutes, asynchronous_permutes, overlapped_permutes: permutes over `pipe`; those that leave the device free
        for other work; those behind which the compiler hides some;
        payload_bytes, of a message; residual_bytes, of the largest array that is kept for one layer and microbatch;
        relayout_bytes, of the largest copy that one layer alone makes of its own values;
        largest_copy_bytes, largest_load_bytes in the tick loop; copies: those over a payload, with their shapes and
        where they come from; copied_buffers: those of them that copy a whole buffer of the executor.
    """
    text = step.compiled.as_text()
    found = collectives(text, step.mesh)
    permutes = select(found, kind="collective-permute", axis="pipe")
    moved = moves(text)
    paper = step_bytes(step)
    large = [m for m in moved if m.num_bytes > paper.payload]
    return {
        "device": step.mesh.devices.flat[0].device_kind,
        "mesh": dict(step.mesh.shape),
        "compile_s": round(step.compile_s, 1),
        "ticks": step.pipeline.plan.num_ticks,
        "param_bytes": bytes_per_device(step.params),
        "temp_bytes": temporary_bytes(step.compiled),
        "expected_bytes": {
            "slots": paper.slots,
            "stash": paper.stash,
            "stage": paper.stage,
            "total": paper.total,
        },
        "collectives": count_by_axes(found),
        "permutes": len(permutes),
        "asynchronous_permutes": len(asynchronous(text, permutes)),
        "overlapped_permutes": len(overlapped(text, permutes)),
        "payload_bytes": paper.payload,
        "residual_bytes": paper.residual,
        "relayout_bytes": paper.relayout,
        "largest_copy_bytes": largest(moved, "copy"),
        "largest_load_bytes": largest(moved, "load"),
        "copies": [str(m) for m in large if m.kind == "copy"],
        "copied_buffers": [str(m) for m in of_buffers(large, paper.buffers)],
    }
