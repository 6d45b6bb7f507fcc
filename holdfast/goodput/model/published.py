"""Other people's closed forms, so that their published numbers can be compared with ours. Results are estimates."""

from __future__ import annotations

import math

from holdfast.goodput.model.estimate import Estimate, estimate, too_much_pressure


def ettr(*, interval_s: float, write_s: float, restart_s: float, mtbf_s: float) -> Estimate:
    """Effective training time ratio by Meta's formula (arXiv 2410.21680), without its queue term.

    (1 - (restart + interval / 2) / mtbf) / (1 + write / interval). write_s: blocked per save. The formula is of first
    order: failures during a restart do not exist in it.
    """
    if not interval_s > 0 or not mtbf_s > 0 or min(write_s, restart_s) < 0:
        raise ValueError("interval and time between failures must be above 0, the other times at least 0")
    pressure = (restart_s + interval_s / 2) / mtbf_s
    number = (1 - pressure) / (1 + write_s / interval_s)
    return estimate("ETTR by Meta's closed form", number, too_much_pressure(pressure))


def runtime_goodput(
    *, between_s: float, lost_s: float = 0.0, reschedule_s: float = 0.0, resume_s: float = 0.0
) -> Estimate:
    """Google's runtime goodput: (I - t_ch) / (I + t_re + t_rm).

    between_s: I, running time between two interruptions. lost_s: t_ch, work of it that is lost. reschedule_s and
    resume_s: t_re and t_rm, until the job has nodes again and until it trains again. It counts what happened rather
    than predicting it, so it holds at any failure rate.
    """
    if not between_s > 0 or min(lost_s, reschedule_s, resume_s) < 0 or lost_s > between_s or math.isinf(between_s):
        raise ValueError("running time must be above 0 and finite, the others at least 0, and lost time part of it")
    return estimate("Google's runtime goodput", (between_s - lost_s) / (between_s + reschedule_s + resume_s))
