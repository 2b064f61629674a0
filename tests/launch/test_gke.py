"""On GKE: the JobSet, against what its schema allows, and the image."""

import re

import pytest

from tests.launch.cloud import ROOT

_LAUNCH = ROOT / "launch"
_RUN = ("--config=bert_large_64core", "--corpus=gs://b/corpus", "--workdir=gs://b/run")

# What of the schema a run needs: the type of each field, the values that it may have, or a pattern.
# From config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset at 08dfbdf
# (v1alpha2), whose pods are those of Kubernetes 1.34. All of the rendered JobSet was validated
# against all of that file, closed to other fields. The pattern of a rule's name is that of the
# controller's webhook, which refuses another.
_ENV = [{"name": str, "value": str}]
_EXIT_CODES = {"containerName": str, "operator": {"In", "NotIn"}, "values": [int]}
_CONTAINER = {
    "name": r"[a-z0-9-]{1,63}",
    "image": str,
    "command": [str],
    "args": [str],
    "env": _ENV,
    "ports": [{"containerPort": int}],
    "resources": {"limits": {"google.com/tpu": int}},
    "securityContext": {"privileged": bool},
    "volumeMounts": [{"name": str, "mountPath": str}],
}
_POD = {
    "restartPolicy": {"Never"},
    "hostNetwork": bool,
    "dnsPolicy": {"ClusterFirstWithHostNet"},
    "serviceAccountName": str,
    "terminationGracePeriodSeconds": int,
    "nodeSelector": {
        "cloud.google.com/gke-tpu-accelerator": str,
        "cloud.google.com/gke-tpu-topology": str,
        "cloud.google.com/gke-spot": {"true"},
    },
    "initContainers": [_CONTAINER],
    "containers": [_CONTAINER],
    "volumes": [{"name": str, "emptyDir": {}}],
}
_JOB = {
    "parallelism": int,
    "completions": int,
    "completionMode": {"Indexed"},
    "backoffLimit": int,
    "podFailurePolicy": {"rules": [{"action": {"FailJob"}, "onExitCodes": _EXIT_CODES}]},
    "template": {"spec": _POD},
}
_RULE = {
    "name": r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
    "action": {"FailJobSet", "RestartJobSet"},
    "onJobFailureReasons": [{"PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded"}],
}
_JOBSET = {
    "apiVersion": {"jobset.x-k8s.io/v1alpha2"},
    "kind": {"JobSet"},
    "metadata": {
        "name": r"[a-z0-9]([a-z0-9-]*[a-z0-9])?",
        "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": str},
    },
    "spec": {
        "ttlSecondsAfterFinished": int,
        "failurePolicy": {"maxRestarts": int, "rules": [_RULE]},
        "replicatedJobs": [
            {"name": r"[a-z0-9-]{1,63}", "replicas": int, "template": {"spec": _JOB}}
        ],
    },
}


def faults(value, schema, at: str = "") -> list[str]:
    """Yields the places where a value is not as the schema has it."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{at}: {value!r}"]
        unknown = [f"{at}.{key}: no such field" for key in value.keys() - schema.keys()]
        known = value.keys() & schema.keys()
        return unknown + [
            f for key in known for f in faults(value[key], schema[key], f"{at}.{key}")
        ]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{at}: {value!r}"]
        return [f for i, one in enumerate(value) for f in faults(one, schema[0], f"{at}[{i}]")]
    if isinstance(schema, set):
        return [] if value in schema else [f"{at}: {value!r}"]
    if isinstance(schema, str):
        return [] if re.fullmatch(schema, value) else [f"{at}: {value!r}"]
    return [] if type(value) is schema else [f"{at}: {value!r}"]


def render(cloud, *options: str):
    arguments = ("--name=pod", "--image=example/bert-jax:1", *_RUN, *options)
    return cloud().run(_LAUNCH / "gke" / "render", *arguments)


def test_a_jobset_for_tpu7x(cloud):
    yaml = pytest.importorskip("yaml")
    done = render(cloud, "--type=tpu7x-64", "--slices=2", "--spot", "--", "--set", "seed=1")
    assert done.returncode == 0, done.stderr
    jobset = yaml.safe_load(done.stdout)
    assert faults(jobset, _JOBSET) == []
    assert jobset["metadata"]["name"] == "pod"
    assert jobset["spec"]["ttlSecondsAfterFinished"] > 0
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (2, 8, 8)
    assert job["backoffLimit"] == 0 and job["completionMode"] == "Indexed"
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] >= 60
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "2x4x4",
        "cloud.google.com/gke-spot": "true",
    }
    (trainer,) = pod["containers"]
    # What the drivers need (memory may be locked, devices opened), and slices among each other.
    assert trainer["securityContext"] == {"privileged": True}
    assert pod["hostNetwork"] and pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert trainer["resources"]["limits"]["google.com/tpu"] == 4
    assert trainer["args"][:2] == ["pretrain", "bert_large_64core"]
    slices, own = ["--set", "mesh.slices=2"], ["--set", "seed=1"]
    assert trainer["args"][-5:] == ["--distributed", *slices, *own]
    variables = {entry["name"]: entry["value"] for entry in trainer["env"]}
    assert variables["JAX_COORDINATOR_PORT"] == "8476" and "--xla" in variables["LIBTPU_INIT_ARGS"]
    assert variables["JAX_COMPILATION_CACHE_DIR"] == "gs://b/run/xla_cache"
    # What is not worth a restart ends the job for good; all else restarts the whole set.
    (stage,) = pod["initContainers"]
    rules = job["podFailurePolicy"]["rules"]
    assert {rule["action"] for rule in rules} == {"FailJob"}
    codes = [rule["onExitCodes"] for rule in rules]
    assert {code["containerName"]: code["values"] for code in codes} == {
        trainer["name"]: [2, 3, 4, 5, 6, 7, 8],
        stage["name"]: [4, 7],
    }
    (whole,) = jobset["spec"]["failurePolicy"]["rules"]
    assert whole["action"] == "FailJobSet"
    assert whole["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] > 0
    # The corpus is staged by the same script as on a TPU VM.
    assert stage["args"] == ["worker.sh", "stage", "gs://b/corpus", "/data/corpus"]
    assert not re.search(r"@[A-Z_]+@", done.stdout)


def test_the_schema_finds_faults(cloud):
    yaml = pytest.importorskip("yaml")
    jobset = yaml.safe_load(render(cloud, "--type=tpu7x-64").stdout)
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "8"
    jobset["spec"]["ttlSeconds"] = 1
    assert sorted(faults(jobset, _JOBSET)) == [
        ".spec.replicatedJobs[0].template.spec.parallelism: '8'", ".spec.ttlSeconds: no such field"
    ]  # fmt: skip


def test_a_jobset_is_refused_where_there_is_no_such_accelerator(cloud):
    assert "has no accelerator name on GKE" in render(cloud, "--type=v2-8").stderr
    assert render(cloud, "--type=v2-8").returncode == 2
    assert "not known" in render(cloud, "--type=v9").stderr


def test_the_image_copies_what_exists():
    text = (_LAUNCH / "gke" / "Dockerfile").read_text()
    sources = [
        word
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.M)
        for word in line.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
    setup = (ROOT / "tpu_setup.sh").read_text()
    version = re.search(r"UV_VERSION=(\S+)", setup)
    assert version and f"uv=={version[1]}" in text
