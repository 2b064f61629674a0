"""A real systemd as a separate host: in namespaces, on an overlay of this system.

It needs root, Linux 5.6, cgroup2 and systemd (apt-get install systemd). It boots a minimal system
that uses neither the devices nor the network of the machine.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")


def _cgroups() -> Path | None:
    """Returns the mount point of the first cgroup2 of this system."""
    mounts = Path("/proc/mounts")
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    return next((Path(place) for _, place, kind, *_ in lines if kind == "cgroup2"), None)


# Default units that would act on the machine itself.
_MASKED = ("getty.target", "systemd-udevd.service", "systemd-logind.service",
           "systemd-modules-load.service", "systemd-sysctl.service", "systemd-remount-fs.service",
           "systemd-journald-audit.socket", "systemd-networkd.service", "systemd-resolved.service",
           "systemd-timesyncd.service", "apt-daily.timer", "apt-daily-upgrade.timer")  # fmt: skip
_BOOT = r"""
set -e
echo $$ >"$CGROUP/cgroup.procs"
exec setpriv --pdeathsig KILL unshare --cgroup --mount --pid --fork --uts --ipc --kill-child \
    bash -ec '
mount -t overlay overlay -o lowerdir=/,upperdir=$DISK/upper,workdir=$DISK/work $DISK/root
cd $DISK/root
mount --bind /sys sys
mount -o remount,bind,ro sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t proc proc proc
for name in dev run tmp; do mount -t tmpfs tmpfs $name; done
for name in null zero full random urandom; do
    touch dev/$name
    mount --bind /dev/$name dev/$name
done
mkdir -p dev/shm ./$SHARED
mount --bind $SHARED ./$SHARED
mount --bind $DISK/units etc/systemd/system
exec chroot . env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    '$SYSTEMD' --log-target=null'
"""


class Systemd:
    """Boots, resets and removes a host with its disk in `directory`. The host sees the folder
    `shared`, and its units have `environment`.
    """

    def __init__(self, directory: Path, shared: Path, environment: dict[str, str]) -> None:
        self._disk, self._shared = directory, shared
        self.files = directory / "upper"
        for name in ("upper", "work", "root", "units"):
            (directory / name).mkdir(parents=True)
        for name in _MASKED:
            (directory / "units" / name).symlink_to("/dev/null")
        (directory / "units/default.target").symlink_to("/lib/systemd/system/multi-user.target")
        settings = " ".join(f'"{name}={value}"' for name, value in environment.items())
        conf = self.files / "etc/systemd/system.conf.d/test.conf"
        conf.parent.mkdir(parents=True)
        conf.write_text(f"[Manager]\nDefaultEnvironment={settings}\n")
        cgroups = _cgroups()
        self._cgroup = None if cgroups is None else cgroups / f"bert-jax-test-{os.getpid()}"
        self._unshare: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Returns after all units have started. Raises OSError if no systemd can be booted."""
        self.reset()
        if self._cgroup is None or os.geteuid() or not SYSTEMD.exists():
            raise OSError("it needs root, cgroup2 and systemd")
        self._cgroup.mkdir(exist_ok=True)
        variables = {"DISK": self._disk, "SHARED": self._shared, "CGROUP": self._cgroup,
                     "SYSTEMD": SYSTEMD}  # fmt: skip
        self._unshare = subprocess.Popen(
            ["bash", "-c", _BOOT],
            env=os.environ | {name: str(value) for name, value in variables.items()},
            stdin=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while self.run("systemctl", "is-system-running").stdout not in ("running\n", "degraded\n"):
            if self._unshare.poll() is not None:
                raise OSError("systemd has ended: overlays or namespaces may be forbidden here")
            assert time.monotonic() < until, self.run("systemctl", "list-jobs").stdout
            time.sleep(0.1)

    def run(self, *command: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on the host, as root."""
        if (init := self.init()) is None:
            return subprocess.CompletedProcess(command, 1, "", "the host is off")
        namespaces = ("--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root", "--wd")
        clean = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
        given = (f"{name}={value}" for name, value in settings.items())
        words = ["nsenter", f"--target={init}", *namespaces, *clean, *given, *map(str, command)]
        nothing = subprocess.DEVNULL
        return subprocess.run(words, stdin=nothing, capture_output=True, text=True, timeout=60)

    def init(self) -> int | None:
        """Returns the process id of the host's systemd, or None if the host is off."""
        if self._unshare is None or self._unshare.poll() is not None:
            return None
        with contextlib.suppress(OSError, ValueError):
            pid = self._unshare.pid
            child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return child
        return None

    def reset(self) -> None:
        """Powers off without a signal to the processes of the host."""
        if self._unshare is not None:
            if (init := self.init()) is not None:
                os.kill(init, signal.SIGKILL)
            self._unshare.kill()
            self._unshare.wait()
            self._unshare = None

    def remove(self) -> None:
        self.reset()
        shutil.rmtree(self._disk, ignore_errors=True)
        until = time.monotonic() + 10
        while self._cgroup is not None and self._cgroup.exists() and time.monotonic() < until:
            for folder, _, _ in os.walk(self._cgroup, topdown=False):
                with contextlib.suppress(OSError):  # its processes have not ended yet
                    os.rmdir(folder)
            time.sleep(0.05)
