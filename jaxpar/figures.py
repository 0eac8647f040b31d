"""loss.png, the curve of a run. (schedule.svg is the schedule room's own drawing.)"""

import io
import math

import numpy as np

from jaxpar.metrics import bits_per_byte

# Okabe and Ito's palette, told apart with any colour vision.
_TRAIN, _HELD_OUT, _BASELINE = "#0072b2", "#d55e00", "#4d4d4d"


def loss_png(losses, held_out, baseline=None, title=""):
    """The loss over steps, in bits per byte.

    Args:
      losses: list of (step, nats a token).
      held_out: list of (step, nats a token), drawn as points.
      baseline: bits per byte of a simpler model, drawn as a line; None draws none.
      title: str.

    Returns:
      bytes of a PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to load, and needed once, at the end
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        [step for step, _ in losses], [bits_per_byte(nats) for _, nats in losses], color=_TRAIN, lw=1, label="training"
    )
    if held_out:
        bits = [bits_per_byte(nats) for _, nats in held_out]
        axes.plot(
            [step for step, _ in held_out], bits, "o-", color=_HELD_OUT, label=f"held out ({bits[-1]:.2f} at the end)"
        )
    if baseline is not None:
        axes.axhline(baseline, color=_BASELINE, ls="--", lw=1, label=f"order-2 byte model ({baseline:.2f})")
    bits = [bits_per_byte(nats) for _, nats in losses if math.isfinite(nats)]
    if bits:
        # The first steps are far above the rest, which is what one looks at.
        ends = [bits_per_byte(nats) for _, nats in held_out if math.isfinite(nats)]
        axes.set_ylim(top=1.1 * max([np.quantile(bits, 0.98), baseline or 0.0, *ends]))
    axes.set(xlabel="step", ylabel="bits per byte", title=title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    FigureCanvasAgg(figure).print_png(picture)
    return picture.getvalue()
