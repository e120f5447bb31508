"""The client of warm commands (see `warm`), a script: `python -S -E tests/warm_client.py SOCKET WORD…`.

It begins within 20 ms, and so imports no more than it must.
"""

import os
import sys

WORDS, ENDED = "\0", "\x01"


def request(place, words):
    """The client: has the server run the words here, and ends as they end."""
    import _signal
    from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket
    from array import array

    line = socket(AF_UNIX, SOCK_STREAM)
    line.connect(place)
    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGQUIT):
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda caught, _: line.send(bytes([caught])))
    variables = WORDS.join(f"{name}={value}" for name, value in os.environ.items())
    asked = ENDED.join([os.getcwd(), variables, WORDS.join(words)]).encode(errors="surrogateescape")  # noqa: PTH109  pathlib takes long to import
    line.sendmsg([len(asked).to_bytes(4, "big")], [(SOL_SOCKET, SCM_RIGHTS, array("i", [0, 1, 2]))])
    while asked:
        asked = asked[line.send(asked) :]
    status = line.recv(4)
    if not status:
        os.write(2, b"The server of warm commands has died.\n")
        os._exit(70)
    code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    request(sys.argv[1], sys.argv[2:])
