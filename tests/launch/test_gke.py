"""On GKE: the JobSet, against what its schema allows, and the image."""

import re

import pytest
import yaml

from tests.launch.cloud import ROOT, STAGED

_LAUNCH = ROOT / "launch"

# What of the schema a run needs: each field, and the type of its value, or a pattern of it.
# From config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset at 08dfbdf
# (v1alpha2), whose pods are those of Kubernetes 1.34. All of the rendered JobSet was validated
# against all of that file, closed to other fields. The pattern of a rule's name is that of the
# controller's webhook, which refuses another. Kueue's labels are named in its
# pkg/controller/constants at ff69552.
_NAME, _SECONDS, _GKE = "[a-z0-9]([a-z0-9-]*[a-z0-9])?", "[1-9][0-9]*", "cloud.google.com/gke-"
_CONTAINER = {
    "name": "[a-z0-9-]{1,63}", "image": str, "command": [str], "args": [str],
    "env": [{"name": str, "value": str}], "volumeMounts": [{"name": str, "mountPath": str}],
    "ports": [{"containerPort": int}], "resources": {"limits": {"google.com/tpu": int}},
    "securityContext": {"privileged": bool},
}  # fmt: skip
_POD = {
    "restartPolicy": "Never", "hostNetwork": bool, "dnsPolicy": "ClusterFirstWithHostNet",
    "terminationGracePeriodSeconds": int, "serviceAccountName": str,
    "nodeSelector": {f"{_GKE}tpu-accelerator": str, f"{_GKE}tpu-topology": str,
                     f"{_GKE}spot": "true", f"{_GKE}flex-start": "true"},
    "initContainers": [_CONTAINER], "containers": [_CONTAINER],
    "volumes": [{"name": str, "emptyDir": {}}],
}  # fmt: skip
_JOB = {
    "parallelism": int, "completions": int, "completionMode": "Indexed", "backoffLimit": int,
    "activeDeadlineSeconds": int, "template": {"spec": _POD},
    "podFailurePolicy": {"rules": [{
        "action": "FailJob",
        "onExitCodes": {"containerName": str, "operator": "In|NotIn", "values": [int]},
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }]},
}  # fmt: skip
_RULE = {
    "name": "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
    "action": "FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts",
    "onJobFailureReasons": ["PodFailurePolicy|DeadlineExceeded"],
    "onJobFailureMessagePatterns": [str],
}
_JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {
        "name": _NAME,
        "labels": {"kueue.x-k8s.io/queue-name": _NAME,
                   "kueue.x-k8s.io/max-exec-time-seconds": _SECONDS},
        "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": str,
                        "provreq.kueue.x-k8s.io/maxRunDurationSeconds": _SECONDS},
    },
    "spec": {
        "ttlSecondsAfterFinished": int,
        "failurePolicy": {"maxRestarts": int, "rules": [_RULE],
                          "restartStrategy": "Recreate|BlockingRecreate|InPlaceRestart"},
        "replicatedJobs": [{"name": _NAME, "replicas": int, "template": {"spec": _JOB}}],
    },
}  # fmt: skip
# The same of config/components/crd/bases/kueue.x-k8s.io_{resourceflavors,clusterqueues,
# localqueues}.yaml of kubernetes-sigs/kueue at ff69552 (v1beta2).
_QUEUES = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor|ClusterQueue|LocalQueue",
    "metadata": {"name": _NAME, "namespace": _NAME},
    "spec": {
        "tolerations": [{"key": str, "value": str, "operator": "Equal|Exists",
                         "effect": "NoSchedule"}],
        "namespaceSelector": {},
        "resourceGroups": [{
            "coveredResources": [str],
            "flavors": [{"name": str, "resources": [{"name": str, "nominalQuota": int}]}],
        }],
        "clusterQueue": str,
    },
}  # fmt: skip


def faults(value, schema, at: str = "") -> list[str]:
    """Returns the places where a value is not as the schema has it."""
    if isinstance(value, dict) and isinstance(schema, dict):
        fields = [(one, schema.get(key), f"{at}.{key}") for key, one in value.items()]
        return [fault for field in fields for fault in faults(*field)]
    if isinstance(value, list) and isinstance(schema, list):
        return [fault for one in value for fault in faults(one, schema[0], at)]
    is_right = type(value) is schema
    if isinstance(schema, str) and isinstance(value, str):
        is_right = re.fullmatch(schema, value) is not None
    return [] if is_right else [f"{at.removeprefix('.')}: {value!r}"]


def render(cloud, *options: str, **expected) -> str:
    what = ("--name=pod", "--image=example/bert-jax:1", *STAGED, "--max-hours=24")
    return cloud().run(_LAUNCH / "gke" / "render", *what, *options, **expected).stdout


def rendered(cloud, *options: str) -> tuple[dict, dict, dict]:
    """Returns the set, its job and the job's pod."""
    text = render(cloud, *options)
    assert not re.search(r"@[A-Z_]+@", text)
    jobset = yaml.safe_load(text)
    assert faults(jobset, _JOBSET) == []
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    return jobset, job, job["template"]["spec"]


def test_a_jobset_for_tpu7x(cloud):
    words = ("--type=tpu7x-64", "--slices=2", "--spot", "--service-account=trainer")
    jobset, job, pod = rendered(cloud, *words, "--", "--set", "seed=1")
    assert jobset["metadata"]["name"] == "pod"
    assert jobset["spec"]["replicatedJobs"][0]["replicas"] == 2
    assert jobset["spec"]["ttlSecondsAfterFinished"] > 0
    assert (job["parallelism"], job["completions"], job["backoffLimit"]) == (8, 8, 0)
    assert (job["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    assert jobset["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
    assert pod["serviceAccountName"] == "trainer"
    assert pod["terminationGracePeriodSeconds"] >= 60
    assert pod["nodeSelector"] == {
        f"{_GKE}tpu-accelerator": "tpu7x", f"{_GKE}tpu-topology": "2x4x4", f"{_GKE}spot": "true"
    }  # fmt: skip
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
    # Corpora are staged by the same script as on a TPU VM.
    _, _, pod = rendered(cloud, "--type=v6e-64", "--corpus=code=gs://b/x")
    places = ["gs://b/corpus", "/data/corpus/corpus", "gs://b/x", "/data/corpus/code"]
    assert pod["initContainers"][0]["args"] == ["worker.sh", "stage", *places]
    named = ["--corpus", "/data/corpus/corpus", "--corpus", "/data/corpus/code"]
    assert pod["containers"][0]["args"][2:6] == named


# What Kubernetes says of a job that a rule of its podFailurePolicy has ended
# (pkg/controller/job/pod_failure_policy.go).
_BY_CODE = (
    "Container {} for pod default/pod-slice-0-0 failed with exit code {} matching FailJob rule"
)
_BY_CONDITION = "Pod default/pod-slice-0-0 has condition DisruptionTarget matching FailJob rule"


def decided(jobset: dict, container: str, code: int, *, is_lost: bool = False) -> str:
    """Returns what becomes of the set when the first container of a job ends with a code, as
    Kubernetes and the controller of JobSet apply the rules: the first that fits.
    """
    (replicated,) = jobset["spec"]["replicatedJobs"]
    for rule in replicated["template"]["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"containerName": None})
        if codes["containerName"] == container and code in codes["values"]:
            assert codes["operator"] == "In"
            return policy(jobset, "PodFailurePolicy", _BY_CODE.format(container, code))
        if is_lost and "onPodConditions" in rule:
            return policy(jobset, "PodFailurePolicy", _BY_CONDITION)
    return policy(jobset, "BackoffLimitExceeded", "Job has reached the specified backoff limit")


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
    jobset, _, _ = rendered(cloud, "--type=v5litepod-64")
    free = "RestartJobSetAndIgnoreMaxRestarts"
    expected = dict.fromkeys(range(2, 9), "FailJobSet") | dict.fromkeys((42, 75, 200), free)
    for code in range(1, 256):
        assert decided(jobset, "trainer", code) == expected.get(code, "RestartJobSet"), code
    assert decided(jobset, "trainer", 137, is_lost=True) == free
    assert decided(jobset, "trainer", 7, is_lost=True) == "FailJobSet"
    assert decided(jobset, "stage", 4) == "FailJobSet"
    assert decided(jobset, "stage", 1) == "RestartJobSet"
    assert policy(jobset, "DeadlineExceeded", "Job was active longer") == "FailJobSet"
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] > 0


def test_hours_queue_and_capacity(cloud):
    options = ("--type=v5litepod-64", "--flex-start", "--queue=mine", "--max-hours=10")
    jobset, job, pod = rendered(cloud, *options)
    assert jobset["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "mine", "kueue.x-k8s.io/max-exec-time-seconds": "36000"
    }  # fmt: skip
    annotations = jobset["metadata"]["annotations"]
    assert annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "36000"
    assert job["activeDeadlineSeconds"] == 36000
    assert pod["nodeSelector"][f"{_GKE}flex-start"] == "true"
    assert f"{_GKE}spot" not in pod["nodeSelector"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--max-hours=0"], "a whole number from 1"),
        (["--max-hours=1e3"], "a whole number from 1"),
        (["--max-hours=a[$(touch x)]"], "a whole number from 1"),
        (["--max-hours=169", "--flex-start"], "flex-start has at most 168"),
        (["--spot", "--flex-start"], "one of --spot and --flex-start"),
        (["--queue=A B"], "small letters, digits and dashes"),
        (["--max-hours="], "missing: --max-hours;"),
        (["--spot=yes"], "SPOT='yes': 0 or 1"),
        (["--name=a.b"], "NAME='a.b': small letters, digits and dashes"),
        (["--corpus=/data/x"], "'/data/x': write a place in a bucket"),
        (["--", "--workdir=gs://b/other"], "--workdir comes before --"),
        (["--config=bert_bas"], "nor a shipped config"),
        (["--slices=", "--queue="], "missing: --slices --queue; launch/gke/render --help"),
        (["--type=v2-8"], "has no accelerator name on GKE"),
        (["--type=v9"], "'v9' is not known"),
    ],
)
def test_what_cannot_be_rendered_is_refused(cloud, wrong, said):
    assert render(cloud, "--type=v5litepod-64", *wrong, code=2, says=said) == ""


def test_the_queue(cloud):
    objects = list(yaml.safe_load_all((_LAUNCH / "gke" / "queue.yaml").read_text()))
    assert faults(objects, [_QUEUES]) == []
    flavor, queue, local = objects
    kinds = ["ResourceFlavor", "ClusterQueue", "LocalQueue"]
    assert [each["kind"] for each in objects] == kinds
    (group,) = queue["spec"]["resourceGroups"]
    assert [each["name"] for each in group["flavors"]] == [flavor["metadata"]["name"]]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    # The one that runs are sent to, and what their pods ask for.
    jobset, _, _ = rendered(cloud, "--type=v5litepod-64")
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert group["coveredResources"] == ["google.com/tpu"]


def test_the_schema_finds_faults(cloud):
    jobset, job, _ = rendered(cloud, "--type=tpu7x-64")
    job["parallelism"] = "8"
    jobset["spec"]["ttlSeconds"] = 1
    assert sorted(faults(jobset, _JOBSET)) == [
        "spec.replicatedJobs.template.spec.parallelism: '8'", "spec.ttlSeconds: 1"
    ]  # fmt: skip
