"""Every option that the launcher gives to gcloud is in the help of an installed gcloud.

Only `--help` is called: it needs no account and no network.
"""

import re
import shlex
import shutil
import subprocess

import pytest

_RUN = ("--config=tiny_docs_cpu", "--corpus=gs://b/corpus", "--workdir=gs://b/run")


def help_of(gcloud: str, words: tuple[str, ...], directory) -> str:
    done = subprocess.run(
        [gcloud, *words, "--help"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(directory), "CLOUDSDK_CONFIG": str(directory)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)


def test_gcloud_knows_every_option(cloud, tmp_path):
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        pytest.skip("gcloud is not installed")
    printed = ""
    for command, options in (
        ("run", ("--capacity=spot", "--autocheckpoint", *_RUN)),
        ("create", ("--capacity=flex-start", "--max-hours=4", *_RUN)),
        ("create", ("--capacity=reserved", "--slices=2", "--data-disk=d")),
        ("fetch", ("--workdir=gs://b/run", f"--output={tmp_path}/out")),
        ("fetch", ("--workdir=/shared/run", f"--output={tmp_path}/out")),
    ):
        done = cloud().tpu(command, "--dry-run", *options)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    used: dict[tuple[str, ...], set[str]] = {}
    for line in printed.splitlines():
        words = shlex.split(line[2:])
        if "gcloud" not in words:
            continue
        words = words[words.index("gcloud") + 1 :]
        verbs = [word for word in words if not word.startswith("--")]
        length = {"storage": 2, "compute": 4, "alpha": 5}[verbs[0]] + (verbs[1] == "buckets")
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        used.setdefault(tuple(verbs[:length]), set()).update(options)
    assert len(used) >= 8
    everywhere = {"--quiet", "--project", "--format"}
    for verbs, options in used.items():
        known = help_of(gcloud, verbs, tmp_path)
        for option in options - everywhere:
            assert re.search(rf"{option}\b", known), f"gcloud {' '.join(verbs)} has no {option}"
