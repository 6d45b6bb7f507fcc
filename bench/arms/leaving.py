"""How a rank of a bench ends: at once, whether it went well or not."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import NoReturn


def leave_after(main: Callable[[], None]) -> NoReturn:
    """Call it and end this process with code 0, or with 1 after the traceback of what it raised. NCCL, compilers and
    some ways to save take their time to end, or never do; the driver ends what they started. A rank that has failed
    must not wait for peers that wait for it."""
    code = 0
    try:
        main()
    except BaseException:  # noqa: BLE001  the interpreter would print it too, and then might never end
        traceback.print_exc()
        code = 1
    from trainer.__main__ import leave  # last: what was measured has no use for what it imports

    leave(code)
