"""On GKE: the JobSet, against what its schema allows, and the image."""

import re

import pytest

from tests.launch.cloud import ROOT

_LAUNCH = ROOT / "launch"
_RUN = ("--config=bert_large_64core", "--corpus=gs://b/corpus", "--workdir=gs://b/run")
_HOURS = "--max-hours=24"

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
        "cloud.google.com/gke-flex-start": {"true"},
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
    "activeDeadlineSeconds": int,
    "podFailurePolicy": {
        "rules": [
            {
                "action": {"FailJob"},
                "onExitCodes": _EXIT_CODES,
                "onPodConditions": [{"type": {"DisruptionTarget"}, "status": {"True"}}],
            }
        ]
    },
    "template": {"spec": _POD},
}
_RULE = {
    "name": r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
    "action": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
    "onJobFailureReasons": [{"PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded"}],
    "onJobFailureMessagePatterns": [str],
}
_JOBSET = {
    "apiVersion": {"jobset.x-k8s.io/v1alpha2"},
    "kind": {"JobSet"},
    "metadata": {
        "name": r"[a-z0-9]([a-z0-9-]*[a-z0-9])?",
        # The two of Kueue are named in its pkg/controller/constants at ff69552.
        "labels": {
            "kueue.x-k8s.io/queue-name": r"[a-z0-9]([a-z0-9-]*[a-z0-9])?",
            "kueue.x-k8s.io/max-exec-time-seconds": "[1-9][0-9]*",
        },
        "annotations": {
            "alpha.jobset.sigs.k8s.io/exclusive-topology": str,
            "provreq.kueue.x-k8s.io/maxRunDurationSeconds": "[1-9][0-9]*",
        },
    },
    "spec": {
        "ttlSecondsAfterFinished": int,
        "failurePolicy": {
            "maxRestarts": int,
            "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
            "rules": [_RULE],
        },
        "replicatedJobs": [
            {"name": r"[a-z0-9-]{1,63}", "replicas": int, "template": {"spec": _JOB}}
        ],
    },
}

# The same of config/components/crd/bases/kueue.x-k8s.io_{resourceflavors,clusterqueues,
# localqueues}.yaml of kubernetes-sigs/kueue at ff69552 (v1beta2).
_QUEUE_NAME = {"name": r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"}
_QUEUES = {
    "ResourceFlavor": {
        "apiVersion": {"kueue.x-k8s.io/v1beta2"},
        "kind": {"ResourceFlavor"},
        "metadata": _QUEUE_NAME,
        "spec": {
            "tolerations": [
                {
                    "key": str,
                    "operator": {"Equal", "Exists"},
                    "value": str,
                    "effect": {"NoSchedule"},
                }
            ]
        },
    },
    "ClusterQueue": {
        "apiVersion": {"kueue.x-k8s.io/v1beta2"},
        "kind": {"ClusterQueue"},
        "metadata": _QUEUE_NAME,
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": [str],
                    "flavors": [{"name": str, "resources": [{"name": str, "nominalQuota": int}]}],
                }
            ],
        },
    },
    "LocalQueue": {
        "apiVersion": {"kueue.x-k8s.io/v1beta2"},
        "kind": {"LocalQueue"},
        "metadata": _QUEUE_NAME | {"namespace": str},
        "spec": {"clusterQueue": str},
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
    arguments = ("--name=pod", "--image=example/bert-jax:1", *_RUN, _HOURS, *options)
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
    # The corpus is staged by the same script as on a TPU VM.
    (stage,) = pod["initContainers"]
    assert stage["args"] == ["worker.sh", "stage", "gs://b/corpus", "/data/corpus"]
    assert not re.search(r"@[A-Z_]+@", done.stdout)


# What Kubernetes says of a job that a rule of its podFailurePolicy has ended
# (pkg/controller/job/pod_failure_policy.go).
_BY_CODE = (
    "Container {} for pod default/pod-slice-0-0 failed with exit code {} matching FailJob rule"
)
_BY_CONDITION = "Pod default/pod-slice-0-0 has condition DisruptionTarget matching FailJob rule"


def decided(
    jobset: dict, *, container: str = "trainer", code: int = 137, lost: bool = False
) -> str:
    """Returns what becomes of the set when the first container of a job ends with a code: as
    Kubernetes and the controller of JobSet apply the rules, the first that fits.

    `lost`: its machine was taken away.
    """
    (replicated,) = jobset["spec"]["replicatedJobs"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for rule in replicated["template"]["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and codes["containerName"] == container and code in codes["values"]:
            assert codes["operator"] == "In"
            reason, message = "PodFailurePolicy", _BY_CODE.format(container, code)
            break
        if lost and "onPodConditions" in rule:
            reason, message = "PodFailurePolicy", _BY_CONDITION
            break
    return policy(jobset, reason, message)


def policy(jobset: dict, reason: str, message: str) -> str:
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in patterns):
            return rule["action"]
    return "RestartJobSet"  # what is counted by maxRestarts


def test_what_the_set_does_with_each_exit_code(cloud):
    """2 to 8 end it. 42, 75 and 200 start it again, at the cost of hours only, as does a machine
    that is taken away; all others are counted.
    """
    yaml = pytest.importorskip("yaml")
    jobset = yaml.safe_load(render(cloud, "--type=v5litepod-64").stdout)
    found = {code: decided(jobset, code=code) for code in range(1, 256)}
    assert {c for c, action in found.items() if action == "FailJobSet"} == {*range(2, 9)}
    again = {c for c, action in found.items() if action == "RestartJobSetAndIgnoreMaxRestarts"}
    assert again == {42, 75, 200}
    assert decided(jobset, lost=True) == "RestartJobSetAndIgnoreMaxRestarts"
    assert decided(jobset, code=7, lost=True) == "FailJobSet"
    assert decided(jobset, code=134, lost=False) == "RestartJobSet"
    for code, action in ((4, "FailJobSet"), (1, "RestartJobSet")):
        assert decided(jobset, container="stage", code=code) == action
    assert policy(jobset, "DeadlineExceeded", "Job was active longer") == "FailJobSet"
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] > 0


def test_hours_queue_and_capacity(cloud):
    yaml = pytest.importorskip("yaml")
    options = ("--type=v5litepod-64", "--flex-start", "--queue=mine", "--max-hours=10")
    jobset = yaml.safe_load(render(cloud, *options).stdout)
    assert faults(jobset, _JOBSET) == []
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job, metadata = replicated["template"]["spec"], jobset["metadata"]
    assert metadata["labels"] == {
        "kueue.x-k8s.io/queue-name": "mine", "kueue.x-k8s.io/max-exec-time-seconds": "36000"
    }  # fmt: skip
    assert metadata["annotations"]["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "36000"
    assert job["activeDeadlineSeconds"] == 36000
    selector = job["template"]["spec"]["nodeSelector"]
    assert selector["cloud.google.com/gke-flex-start"] == "true"
    assert "cloud.google.com/gke-spot" not in selector
    for wrong, said in (
        (["--max-hours=0"], "a whole number from 1"),
        (["--max-hours=1e3"], "a whole number from 1"),
        (["--max-hours=a[$(touch x)]"], "a whole number from 1"),
        (["--max-hours=169", "--flex-start"], "flex-start has at most 168"),
        (["--spot", "--flex-start"], "one of --spot and --flex-start"),
        (["--queue=A B"], "small letters, digits and dashes"),
        (["--max-hours="], "--max-hours is missing"),
    ):
        done = render(cloud, "--type=v5litepod-64", *wrong)
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert done.stdout == ""


def test_the_queue(cloud):
    yaml = pytest.importorskip("yaml")
    objects = list(yaml.safe_load_all((_LAUNCH / "gke" / "queue.yaml").read_text()))
    assert [each["kind"] for each in objects] == list(_QUEUES)
    for each in objects:
        assert faults(each, _QUEUES[each["kind"]]) == []
    flavor, queue, local = objects
    (group,) = queue["spec"]["resourceGroups"]
    assert [each["name"] for each in group["flavors"]] == [flavor["metadata"]["name"]]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    # The one that runs are sent to, and what their pods ask for.
    jobset = yaml.safe_load(render(cloud, "--type=v5litepod-64").stdout)
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert group["coveredResources"] == ["google.com/tpu"]


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
