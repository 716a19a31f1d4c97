"""Code of attackers, by attack. `W` is what they know of the outside; `ESCAPED` is what they got."""

from __future__ import annotations

_TRY = '''
def attempt(what, act, *arguments):
    """Say that an act, which must fail, has not."""
    try:
        result = act(*arguments)
    except (OSError, ValueError, MemoryError, OverflowError):
        return
    print("ESCAPED", what, repr(result)[:200])
libc = ctypes.CDLL(None, use_errno=True)
def must_fail(what, name, *arguments):
    if getattr(libc, name)(*arguments) >= 0:
        print("ESCAPED", what)
def read(path):
    with open(path, "rb") as file:
        return file.read(100)
def write(path):
    with open(path, "wb") as file:
        file.write(b"x")
'''
_RAW = {
    "tcp": """
import fcntl, struct
addresses = ["127.0.0.1", "0.0.0.0", "::1", "10.0.2.2", "172.17.0.1", "169.254.169.254", "8.8.8.8"]
for address in addresses:
    attempt(address, socket.create_connection, (address, W["tcp"]), 1)
names = [name for _, name in socket.if_nameindex()]
if [name for name in names if name not in ("lo", "sit0", "tunl0", "ip6tnl0", "gre0", "erspan0", "gretap0", "ip_vti0", "ip6_vti0", "ip6gre0")]:
    print("ESCAPED: interfaces", names)
attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt("packet", socket.socket, 17, socket.SOCK_RAW, 3)
""",
    "udp": """
one = socket.socket(type=socket.SOCK_DGRAM)
for address in ("127.0.0.1", "10.0.2.2", "172.17.0.1", "8.8.8.8"):
    try:
        one.sendto(b"out", (address, W["udp"]))
    except OSError:
        pass
""",
    "dns": 'attempt("dns", socket.getaddrinfo, "example.com", 80)\n',
    "abstract_socket": 'attempt("abstract", socket.socket(socket.AF_UNIX).connect, W["abstract"])\n',
    "path_socket": """
attempt("path", socket.socket(socket.AF_UNIX).connect, W["path_socket"])
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"):
    attempt(path, socket.socket(socket.AF_UNIX).connect, path)
""",
    "virtual_machine_socket": """
for family in (40, 38, 39, 15, 31, 29):
    attempt(f"family {family}", socket.socket, family, socket.SOCK_STREAM)
    attempt(f"family {family}", socket.socket, family, socket.SOCK_DGRAM)
""",
    "signals_outside": """
for process in (W["victim"], W["owner"], -W["victim"], -W["owner"]):
    attempt(process, os.kill, process, signal.SIGKILL)
seen = [name for name in os.listdir("/proc") if name.isdigit()]
if len(seen) > 3:
    print("ESCAPED: processes", seen)
attempt("pidfd", os.pidfd_open, W["victim"])
must_fail("ptrace", "ptrace", 16, W["victim"], None, None)
""",
    "first_process": """
import resource
must_fail("ptrace attach", "ptrace", 16, 1, None, None)
must_fail("ptrace seize", "ptrace", 0x4206, 1, None, None)
attempt("prlimit", resource.prlimit, 1, resource.RLIMIT_NOFILE, (0, 0))
attempt("prlimit", resource.prlimit, 1, resource.RLIMIT_CPU, (1, 1))
for name in ("mem", "environ", "fd", "root", "cwd", "exe", "maps", "auxv", "syscall", "map_files"):
    attempt(name, os.listdir if name in ("fd", "map_files") else read, f"/proc/1/{name}")
for number in range(10):
    attempt(f"fd {number}", os.open, f"/proc/1/fd/{number}", os.O_RDWR)
pid = os.pidfd_open(1)
if libc.syscall(438, pid, 0, 0) >= 0:
    print("ESCAPED: pidfd_getfd")
os.kill(1, signal.SIGKILL) if os.getuid() == 0 else None
""",
    "files_outside": """
for place in ("", "/proc/1/root", "/proc/1/cwd", "/proc/self/root", "/proc/self/root/..", "/..", "/.old", "/old",
              "/proc/self/cwd/../../../../..", "/home/user/../..", "/proc/thread-self/root"):
    attempt(place, read, place + W["secret_path"])
for path in ("/etc/shadow", "/etc/ssh", "/run", "/sys", "/var/lib", "/mnt/clone", "/mnt/home", "/media", "/boot", "/srv", "/proc/kcore", "/proc/kmsg",
             "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/nvidia0", "/dev/kvm", "/dev/fuse", "/dev/tty", "/dev/net/tun"):
    attempt(path, os.open, path, os.O_RDONLY)
if os.path.isdir("/root") and os.path.exists("/root/.bashrc"):
    print("ESCAPED: /root")
os.symlink(W["secret_path"], "/tmp/link")
attempt("link", read, "/tmp/link")
attempt("hard link", os.link, "/etc/passwd", "/tmp/hard")
for root, folders, files in os.walk("/"):
    if root == "/":
        folders[:] = [name for name in folders if name not in ("proc", "usr")]
    for name in files:
        if name == "secret.txt":
            print("ESCAPED", root, name)
handle = ctypes.create_string_buffer(b"\\x08\\0\\0\\0\\x01\\0\\0\\0\\x02\\0\\0\\0\\0\\0\\0\\0", 32)
must_fail("open_by_handle_at", "open_by_handle_at", os.open("/usr", os.O_RDONLY), handle, 0)
""",
    "environment_outside": """
if W["secret"] in str(dict(os.environ)):
    print("ESCAPED: the environment")
for process in [name for name in os.listdir("/proc") if name.isdigit()]:
    try:
        with open(f"/proc/{process}/environ") as file:
            if W["secret"] in file.read():
                print("ESCAPED: the environment of", process)
    except OSError:
        pass
if set(os.environ) - {"PATH", "HOME", "USER", "LANG", "TMPDIR", "LC_CTYPE"}:
    print("ESCAPED", sorted(os.environ))
""",
    "system_files": """
folders = ["/", "/usr", "/usr/bin", "/usr/lib", "/bin", "/etc", "/dev", "/proc", "/home", "/var", os.path.dirname(sys.executable)]
for folder in folders:
    attempt(folder, write, folder + "/x")
    attempt(folder, os.mkdir, folder + "/y")
    attempt(folder, os.rename, folder, "/tmp/moved")
    attempt(folder, os.chmod, folder, 0o777)
for path in ("/etc/passwd", "/etc/ld.so.cache", sys.executable, os.path.realpath(sys.executable), "/bin/sh", "/usr/bin/env", os.__file__):
    attempt(path, write, path)
    attempt(path, os.unlink, path)
    attempt(path, os.chmod, path, 0o777)
    attempt(path, os.truncate, path, 0)
""",
    "proc_tricks": """
for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
             "/proc/sys/kernel/modprobe", "/proc/sys/user/max_user_namespaces", "/proc/sys/fs/file-max", "/proc/sys/kernel/shmmax",
             "/proc/sys/net/ipv4/ip_forward", "/proc/self/loginuid", "/proc/self/uid_map", "/proc/self/setgroups", "/proc/1/oom_score_adj",
             "/proc/sys/kernel/ns_last_pid", "/proc/sys/fs/binfmt_misc/register", "/proc/self/mem/x", "/proc/1/comm", "/proc/1/autogroup"):
    def act():
        with open(path, "w") as file:
            file.write("1")
    attempt(path, act)
for process in (W["victim"], W["owner"]):
    if os.path.exists(f"/proc/{process}/exe") and process > 50:
        print("ESCAPED: sees", process)
attempt("setns", lambda: [libc.setns(os.open(f"/proc/1/ns/{kind}", os.O_RDONLY), 0) for kind in ("mnt", "pid", "net", "user")])
attempt("chroot", os.chroot, "/tmp")
""",
    "own_program": """
for path in ("/proc/self/exe", "/proc/1/exe", "/proc/thread-self/exe"):
    attempt(path, os.open, path, os.O_WRONLY)
    attempt(path, os.open, path, os.O_RDWR)
    attempt(path, os.truncate, path, 0)
attempt("map_files", lambda: [os.open(f"/proc/self/map_files/{name}", os.O_RDWR) for name in os.listdir("/proc/self/map_files")][0])
""",
    "more_rights": """
import subprocess
if 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()) or 0 in os.getgroups():
    print("ESCAPED: root")
for line in open("/proc/self/status"):
    if line.startswith("Cap") and int(line.split()[1], 16):
        print("ESCAPED", line)
    if line.startswith(("NoNewPrivs:", "Seccomp:")) and line.split()[1] == "0":
        print("ESCAPED", line)
for act in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0), lambda: os.nice(-5)):
    attempt("id", act)
must_fail("mknod", "mknod", b"/tmp/disk", 0o60666, (253 << 8))
must_fail("reboot", "reboot", 0x1234567)
must_fail("settimeofday", "settimeofday", (ctypes.c_long * 2)(1, 1), None)
must_fail("sethostname", "sethostname", b"x", 1)
must_fail("acct", "acct", b"/tmp/acct")
must_fail("swapon", "swapon", b"/tmp/x", 0)
must_fail("iopl", "iopl", 3) if os.uname().machine == "x86_64" else None
os.system("cp /bin/sh /tmp/sh; chmod 6777 /tmp/sh")
for command in (["su", "-c", "id -u"], ["/tmp/sh", "-pc", "id -u"], ["sudo", "-n", "id", "-u"], ["newgrp", "root"], ["mount", "-t", "tmpfs", "x", "/tmp"]):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        continue
    if done.stdout.strip() == "0" or command[0] == "mount" and done.returncode == 0:
        print("ESCAPED", command, done.stdout)
""",
    "new_namespaces": """
for name, flag in {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000,
                   "cgroup": 0x02000000, "time": 0x80}.items():
    must_fail(f"unshare {name}", "unshare", flag)
number = 56 if os.uname().machine == "x86_64" else 220
child = libc.syscall(number, 0x10000000 | 17, None, None, None, None)
if child == 0:
    os._exit(0)
if child > 0:
    print("ESCAPED: clone")
must_fail("mount", "mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None)
must_fail("bind", "mount", b"/proc/1/root", b"/tmp", None, 0x1000, None)
must_fail("remount", "mount", None, b"/usr", None, 0x20 | 0x1000, None)
must_fail("umount", "umount2", b"/usr", 2)
must_fail("pivot_root", "syscall", 155 if os.uname().machine == "x86_64" else 41, b"/tmp", b"/tmp")
""",
    "keyrings": """
numbers = (250, 248, 249) if os.uname().machine == "x86_64" else (219, 217, 218)
must_fail("keyctl", "syscall", numbers[0], 0, -3, 0)
must_fail("add_key", "syscall", numbers[1], b"user", b"x", b"y", 1, -3)
must_fail("request_key", "syscall", numbers[2], b"user", b"x", None, -3)
try:
    listed = open("/proc/keys").read()
except OSError:
    listed = ""
if listed:
    print("ESCAPED", listed)
""",
    "open_files": """
found = sorted(os.listdir("/proc/self/fd"), key=int)
for name in found[3:]:
    try:
        print("ESCAPED", name, os.readlink("/proc/self/fd/" + name))
    except OSError:
        pass
""",
    "terminal": """
attempt("tty", os.open, "/dev/tty", os.O_RDWR)
attempt("tcgetpgrp", os.tcgetpgrp, 0)
import fcntl
attempt("TIOCSTI", fcntl.ioctl, 0, 0x5412, b"x")
""",
    "one_large_file": """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for place in ("/tmp", "/home/user", "/dev/shm", "/var/tmp"):
    size = 0
    with open(place + "/large", "wb", buffering=0) as file:
        try:
            while size <= W["file"]:
                size += file.write(bytes(1 << 20))
        except OSError:
            pass
        if size > W["file"]:
            print("ESCAPED", place, size)
        attempt("truncate", os.ftruncate, file.fileno(), 1 << 40)
        attempt("fallocate", os.posix_fallocate, file.fileno(), 0, 1 << 40)
    os.unlink(place + "/large")
""",
    "many_files": """
total, number, held = 0, 0, []
places = ("/tmp", "/home/user", "/dev/shm", "/var/tmp")
for number in range(200):
    path = places[number % 4] + f"/{number}"
    try:
        file = open(path, "wb", buffering=0)
        held.append(file)
        os.unlink(path)
        for _ in range(4):
            total += file.write(bytes(1 << 20))
    except OSError:
        continue
    if total > W["disk"]:
        print("ESCAPED", total)
        break
""",
    "many_empty_files": """
count = 0
for place in ("/tmp", "/home/user", "/dev/shm", "/var/tmp"):
    try:
        for number in range(W["files"] + 10):
            os.mkdir(f"{place}/{number}")
            count += 1
    except OSError:
        pass
if count > W["files"]:
    print("ESCAPED", count)
os.system("rm -rf /tmp/* /home/user/*")
""",
    "memory_of_one": 'attempt("memory", lambda: len(bytearray(1 << 30)))\n',
    "memory_of_all": """
import mmap
total = 0
children = []
for _ in range(W["processes"] - 4):
    r, w = os.pipe()
    child = os.fork()
    if not child:
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("0")
        except OSError:
            pass
        held = bytearray(150 << 20)
        for at in range(0, len(held), 4096):
            held[at] = 1
        os.write(w, b".")
        time.sleep(60)
        os._exit(0)
    os.close(w)
    children.append((child, r))
for child, r in children:
    os.read(r, 1)
alive = [child for child, _ in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
print(len(alive) * 150)
sys.stdout.flush()
for child in alive:
    os.kill(child, 9)
print("DONE")
""",
    "hidden_memory": """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
total, held = 0, []
try:
    for _ in range(400):
        one = os.memfd_create("x")
        held.append(one)
        try:
            for _ in range(7):
                total += os.write(one, bytes(1 << 20))
                print(total >> 20, flush=True)
        except OSError:
            break
except OSError:
    pass
shmget, shmat = (29, 30) if os.uname().machine == "x86_64" else (194, 196)
libc.shmat.restype = ctypes.c_void_p
for _ in range(100):
    one = libc.shmget(0, 16 << 20, 0o1600)
    if one < 0:
        break
    at = libc.shmat(one, None, 0)
    if at in (None, 2**64 - 1):
        break
    ctypes.memset(at, 1, 16 << 20)
    libc.shmdt(ctypes.c_void_p(at))
    total += 16 << 20
    print(total >> 20, flush=True)
print(total >> 20)
""",
    "fork_bomb_counted": """
count = 0
try:
    while count <= 4 * W["processes"]:
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError:
    pass
if count > W["processes"]:
    print("ESCAPED", count)
import threading
print("DONE", flush=True)
os.kill(-1, 9)
""",
    "hidden_system_calls": """
numbers = {"bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "syslog": 103, "kexec_load": 246, "init_module": 175}
if os.uname().machine == "x86_64":
    for name, number in numbers.items():
        must_fail(name, "syscall", number, 3, 0, 0)
    must_fail("x32", "syscall", 0x40000000 | 39)
""",
    "devices": """
for name in os.listdir("/dev"):
    if name not in ("null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm"):
        print("ESCAPED", name)
""",
    "other_boxes": """
for path in ("/tmp/a", "/home/user/a", "/dev/shm/a"):
    attempt(path, read, path)
for process in [name for name in os.listdir("/proc") if name.isdigit()]:
    try:
        if b"sleep" in read(f"/proc/{process}/cmdline"):
            print("ESCAPED: sees", process)
    except FileNotFoundError:
        pass
""",
    "bombs": """
os.makedirs("/tmp/odd/folder")
os.makedirs("/tmp/many")
for number in range(2000):
    os.link("/tmp/many/0", f"/tmp/many/{number}") if number else open("/tmp/many/0", "wb").write(bytes(1 << 20))
open("/tmp/odd/file", "w").write("x")
os.symlink("file", "/tmp/odd/link-to-file")
os.symlink("/etc/passwd", "/tmp/odd/passwd")
os.symlink(W["secret_path"], "/tmp/odd/secret")
os.symlink("nowhere", "/tmp/odd/dangling")
os.symlink(".", "/tmp/odd/loop")
os.symlink("/dev/zero", "/tmp/odd/device")
os.mkfifo("/tmp/odd/pipe")
socket.socket(socket.AF_UNIX).bind("/tmp/odd/socket")
os.makedirs("/tmp/sparse")
for number in range(20):
    with open(f"/tmp/sparse/{number}", "wb") as file:
        os.ftruncate(file.fileno(), 8 << 20)
import io, zipfile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
    file.writestr("bomb", bytes(64 << 20))
attempt("zip", lambda: zipfile.ZipFile(packed).extractall("/tmp/unzipped"))
""",
    "useful": """
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
import pty, subprocess, tempfile, threading
master, slave = pty.openpty()
os.write(slave, b"x")
tempfile.TemporaryFile().write(b"x")
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
assert subprocess.run(["ls", "/usr/bin"], capture_output=True, check=True).stdout
assert os.getcwd() == os.environ["HOME"]
open("mine", "w").write("x")
""",
}
SNIPPETS = {name: f'{_TRY}{code}\nprint("DONE")\n' for name, code in _RAW.items()}
