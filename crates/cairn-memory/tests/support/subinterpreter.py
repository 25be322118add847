"""A thread at rest in a subinterpreter, which a function of the main interpreter runs; prints the frames of both."""
import os
import sys
import threading

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

INNER = """
import os, sys, _thread

def name(code):
    return getattr(code, "co_qualname", code.co_name)

def lines(frame):
    out = []
    while frame:
        out.append("%d\\t%s\\t%s\\t%d" % (_thread.get_native_id(), name(frame.f_code), frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return out
"""

BLOCK = """
quiet, _ = os.pipe()

def inner():
    out = "\\n".join(lines(sys._getframe()) + OUTER + ["end", ""]); os.write(1, out.encode()); os.read(quiet, 1)

def middle():
    return sorted([1], key=lambda _: inner())

middle()
"""

exec(INNER)


def run():
    interpreters.run_string(interpreters.create(), INNER + "OUTER = %r\n" % lines(sys._getframe()) + BLOCK)


def outer():
    return sorted([1], key=lambda _: run())


threading.Thread(target=outer, daemon=True).start()
os.read(os.pipe()[0], 1)
