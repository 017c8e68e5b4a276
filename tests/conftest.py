"""What holds for all tests, however they are started."""

from __future__ import annotations

import signal
from contextlib import suppress

# A script's `&` and some schedulers start processes with Ctrl-C ignored, and Python then hears none.
signal.signal(signal.SIGINT, signal.default_int_handler)

with suppress(ModuleNotFoundError):  # the environment of vLLM has no Hypothesis, and no test there that needs it
    from hypothesis import settings

    # How long an example takes says how busy the machine is.
    settings.register_profile("lotwise", deadline=None)
    settings.load_profile("lotwise")
