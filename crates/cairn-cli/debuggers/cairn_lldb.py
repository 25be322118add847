"""Adds the command cairn-block to lldb: who allocated the block at an address.

    (lldb) command script import cairn_lldb.py
    (lldb) cairn-block pointer

Of a core file that lldb has open, `cairn core` reads that file. Of a running program the memory is saved as a core file in
a directory of mode 0700, which is removed when the answer is there: lldb saves no such cores by itself on Linux. Nothing
in the program is changed.
"""

import os
import shutil
import struct
import subprocess
import tempfile

import lldb

PIECE = 1 << 22
ELF_CORE = b"\x7fELF"


class Problem(Exception):
    """What is wrong, in words for the user."""


def is_core(path):
    """True for an ELF file of type core."""
    try:
        with open(path, "rb") as file:
            start = file.read(18)
    except OSError:
        return False
    return start[:4] == ELF_CORE and len(start) == 18 and 4 in (start[16], start[17]) and 0 in (start[16], start[17])


def open_core(process):
    """Returns the path of the core file that lldb has open."""
    if hasattr(process, "GetCoreFile"):
        core = process.GetCoreFile()
        if core.IsValid():
            return core.fullpath
    # Before version 17 lldb does not say which file it is; it has it mapped.
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        names = {line.rstrip("\n").split(maxsplit=5)[5] for line in maps if line.count("/") and len(line.split()) > 5}
    cores = [name for name in names if name.startswith("/") and is_core(name)]
    if len(cores) != 1:
        raise Problem("which core file is open cannot be known here; give it: cairn-block ADDRESS CORE")
    return cores[0]


def note(kind, value):
    """Returns one entry of a core's notes."""
    padding = b"\0" * (-len(value) % 4)
    return struct.pack("<III", 5, len(value), kind) + b"CORE\0\0\0\0" + value + padding


def mapped_files(process):
    """Returns (start, end, offset, name) for each mapped file, as the kernel lists them."""
    files = []
    with open(f"/proc/{process.GetProcessID()}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            words = line.rstrip("\n").split(maxsplit=5)
            if len(words) == 6 and words[5].startswith("/") and not words[5].startswith("/dev/"):
                start, end = (int(part, 16) for part in words[0].split("-"))
                files.append((start, end, int(words[2], 16), words[5]))
    return files


def thread_status(thread, machine):
    """Returns a thread's `struct elf_prstatus`; cairn reads its number and registers."""
    order = {
        62: "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs rflags rsp ss fs_base gs_base ds es fs gs",
        183: " ".join(f"x{number}" for number in range(29)) + " fp lr sp pc cpsr",
    }[machine].split()
    frame = thread.GetFrameAtIndex(0)
    values = [frame.FindRegister(name).GetValueAsUnsigned(0) for name in order]
    head = struct.pack("<12xH18xI76x", 0, thread.GetThreadID() & 0xFFFFFFFF)
    return head + struct.pack(f"<{len(values)}Q", *values) + b"\0" * 8


def save_core(process, path):
    """Writes the memory that the program can write to, and the first page of each file, as a core file."""
    triple = process.GetTarget().GetTriple()
    machine = {"x86_64": 62, "aarch64": 183, "arm64": 183}.get(triple.split("-")[0])
    if machine is None or "linux" not in triple:
        raise Problem(f"{triple}: running programs of this machine cannot be saved; open a core file of it")
    try:
        files = mapped_files(process)
    except OSError as error:
        raise Problem(f"the mappings of the program: {error.strerror}; it must run on this machine") from error
    first_pages = {start for start, _, offset, _ in files if offset == 0}
    regions, info = process.GetMemoryRegions(), lldb.SBMemoryRegionInfo()
    parts = []
    for index in range(regions.GetSize()):
        if not regions.GetMemoryRegionAtIndex(index, info) or not info.IsReadable():
            continue
        start, end = info.GetRegionBase(), info.GetRegionEnd()
        name = info.GetName() or ""
        if name.startswith("/dev/") or name in ("[vvar]", "[vsyscall]"):
            continue
        rights = 4 | 2 * info.IsWritable() | 1 * info.IsExecutable()
        length = end - start if info.IsWritable() or not name.startswith("/") else 0
        if not length and start in first_pages:
            length = min(4096, end - start)
        parts.append((start, end - start, length, rights))
    threads = list(process)
    selected = process.GetSelectedThread().GetThreadID()
    threads.sort(key=lambda thread: thread.GetThreadID() != selected)
    name = os.path.basename(str(process.GetTarget().GetExecutable())).encode()[:15]
    info_note = struct.pack("<24xI12x16s80s", process.GetProcessID(), name, name)
    table = struct.pack("<QQ", len(files), 1) + b"".join(struct.pack("<QQQ", *file[:3]) for file in files)
    table += b"".join(os.fsencode(file[3]) + b"\0" for file in files)
    notes = note(3, info_note) + b"".join(note(1, thread_status(thread, machine)) for thread in threads)
    notes += note(0x46494C45, table)
    notes_at = 64 + 56 * (len(parts) + 1)
    at = (notes_at + len(notes) + 4095) & ~4095
    headers = struct.pack("<IIQQQQQQ", 4, 4, notes_at, 0, 0, len(notes), 0, 4)
    for start, size, length, rights in parts:
        headers += struct.pack("<IIQQQQQQ", 1, rights, at, start, 0, length, size, 4096)
        at += length
    elf = ELF_CORE + bytes([2, 1, 1]) + bytes(9)
    elf += struct.pack("<HHIQQQIHHHHHH", 4, machine, 1, 0, 64, 0, 0, 64, 56, len(parts) + 1, 0, 0, 0)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        output.write(elf + headers + notes)
        at = (notes_at + len(notes) + 4095) & ~4095
        for start, _, length, _ in parts:
            for offset in range(0, length, PIECE):
                wanted = min(PIECE, length - offset)
                error = lldb.SBError()
                bytes_read = process.ReadMemory(start + offset, wanted, error) or b""
                # Zeros become holes; what cannot be read is one too.
                output.seek(at + offset)
                if bytes_read.count(0) != len(bytes_read):
                    output.write(bytes_read)
            at += length
        output.truncate(at)


def ask_cairn(core, address, target):
    """Runs cairn on a core file and returns what it prints."""
    command = [os.environ.get("CAIRN", "cairn"), "core", core, "--at", hex(address)]
    program = target.GetExecutable().fullpath
    if program and os.path.isfile(program):
        command += ["--exe", program]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise Problem(f"{command[0]}: {error.strerror}; set CAIRN to the path of cairn") from error
    text = done.stdout.decode(errors="replace")
    # 3: parts of the core are missing, which the text says.
    if done.returncode not in (0, 3):
        raise Problem(text.strip())
    return text


def answer(context, argument):
    """Returns the text for `cairn-block ARGUMENT`."""
    process, target = context.GetProcess(), context.GetTarget()
    expression, _, core = argument.rpartition(" ")
    if not (expression and is_core(core)):
        expression, core = argument, None
    if not expression.strip():
        raise Problem("which address? For example: cairn-block pointer")
    if not process.IsValid() or process.GetState() != lldb.eStateStopped:
        raise Problem("no program is stopped here and no core file is open")
    frame = context.GetFrame()
    value = frame.EvaluateExpression(expression) if frame.IsValid() else target.EvaluateExpression(expression)
    if value.GetError().Fail():
        raise Problem(f"{expression}: {value.GetError().GetCString()}")
    address = value.GetValueAsUnsigned(0)
    if core is None and process.GetPluginName() == "elf-core":
        core = open_core(process)
    if core is not None:
        return ask_cairn(core, address, target)
    directory = tempfile.mkdtemp(prefix="cairn-block-")
    try:
        core = os.path.join(directory, "core")
        save_core(process, core)
        return ask_cairn(core, address, target)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def cairn_block(debugger, argument, context, result, _):
    """Show the block of memory at an address: where it begins, its size, and the stack that allocated it.

    cairn-block ADDRESS [CORE]

ADDRESS is any expression. Of programs that ran under `cairn heap --annotate` the stack is known; of others, the block of
glibc's malloc. The environment variable CAIRN says where cairn is, if not on PATH."""
    try:
        result.AppendMessage(answer(context, argument).rstrip())
    except Problem as problem:
        result.SetError(f"cairn-block: {problem}")


def __lldb_init_module(debugger, _):
    debugger.HandleCommand(f"command script add -f {__name__}.cairn_block cairn-block")
