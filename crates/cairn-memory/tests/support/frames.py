"""Threads at rest in every kind of Python frame; prints the interpreter's own answer for each."""
import os
import sys
import threading

QUIET, _ = os.pipe()
arrived = []


def block():
    arrived.append(threading.get_ident())
    os.read(QUIET, 1)


def in_calls(depth):
    if depth:
        return in_calls(depth - 1) + 1
    block()


def in_c_functions(depth=5):
    if not depth:
        return block()
    return sorted([depth], key=lambda left: list(map(in_c_functions, [left - 1])) and 0)


def generate(depth):
    if depth:
        yield from generate(depth - 1)
    yield block()


def in_generators():
    for _ in generate(4):
        pass


def catch():
    while True:
        try:
            yield
        except ValueError:
            block()


def delegate():
    yield from catch()


def in_throw():
    thrown = delegate()
    next(thrown)
    thrown.throw(ValueError())


async def leaf():
    block()


async def awaiting():
    async def between():
        return await leaf()

    return await between()


def in_coroutines():
    awaiting().send(None)


class Made:
    def __init__(self, depth):
        self.inner = Made(depth - 1) if depth else [block() for _ in (1,)]

    def __del__(self):
        pass


class Dropped:
    def __del__(self):
        block()


def in_objects():
    return Made(3)


def in_finalizer():
    Dropped()


def in_exec():
    exec(compile("def made():\n\n    block()\nmade()", "<made é 🐍>", "exec"), {"block": block})


def in_lines():
    values = [
        1,
        (lambda: block())(),
        2,
    ]
    with threading.Lock():
        return values


WORKS = [
    lambda: in_calls(3),
    lambda: in_calls(300),
    in_c_functions,
    in_generators,
    in_throw,
    in_coroutines,
    in_objects,
    in_finalizer,
    in_exec,
    in_lines,
]


def name(code):
    return getattr(code, "co_qualname", code.co_name)


def report(waiting):
    native = {thread.ident: thread.native_id for thread in threading.enumerate()}
    out = []
    for ident, frame in sys._current_frames().items():
        if ident not in waiting:
            continue
        while frame:
            code = frame.f_code
            line = "%d\t%s\t%s\t%s" % (native[ident], name(code), code.co_filename, frame.f_lineno)
            out.append(line)
            frame = frame.f_back
    sys.stdout.buffer.write(("\n".join(out) + "\nend\n").encode("utf-8", "surrogateescape"))
    sys.stdout.flush()


def answer():
    # The works are at rest once each has arrived and waits in the kernel.
    while len(arrived) < len(WORKS):
        pass
    import time

    time.sleep(0.2)
    report(set(arrived) | {threading.main_thread().ident})
    os.read(QUIET, 1)


def main():
    for work in WORKS:
        threading.Thread(target=work, daemon=True).start()
    last = threading.Thread(target=answer, daemon=True)
    last.start()
    os.read(QUIET, 1)


main()
