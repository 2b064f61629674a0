"""Fakes of the programs that launch scripts call: a cloud in a directory, a folder per host.

Small wrappers on the PATH call `main` with NAME ARGUMENT... in sys.argv. The module uses only the
standard library, so that a call takes milliseconds. The directory, $FAKE_CLOUD, has

    state.json       the scenario and the state; see `cloud.py`
    log.jsonl        every call of every program: {"program", "host", "argv"}
    buckets/         gs://BUCKET/PATH
    hosts/NODE-w-I/  the home directory of a host; it also holds its units
    startup          the startup script of the request
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

CLOUD = Path(os.environ.get("FAKE_CLOUD", "/nonexistent"))
SCENARIO = json.loads((CLOUD / "state.json").read_text()) if CLOUD.is_dir() else {}
HOSTS = SCENARIO.get("hosts", ())


@contextlib.contextmanager
def state():
    """Yields the state, which one program at a time reads and changes."""
    with (CLOUD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = CLOUD / "state.json"
        values = json.loads(path.read_text())
        yield values
        (CLOUD / "state.new").write_text(json.dumps(values))
        (CLOUD / "state.new").replace(path)


def fail(message: str, code: int = 1) -> int:
    sys.stderr.write(f"ERROR: (gcloud) {message}\n")
    return code


def option(argv: list[str], name: str) -> str | None:
    return next((a.partition("=")[2] for a in argv if a.startswith(f"--{name}=")), None)


# --- gcloud --------------------------------------------------------------------------------------


def gcloud(argv: list[str]) -> int:
    if "--quiet" not in argv:
        return fail("it would ask a question", 99)
    words = [a for a in argv if not a.startswith("--") and a != "alpha"]
    if words[0] == "storage":
        return storage(words[1], words[2:], argv)
    assert words[:2] == ["compute", "tpus"], argv
    if option(argv, "project") is None or option(argv, "zone") is None:
        return fail("it would ask for the project or the zone", 99)
    if words[2:4] == ["tpu-vm", "ssh"]:
        return ssh(argv)
    with state() as now:
        call = {
            ("queued-resources", "describe"): describe_resource,
            ("queued-resources", "create"): create,
            ("queued-resources", "delete"): delete,
            ("tpu-vm", "describe"): describe_node,
            ("tpu-vm", "scp"): scp,
        }[words[2], words[3]]
        code = call(now, words[4:], argv)
    # After the answer, because the caller may run on one of the hosts.
    if code == 0 and call is delete:
        kill_units()
    if code == 0 and call is create and SCENARIO["boots"]:
        boot()
    return code


def describe_resource(now: dict, words: list[str], argv: list[str]) -> int:
    if now["states"]:
        now["current"] = now["states"][0]
        now["states"] = now["states"][1:] or now["states"]
        if now["current"] == "GONE":
            now["states"] = []
    if not now["states"]:
        return fail(f"NOT_FOUND: Resource {words[0]} was not found")
    print(now["current"].partition("/")[0])
    return 0


def node_state(now: dict) -> str:
    resource, _, node = now["current"].partition("/")
    resource = resource or now["states"][0]
    return node or {"ACTIVE": "READY", "SUSPENDED": "PREEMPTED"}.get(resource, "CREATING")


def describe_node(now: dict, words: list[str], argv: list[str]) -> int:
    print(node_state(now))
    return 0


def create(now: dict, words: list[str], argv: list[str]) -> int:
    assert option(argv, "node-id") == words[0]
    if now["states"]:
        return fail(f"ALREADY_EXISTS: Resource {words[0]} already exists")
    number = min(now["created"], len(SCENARIO["creations"]) - 1)
    now["states"] = list(SCENARIO["creations"][number])
    now["created"] += 1
    now["type"] = option(argv, "accelerator-type")
    import shutil  # here, because loading it takes as long as most calls

    kill_units()
    for host in HOSTS:
        shutil.rmtree(CLOUD / "hosts" / host, ignore_errors=True)
        (CLOUD / "hosts" / host).mkdir(parents=True, exist_ok=True)
    script = option(argv, "metadata-from-file") or ""
    (CLOUD / "startup").write_text(Path(script.removeprefix("startup-script=")).read_text())
    return 0


def delete(now: dict, words: list[str], argv: list[str]) -> int:
    assert "--force" in argv, "a resource with nodes needs --force"
    if not now["states"]:
        return fail(f"NOT_FOUND: Resource {words[0]} was not found")
    now["states"] = ["DELETING", "GONE"]
    return 0


def scp(now: dict, words: list[str], argv: list[str]) -> int:
    if not now["states"] or node_state(now) != "READY":
        return fail("scp: Connection refused", 255)
    for host in HOSTS:
        for file in words[:-1]:
            (CLOUD / "hosts" / host / Path(file).name).write_bytes(Path(file).read_bytes())
    return 0


def boot(_: object = None) -> None:
    """Boots each host: systemd starts the enabled units, Google's agent the startup script."""
    import subprocess

    for host in HOSTS:
        environment = environment_of(CLOUD, host, os.environ | SCENARIO["environment"])
        if (CLOUD / "hosts" / host / "enabled.bert-jax").exists():
            program = CLOUD / "bin" / "systemctl"
            subprocess.run([program, "start", "bert-jax"], env=environment, check=True)
        subprocess.run(["bash", CLOUD / "startup"], env=environment, check=True)


def environment_of(cloud: Path, host: str, settings: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a program on that host."""
    home = cloud / "hosts" / host
    return {
        "UPTIME_FILE": str(cloud / "uptime"),
        "BOOT_ID_FILE": str(cloud / "boot_id"),
        "CAP_AT": str(home / "cap"),
        "CAP_UNITS": str(home / "units"),
        "BERT_JAX_UNITS": str(home / "units"),
        "FAKE_HOST": host,
        "LIBTPU_LOCKFILE": str(home / "libtpu_lockfile"),
        **settings,
        "HOME": str(home),
    }


def curl(argv: list[str]) -> int:
    """Answers launch/boot.sh: a token of the metadata server, and the TPU API."""
    line = " ".join(argv)
    if "/service-accounts/default/token" in line:
        print('{"access_token":"t0k.en","expires_in":3599}')
        return 0
    assert sys.stdin.read() == 'header = "Authorization: Bearer t0k.en"\n'
    with state() as now:
        found = 200 if now["states"] and "/queuedResources/pod" in line else 404
        code = SCENARIO["api_code"] or found
        goes = code == 200 and "DELETE" in argv
        if goes:
            now["states"] = ["DELETING", "GONE"]
    print(code, end="", flush=True)
    if goes:
        kill_units()
    return 28 if code == "000" else 0


def _put(source: Path, target: Path) -> None:
    """Copies a file atomically, as objects of a bucket are written."""
    part = CLOUD / f"part-{os.getpid()}"
    part.write_bytes(source.read_bytes())
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)


def storage(verb: str, words: list[str], argv: list[str]) -> int:
    source, *rest = (
        CLOUD / "buckets" / word.removeprefix("gs://") if word.startswith("gs://") else Path(word)
        for word in words
    )
    if not source.exists():
        return fail(f"The following URLs matched no objects or files: {words[0]}")
    if verb == "cp":
        _put(source, rest[0])
    elif verb == "rsync":
        excluded = re.compile(option(argv, "exclude") or "$^")
        with state() as now:
            limit = now["rsync_limits"].pop(0) if now["rsync_limits"] else None
        for file in sorted(p for p in source.rglob("*") if p.is_file()):
            name = file.relative_to(source)
            to = rest[0] / name
            is_there = to.exists() and to.stat().st_size == file.stat().st_size
            if is_there or excluded.match(name.as_posix()):
                continue
            if limit == 0:
                return fail("interrupted")
            _put(file, to)
            print(f"copied {name.as_posix()}")
            limit = None if limit is None else limit - 1
    return 0


# --- hosts ---------------------------------------------------------------------------------------


def ssh(argv: list[str]) -> int:
    import subprocess

    command, worker = option(argv, "command"), option(argv, "worker")
    assert command and worker in ("all", "0")
    with state() as now:
        if not now["states"] or node_state(now) != "READY":
            return fail("[/usr/bin/ssh] exited with return code [255].", 255)
    running = []
    for number, host in enumerate(HOSTS if worker == "all" else HOSTS[:1]):
        if number not in EVENT.get("deaf", []):
            environment = environment_of(CLOUD, host, os.environ | SCENARIO["environment"])
            folder = CLOUD / "hosts" / host
            running.append(subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment))
    return max(process.wait() for process in running)


def systemd_run(argv: list[str]) -> int:
    import subprocess

    first = next(i for i, word in enumerate(argv) if not word.startswith("--"))
    told = [word.removeprefix("--setenv=") for word in argv[:first] if "--setenv=" in word]
    environment = os.environ | dict(word.split("=", 1) for word in told)
    assert "--pipe" in argv
    return subprocess.call(argv[first:], env=environment)


def unit(_: object = None) -> int:
    """Runs the trainer's unit as systemd does, with its restarts."""
    import subprocess

    home = Path(os.environ["HOME"])
    lines = (home / "units/bert-jax.service").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    given = dict(word.split("=", 1) for word in settings["Environment"].split())
    environment = os.environ | given
    restart = set(settings["RestartForceExitStatus"].split())
    (home / "unit.pid").write_text(f"{os.getpid()}\n")
    log = os.open(
        settings["StandardOutput"].removeprefix("append:"), os.O_WRONLY | os.O_APPEND | os.O_CREAT
    )
    quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "env": environment}
    while not Path(settings["ConditionPathExists"].removeprefix("!")).exists():
        main_process = subprocess.Popen(
            settings["ExecStart"].split(), cwd=settings["WorkingDirectory"],
            start_new_session=True, **quiet,
        )  # fmt: skip
        (home / "main.pid").write_text(f"{main_process.pid}\n")
        code = main_process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(main_process.pid, signal.SIGKILL)
        name = str(code) if code >= 0 else signal.Signals(-code).name.removeprefix("SIG")
        subprocess.call(
            settings["ExecStopPost"].split(), **quiet | {"env": environment | {"EXIT_STATUS": name}}
        )
        known = name if code >= 0 else f"SIG{name}"
        if (home / "unit.stopping").exists() or known not in restart:
            break
        time.sleep(0.05)
    return 0


def pid_of(file: Path) -> int | None:
    """Returns the process of a pid file, unless it has ended."""
    try:
        pid = int(file.read_text())
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return None
    return None if stat.rpartition(")")[2].split()[0] == "Z" else pid


def kill_units(_: object = None) -> None:
    """Powers the hosts off without a signal to their processes."""
    for name in ("unit.pid", "main.pid", "cap.pid"):
        found = [pid for file in (CLOUD / "hosts").glob(f"*/{name}") if (pid := pid_of(file))]
        for pid in sorted(found, key=lambda pid: pid == os.getpgrp()):  # the caller's group is last
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


# --- what is installed ---------------------------------------------------------------------------

# The most frequent calls are shell scripts, which start faster. systemctl knows the units of
# launch/worker.sh and launch/boot.sh, and reads their files.
_SHELLS = {
    "hostname": 'echo "$FAKE_HOST"',
    "sudo": '[ "$1" = -n ] && shift && exec "$@"',
    "systemctl": r"""
runs() { # FILE: the process of this pid file runs and is no zombie
    [ -f "$1" ] && read -r pid <"$1" && read -r stat 2>/dev/null <"/proc/$pid/stat" &&
        [[ $stat != *") Z "* ]]
}
case "$*" in
    "is-active bert-jax")
        runs "$HOME/unit.pid" || { echo inactive; exit 3; }
        [ ! -f "$HOME/unit.stopping" ] || { echo deactivating; exit 3; }
        echo active ;;
    "start bert-jax")
        rm -f "$HOME/unit.stopping"
        runs "$HOME/unit.pid" && exit 0
        rm -f "$HOME/unit.pid"
        setsid unit >/dev/null 2>&1 </dev/null 3>&- 8>&- 9>&- &
        for _ in {1..6000}; do [ ! -s "$HOME/unit.pid" ] || break; sleep 0.01; done ;;
    "stop bert-jax") # KillMode=mixed: SIGTERM for the main process
        runs "$HOME/unit.pid" || exit 0
        touch "$HOME/unit.stopping"
        # A main process that has ended needs no signal, but ExecStopPost may still run.
        sent=
        for _ in {1..6000}; do
            runs "$HOME/unit.pid" || break
            [ "$sent" ] || { runs "$HOME/main.pid" && kill -TERM "$pid" && sent=1; }
            sleep 0.01
        done ;;
    "enable "*) touch "$HOME/enabled.${@: -1}" ;;
    "disable --now bert-jax") rm -f "$HOME/enabled.bert-jax" && exec "$0" stop bert-jax ;;
    "--no-block "*" bert-jax-cap")
        if runs "$HOME/cap.pid"; then
            [ "$2" = restart ] || exit 0
            kill -KILL "-$pid"
        fi
        read -ra command < <(sed -n 's/^ExecStart=//p' "$CAP_UNITS/bert-jax-cap.service")
        setsid "${command[@]}" >/dev/null 2>&1 </dev/null 3>&- 8>&- 9>&- &
        echo $! >"$HOME/cap.pid" ;;
    daemon-reload | "reset-failed "*) ;;
    *) exit 99 ;;
esac""",
}


def install(folder: Path) -> None:
    """Installs all programs of a laptop and of a host, and the programs that control hosts."""
    for name in ("gcloud", "systemd-run", "python3", "curl", "boot", "kill_units", "unit"):
        wrapper(folder / name, name)
    for name, text in _SHELLS.items():
        program(folder / name, f"#!/bin/bash\n{text}\n")


def wrapper(path: Path, name: str) -> None:
    """Writes a program that calls `main`. An imported module is compiled once."""
    here = Path(__file__)
    code = f"import sys; sys.path.append('{here.parent}'); import {here.stem} as f; f.main()"
    program(path, f'#!/bin/sh\nexec "{sys.executable}" -S -E -c "{code}" {name} "$@"\n')


def program(path: Path, text: str) -> None:
    """Writes an executable file. Its first line names the interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


# --- Python, uv and the trainer ------------------------------------------------------------------


def python3(argv: list[str]) -> int:
    if argv[:2] == ["-m", "pip"] and "--target" in argv:
        requirement = Path(argv[argv.index("-r") + 1]).read_text()
        assert re.fullmatch(r"uv==\S+ --hash=sha256:[0-9a-f]{64}\n", requirement)
        uv_file = Path(argv[argv.index("--target") + 1], "bin", "uv")
        wrapper(uv_file, "uv")
        uv_file.with_suffix(".version").write_text(requirement.split()[0].removeprefix("uv=="))
    elif argv[:2] != ["-m", "pip"]:
        os.execv(sys.executable, [sys.executable, *argv])
    return 0


def uv(argv: list[str]) -> int:
    if argv == ["--version"]:
        version = Path(os.environ["HOME"], "bert-jax/uv/bin/uv.version").read_text()
        print(f"uv {version} (fake)")
    elif "venv" in argv:
        wrapper(Path(argv[-1], "bin", "python"), "venv_python")
    elif "sync" in argv:
        assert "--require-hashes" in argv and Path(argv[-1]).is_file()
    return 0


def venv_python(argv: list[str]) -> int:
    if argv[:3] == ["-m", "bert_jax", "doctor"] and SCENARIO["doctor"] != "real":
        return SCENARIO["doctor"][HOSTS.index(os.environ["FAKE_HOST"])]
    if argv[:2] == ["-m", "bert_jax"]:
        if SCENARIO["real_trainer"]:
            # Without a TPU, the processes need the address of the coordinator.
            number = str(HOSTS.index(os.environ["FAKE_HOST"]))
            place = SCENARIO["real_trainer"]
            told = ["--coordinator", place, "--num-processes", str(len(HOSTS)), "--process-id"]
            at = argv.index("--distributed")
            argv = [*argv[:at], *told, number, *argv[at + 1 :]]
            os.execv(sys.executable, [sys.executable, "-u", *argv])
        return trainer()
    assert argv[0] == "-c" and "local_device_count" in argv[1], argv
    assert os.environ["TPU_PROCESS_BOUNDS"] == "1,1,1", "it would wait for the other hosts"
    print(SCENARIO["devices"])
    return 0


def trainer() -> int:
    """Returns the exit code that the scenario has for this start of the trainer on this host."""
    host = HOSTS.index(os.environ["FAKE_HOST"])
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    with state() as now:
        starts = now["starts"].setdefault(str(host), 0)
        now["starts"][str(host)] += 1
    entry = SCENARIO["trainer"][min(starts, len(SCENARIO["trainer"]) - 1)]
    code = entry[host] if isinstance(entry, list) else entry
    if code == "waits":  # for SIGTERM, or for the end of the run
        while not received:
            if (CLOUD / "done").exists():
                return 0
            time.sleep(0.01)
        return 42
    return code


EVENT: dict = {}


def happens(line: str) -> dict:
    """Returns the event of the scenario for this call, HOST PROGRAM ARGUMENT..., if it is due."""
    for number, event in enumerate(SCENARIO["events"]):
        if re.search(event["match"], line):
            with state() as now:
                now["happened"][str(number)] = times = now["happened"].get(str(number), 0) + 1
                if times in event.get("times", [times]):
                    if "states" in event:
                        now["states"] = list(event["states"])
                        now["current"] = now["states"][0]
                    return event
    return {}


def main() -> None:
    program, *arguments = sys.argv[1:]
    host = os.environ.get("FAKE_HOST")
    with (CLOUD / "log.jsonl").open("a") as log:
        log.write(json.dumps({"program": program, "host": host, "argv": arguments}) + "\n")
    EVENT.update(happens(" ".join([host or "laptop", program, *arguments])))
    if "fails" in EVENT:
        sys.exit(fail(EVENT["fails"]))
    code = globals()[program.replace("-", "_")](arguments)
    sys.exit(fail("Connection reset by peer") if EVENT.get("loses") else code)
