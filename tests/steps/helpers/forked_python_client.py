"""In place of `python`: has the server of forked_python.py fork a module's or script's process, and ends as that ends.

    python -IS forked_python_client.py SOCKET PYTHON [ARGUMENT…]

Any other arguments than `-m MODULE …` and `SCRIPT.py …` PYTHON itself gets.
"""

import json
import os
import signal
import socket
import sys

address, python, *arguments = sys.argv[1:]
if arguments[:1] == ["-u"]:  # torchrun's; the output is a file or a pipe, and flushed at the end
    del arguments[0]
if arguments[:1] != ["-m"] and not "".join(arguments[:1]).endswith(".py"):
    os.execv(python, [python, *arguments])
server = socket.socket(socket.AF_UNIX)
server.connect(address)
request = json.dumps({"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
server.sendall(request)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: server.sendall(bytes([number])))
status = server.recv(8)
if not status:
    sys.exit("the server of forked_python.py has ended")
exit_code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
if exit_code < 0:
    signal.signal(-exit_code, signal.SIG_DFL)
    os.kill(os.getpid(), -exit_code)
sys.exit(exit_code)
