"""Run the emulator by hand or for a test: `python -m emulator --state DIR --port 0`.

It prints one line of JSON with its port when it is ready.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path

from emulator.provider import Provider
from emulator.server import Server
from emulator.state import State


def main() -> None:
    """Serve until killed, or until standard input ends where that was asked for."""
    parser = argparse.ArgumentParser(prog="emulator", description="An emulated provider of LLM calls on loopback.")
    parser.add_argument("--state", type=Path, required=True, help="folder of the state; made where absent")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--speed", type=float, help="seconds of provider time a real second")
    parser.add_argument("--faults", type=json.loads, default={}, help="settings of Faults as JSON")
    parser.add_argument("--until-stdin-ends", action="store_true", help="exit with the process that started this one")
    options = parser.parse_args()
    options.state.mkdir(parents=True, exist_ok=True)
    server = Server(Provider(State(options.state), speed=options.speed, faults=options.faults), options.port)
    if options.until_stdin_ends:
        threading.Thread(target=_exit_with_keeper, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    server.serve_forever()


def _exit_with_keeper() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
