"""What a worker starts in place of `python -m prefect.engine`: has the run's process forked, and ends as it.

It knows nothing of Prefect, so that it starts at once: `python -I -S worker_kills_shim.py SOCKET`.
"""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as parent:
    parent.connect(sys.argv[1])
    parent.sendall(json.dumps({"environment": dict(os.environ), "folder": os.getcwd()}).encode() + b"\n")
    said = parent.makefile("rb").readline()
code = int(said) if said else -signal.SIGKILL
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
