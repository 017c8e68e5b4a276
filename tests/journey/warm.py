"""What the server of forks has ready: the worker, and all that the SDKs would else import at a process's first call.

Those imports are most of the time of a process that is killed a second later. Nothing here starts a thread, opens a
file of a test or makes a connection, so that each fork is as a new process would be after its imports.
"""

from __future__ import annotations

import threading

import anthropic
import anthropic.resources.beta.messages.batches
import anthropic.resources.messages.batches
import genai_prices.data
import genai_prices.data_snapshot
import h11
import httpcore2
import openai
import openai.resources.batches
import openai.resources.chat.completions
import openai.resources.files
import openai.resources.models
import openai.resources.responses
import polars
import pyarrow
import pyarrow.ipc

from journey import worker

READY = (worker, genai_prices.data, h11, httpcore2, polars, pyarrow.ipc)

for client in (openai.OpenAI(api_key="warm"), anthropic.Anthropic(api_key="warm")):
    client.close()  # made for what making one imports

assert threading.active_count() == 1, "a fork of a process with threads may hang"
