"""The inside of the sandbox: a small clean interpreter that forks one child per program.

`sandbox/__init__.py` starts this file as a process of its own; its docstring says what is
protected. A request is a line of JSON on the standard input. The answer is a header (exit status,
two lengths), the report that the program's process left, and what the program printed; both are cut
to a cap.
The report is that process's own word: bytes that may be anything, and that are not looked at here.

A layer of protection is a function that the worker calls once, and that returns what each child is
to call. Where the system refuses a layer, one of the two raises OSError: that is tried out in a
child that is thrown away.
"""

import _sitebuiltins
import builtins
import contextlib
import ctypes
import decimal
import fractions
import importlib
import json
import os
import resource
import select
import signal
import struct
import sys
import sysconfig
import time
import types
from os import _exit, write  # by name: a program may replace os._exit

MAX_REPORT, MAX_OUTPUT, MAX_DETAIL = 1 << 16, 1 << 16, 1000  # bytes, bytes, characters
TOO_LARGE = 10**4000  # Python refuses to print integers of more than 4,300 digits
TIMED_OUT = 1 << 10  # in place of an exit status
HEADER = struct.Struct("!iII")  # exit status, bytes of the report, bytes of the output
REPORT = 3  # the descriptor
PRELOADED = """
    collections copy dataclasses datetime decimal enum fractions functools heapq itertools math
    operator random re statistics string typing
"""  # so that programs need not wait for them
TYPE_NAME = type.__dict__["__name__"].__get__  # what no metaclass can override


# ------------------------------------------------------------------------------ layers (on Linux)

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *args):
    result = getattr(libc, function)(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), function)
    return result


def namespaces(directory):
    """No network, and a temporary directory in memory, of limited size."""
    user, group = os.getuid(), os.getgid()
    call("unshare", 0x10000000 | 0x00020000 | 0x40000000 | 0x08000000)  # user, mount, net, ipc
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    call("mount", None, b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
    flags, limits = 2 | 4 | 8, b"size=64m,nr_inodes=4096,mode=700"  # nosuid, nodev, noexec
    call("mount", b"tmpfs", os.fsencode(directory), b"tmpfs", flags, limits)
    return lambda: None  # children are born into the namespaces


def capabilities(directory):
    """What root can do beyond other users is given up."""
    return lambda: call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))


def landlock(directory):
    """No file is opened but in the temporary directory; Python and its libraries are read-only."""
    create_ruleset, add_rule, restrict_self = 444, 445, 446
    version = call("syscall", create_ruleset, None, 0, 1)
    every_right = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    execute, write_file, read_file, read_folder = 1, 2, 4, 8
    allowed = dict.fromkeys(library_folders(), read_file | read_folder)
    allowed |= {"/etc/ld.so.cache": read_file, "/dev/urandom": read_file}
    allowed |= {"/dev/null": read_file | write_file, directory: every_right & ~execute}
    rules = call("syscall", create_ruleset, struct.pack("Q", every_right), 8, 0)
    for path in filter(os.path.exists, allowed):
        fd = os.open(path, os.O_PATH)
        call("syscall", add_rule, rules, 1, struct.pack("=Qi", allowed[path], fd), 0)
        os.close(fd)
    return lambda: call("syscall", restrict_self, rules, 0)


def library_folders():
    system = "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"
    return {*system, f"{sys.base_prefix}/lib", sysconfig.get_paths()["stdlib"]}


def seccomp(directory):
    """No new process, program, socket or signal; no change of a file's owner, mode or times."""
    rules = b"".join(struct.pack("HBBI", *rule) for rule in system_call_filter())

    def enter():
        buffer = ctypes.create_string_buffer(rules)
        program = struct.pack("HP", len(rules) // 8, ctypes.addressof(buffer))
        call("prctl", 22, 2, program, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER

    return enter


MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as the kernel names them
DENIED = """
    fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, unshare 272 97, setns 308 268,
    kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272,
    setpriority 141 140, ioprio_set 251 30, sched_setparam 142 118, sched_setscheduler 144 119,
    sched_setaffinity 203 122, sched_setattr 314 274, migrate_pages 256 238, move_pages 279 239,
    socket 41 198, shmget 29 194, semget 64 190, msgget 68 186, mq_open 240 180,
    memfd_create 319 279, userfaultfd 323 282, perf_event_open 298 241, bpf 321 280,
    add_key 248 217, request_key 249 218, keyctl 250 219, syslog 103 116, personality 135 92,
    chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, lchown 94 -, fchown 93 55,
    fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88,
    setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15,
    fremovexattr 199 16, truncate 76 45, inotify_init 253 -, inotify_init1 294 26,
    fanotify_init 300 262, name_to_handle_at 303 264, open_by_handle_at 304 265
"""  # name, number on x86_64, number on aarch64
BY_ARGUMENT = "clone 56 220, prlimit64 302 261, fcntl 72 25, ioctl 16 29"
UNKNOWN = 424  # numbers from here on are the same everywhere; C libraries do without the calls


def system_call_filter():
    """A program for the kernel: (operation, jump if true, jump if false, operand) each."""
    load, equal, at_least, any_bit = 0x20, 0x15, 0x35, 0x45
    load_number, load_machine = (load, 0, 0, 0), (load, 0, 0, 4)
    kill, allow = (6, 0, 0, 0x80000000), (6, 0, 0, 0x7FFF0000)
    not_permitted, not_implemented = (6, 0, 0, 0x50000 | 1), (6, 0, 0, 0x50000 | 38)

    def unless(name, argument, *test):
        skip, load_argument = (equal, 0, 4, by_argument[name]), (load, 0, 0, 16 + 8 * argument)
        return [skip, load_argument, test, not_permitted, load_number]

    denied, by_argument = numbers(DENIED), numbers(BY_ARGUMENT)
    yield from [load_machine, (equal, 1, 0, MACHINES[os.uname().machine]), kill]
    yield from [load_number, (at_least, 0, 1, UNKNOWN), not_implemented]
    for number in denied.values():
        yield from [(equal, 0, 1, number), not_permitted]
    yield from unless("clone", 0, any_bit, 1, 0, 0x10000)  # a thread
    yield from unless("prlimit64", 0, equal, 1, 0, 0)  # one's own limits
    for command in (8, 10, 15, 1024):  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals; F_SETLEASE
        yield from unless("fcntl", 1, equal, 0, 1, command)
    for command in (0x8901, 0x8902):  # FIOSETOWN, SIOCSPGRP: likewise
        yield from unless("ioctl", 1, equal, 0, 1, command)
    yield allow


def numbers(table):
    """{name: number} of the system calls that this machine has."""
    if os.uname().machine not in MACHINES:
        raise OSError(f"no table of system calls for {os.uname().machine}")
    column = 1 + list(MACHINES).index(os.uname().machine)
    rows = [row.split() for row in table.split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def works(layer, directory):
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            layer(directory)()
            _exit(0)
        _exit(1)
    return os.waitpid(pid, 0)[1] == 0


LAYERS = (namespaces, capabilities, landlock, seccomp) if sys.platform == "linux" else ()


# ------------------------------------------------------------------------------ the program's side


def be_the_program(request, directory, layers, report, output):
    """In the forked child, which ends here."""
    try:
        confine(request, directory, layers, report, output)
        write(REPORT, run(request["program"], request["function"]))
        _exit(0)  # no thread, exit handler or finaliser has a say
    finally:
        _exit(1)


def confine(request, directory, layers, report, output):
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        call("prctl", 1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: die with the worker
    for enter in layers.values():
        enter()
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in (nothing, 0), (output, 1), (output, 2), (report, REPORT):
        os.dup2(source, target)
    os.closerange(REPORT + 1, 256)
    limit(request["seconds"], request["memory"])
    sys.modules["random"].seed(0)  # a program that draws numbers has the same outcome each time


def limit(seconds, memory):
    cpu = int(seconds) + 2  # the worker's clock comes first
    limits = dict(AS=memory, CPU=cpu, FSIZE=1 << 24, NPROC=64, NOFILE=64, CORE=0)
    for name, value in limits.items():
        with contextlib.suppress(ValueError, OSError):  # below it already, or not on this system
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def run(program, function):
    """The report: what kind of outcome, and its value or a detail."""
    try:
        code = compile(program, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return b"syntax_error " + describe(error)
    except BaseException as error:
        return failed(error)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(code, main.__dict__)
        if function is None:
            return encode(None)
        if not callable(main.__dict__.get(function)):
            return b"no_function no function named " + function.encode()
        return encode(main.__dict__[function]())
    except BaseException as error:
        return failed(error)


def failed(error):
    if isinstance(error, MemoryError):
        return b"killed out of memory"
    return b"exception " + describe(error)


def describe(error):
    try:
        text = str(error)
    except BaseException:
        text = ""
    name = TYPE_NAME(type(error))
    return (f"{name}: {text}" if text else name)[:MAX_DETAIL].encode("utf-8", "backslashreplace")


def encode(value):
    """By exact type: no method of the value is called, for it may be an object made to deceive."""
    kind = type(value)
    if value is None:
        return b"ok NoneType "
    if kind is bool:
        return b"ok bool 1" if value else b"ok bool 0"
    if kind is int and -TOO_LARGE < value < TOO_LARGE:
        return b"ok int %x" % value
    if kind is float:
        return b"ok float " + struct.pack("!d", value)
    if kind is complex:
        return b"ok complex " + struct.pack("!dd", value.real, value.imag)
    if kind is fractions.Fraction or kind is decimal.Decimal:
        value, kind = str(value), str
    if kind is str and len(text := value.encode("utf-8", "surrogatepass")) <= MAX_REPORT // 2:
        return b"ok str " + text
    fault = "too large: " if kind is int or kind is str else "not a number, text, bool or None: "
    detail = f"the value is {fault}{TYPE_NAME(kind)}"[:MAX_DETAIL]
    return b"exception " + detail.encode("utf-8", "backslashreplace")


# ------------------------------------------------------------------------------- the worker's side


def serve(directory):
    prepare()
    layers = prepare_layers(directory)
    os.chdir(directory)
    wake = wake_when_children_end()
    try:
        send(0, json.dumps(list(layers)).encode(), b"")
        for request in requests():
            send(*answer(request, directory, layers, wake))
    except BrokenPipeError:
        pass  # the caller is gone
    finally:
        leave(directory, layers)


def prepare():
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # short of memory, the system is to choose this process, not the caller
    for name in PRELOADED.split():
        importlib.import_module(name)
    builtins.exit = builtins.quit = _sitebuiltins.Quitter("exit", "")
    os.environ.clear()


def prepare_layers(directory):
    """{name: what a child is to call} of those that work here."""
    layers = {}
    if LAYERS:
        call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, which the others build on
    for layer in LAYERS:
        if works(layer, directory):
            layers[layer.__name__] = layer(directory)
    return layers


def wake_when_children_end():
    """A descriptor that can be read whenever a child may have ended."""
    wake, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake


def leave(directory, layers):
    os.chdir("/")
    if "namespaces" in layers:
        call("umount2", os.fsencode(directory), 2)  # MNT_DETACH
    clear(directory)
    os.rmdir(directory)


def requests():
    """Until the caller is gone, which a descriptor kept open by another child may hide."""
    caller = os.getppid()
    while os.getppid() == caller:
        if select.select([0], [], [], 1.0)[0]:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            yield json.loads(line)


def send(status, report, output):
    sys.stdout.buffer.write(HEADER.pack(status, len(report), len(output)) + report + output)
    sys.stdout.buffer.flush()


def answer(request, directory, layers, wake):
    """Run one program: its exit status, report and output."""
    deadline = time.monotonic() + request["seconds"]
    (report, report_end), (output, output_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        be_the_program(request, directory, layers, report_end, output_end)
    os.close(report_end)
    os.close(output_end)
    texts = {report: bytearray(), output: bytearray()}
    status = watch(pid, texts, wake, deadline)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # what it left behind
    for fd in texts:
        read_the_rest(fd, texts[fd])
    clear(directory)
    status = TIMED_OUT if status is None else os.waitstatus_to_exitcode(status)
    return status, texts[report][:MAX_REPORT], texts[output][:MAX_OUTPUT]


def watch(pid, texts, wake, deadline):
    """Read what the program writes until it ends; None if it runs out of time or the caller goes.

    It may close what it writes to and run on, or end and leave others that write.
    """
    unfinished = set(texts)
    while (left := deadline - time.monotonic()) > 0:
        ready = select.select([0, wake, *unfinished], [], [], left)[0]
        if 0 in ready:
            return None
        if wake in ready:
            os.read(wake, 1 << 10)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
        for fd in unfinished.intersection(ready):
            chunk = os.read(fd, 1 << 16)
            texts[fd] += chunk[: max(MAX_REPORT, MAX_OUTPUT) - len(texts[fd])]
            if not chunk:
                unfinished.remove(fd)
    return None


def read_the_rest(fd, text):
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        text += os.read(fd, 1 << 20)
    os.close(fd)


def clear(directory):
    """Folders are moved up before they are emptied: they may be nested too deep for any path."""
    folders = [directory]
    while folders:
        folder = folders.pop()
        os.chmod(folder, 0o700)
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                folders.append(f"{directory}/{os.urandom(16).hex()}")
                os.rename(entry.path, folders[-1])
            else:
                os.unlink(entry.path)
        if folder != directory:
            os.rmdir(folder)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    serve(sys.argv[1])
