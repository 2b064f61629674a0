"""TPU hosts that real ssh and scp reach: one sshd each, on addresses of loopback.

A session has what the fake cloud gives to a host: its home directory, and the fake programs of a
TPU host (systemd, pip and uv, the trainer) on its PATH. Keys come by the node's metadata alone.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from tests.launch.cloud import Cloud, wait_until
from tests.launch.fake_programs import program

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_FOLDERS = ("lib/openssh", "libexec/openssh", "lib/ssh", "libexec")
_SFTP = next((f for place in _FOLDERS if (f := Path("/usr", place, "sftp-server")).is_file()), None)
HAS_SSHD = bool(
    SSHD and _SFTP and shutil.which("ssh") and shutil.which("scp") and sys.platform == "linux"
)


class SshHosts:
    """The hosts of a fake cloud, at 127.0.0.2 and so on; with other host keys after each boot."""

    def __init__(self, cloud: Cloud, environment: dict[str, str]) -> None:
        self.cloud, self.environment = cloud, environment
        self.running: list[subprocess.Popen] = []
        self.addresses = [f"127.0.0.{2 + number}" for number in range(len(cloud.hosts))]
        self.place = cloud.directory / "sshd"
        self.place.mkdir()
        self.boots = 0
        with socket.socket() as free:
            free.bind((self.addresses[0], 0))
            self.port = free.getsockname()[1]
        # gcloud always takes port 22, which needs root: what the file ~/.ssh/config would say.
        config = self.place / "ssh_config"
        config.write_text(f"Host 127.0.0.*\n    Port {self.port}\n")
        for name in ("ssh", "scp"):
            text = f'#!/bin/sh\nexec {shutil.which(name)} -F {config} "$@"\n'
            program(cloud.directory / "bin" / name, text)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, as root, puts away its rights

    def boot(self, startup_script: str) -> None:
        self.boots += 1
        # The disks are new, and Google's agent executes the startup script.
        (self.cloud.directory / "startup").write_text(startup_script)
        for name, address in zip(self.cloud.hosts, self.addresses, strict=True):
            home = self.cloud.directory / "hosts" / name
            (home / "dev").mkdir(parents=True, exist_ok=True)
            self.sshd(name, address, home)
        wait_until(lambda: all(self.answers(address) for address in self.addresses))
        self.cloud.run("boot", settings=self.environment)

    def answers(self, address: str) -> bool:
        try:
            socket.create_connection((address, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def sshd(self, name: str, address: str, home: Path) -> None:
        key = self.place / f"{name}.{self.boots}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        environment = self.cloud.environment_of(name, self.environment)
        exports = "\n".join(f"export {k}={shlex.quote(v)}" for k, v in environment.items())
        session = self.place / f"{name}.session"
        session.write_text(f'{exports}\ncd "$HOME" && exec bash -c "$SSH_ORIGINAL_COMMAND"\n')
        keys = self.place / f"{name}.keys"
        keys.unlink(missing_ok=True)
        config = self.place / f"{name}.config"
        config.write_text(
            f"ListenAddress {address}:{self.port}\nHostKey {key}\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {keys}\nPasswordAuthentication no\nUsePAM no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            f"ForceCommand /bin/bash {session}\nSubsystem sftp {_SFTP}\n"
        )
        with (self.place / f"{name}.log").open("ab") as log:
            command = [str(SSHD), "-D", "-e", "-f", str(config)]
            self.running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log))

    def end(self) -> None:
        """No host answers any more, nothing runs there, and the disks are gone."""
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait()
        self.running = []
        self.cloud.reset()
        for name in self.cloud.hosts:
            shutil.rmtree(self.cloud.directory / "hosts" / name, ignore_errors=True)

    def endpoints(self) -> list[dict]:
        """Returns them with inner addresses that nothing listens at: the outer ones are taken."""
        return [
            {"ipAddress": f"10.0.0.{i}", "port": 8470, "accessConfig": {"externalIp": address}}
            for i, address in enumerate(self.addresses)
        ]

    def guest_attributes(self) -> list[dict]:
        found = []
        for name in self.cloud.hosts:
            kind, key = (self.place / f"{name}.{self.boots}.pub").read_text().split()[:2]
            items = [
                {"namespace": "hostkeys", "key": kind, "value": key},
                {"namespace": "guestInventory", "key": "hostname", "value": name},
            ]
            found.append({"queryPath": "", "queryValue": {"items": items}})
        return found

    def take_keys(self, ssh_keys: str) -> None:
        """Lets in who has one of the node's keys, "USER:KEY" a line, as the hosts' agent does."""
        keys = [line.partition(":")[2] for line in ssh_keys.splitlines() if line]
        for name in self.cloud.hosts:
            (self.place / f"{name}.keys").write_text("\n".join(keys) + "\n")
