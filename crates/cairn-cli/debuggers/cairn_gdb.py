"""Adds the command cairn-block to gdb: who allocated the block at an address.

    (gdb) source cairn_gdb.py
    (gdb) cairn-block pointer

Of a core file that gdb has open, `cairn core` reads that file. A running program is saved with gcore into a directory of
mode 0700, which is removed when the answer is there. Nothing in the program is changed.
"""

import os
import re
import shutil
import subprocess
import tempfile

import gdb


def open_core():
    """Returns the path of the core file that gdb has open and no running program hides; None without one."""
    target = gdb.execute("info target", to_string=True)
    found = re.search(r"^Local core dump file:\s*[`'](.*)', file type", target, re.MULTILINE)
    return found.group(1) if found else None


def ask_cairn(core, address):
    """Runs cairn on a core file and returns what it prints."""
    command = [os.environ.get("CAIRN", "cairn"), "core", core, "--at", hex(address)]
    program = gdb.current_progspace().filename
    if program and os.path.isfile(program):
        command += ["--exe", program]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise gdb.GdbError(f"cairn-block: {command[0]}: {error.strerror}; set CAIRN to the path of cairn")
    text = done.stdout.decode(errors="replace")
    # 3: parts of the core are missing, which the text says.
    if done.returncode not in (0, 3):
        raise gdb.GdbError(f"cairn-block: {text.strip()}")
    return text


class CairnBlock(gdb.Command):
    """Show the block of memory at an address: where it begins, its size, and the stack that allocated it.

    cairn-block ADDRESS

ADDRESS is any expression. Of programs that ran under `cairn heap --annotate` the stack is known; of others, the block of
glibc's malloc. The environment variable CAIRN says where cairn is, if not on PATH."""

    def __init__(self):
        super().__init__("cairn-block", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, from_tty):
        if not argument.strip():
            raise gdb.GdbError("cairn-block: which address? For example: cairn-block pointer")
        value = gdb.parse_and_eval(argument)
        address = int(value.cast(gdb.lookup_type("unsigned long")))
        core = open_core()
        if core:
            gdb.write(ask_cairn(core, address))
            return
        if not gdb.selected_inferior().pid:
            raise gdb.GdbError("cairn-block: no program runs and no core file is open")
        directory = tempfile.mkdtemp(prefix="cairn-block-")
        try:
            core = os.path.join(directory, "core")
            gdb.execute(f"gcore {core}", to_string=True)
            gdb.write(ask_cairn(core, address))
        finally:
            shutil.rmtree(directory, ignore_errors=True)


CairnBlock()
