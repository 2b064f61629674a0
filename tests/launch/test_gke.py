"""On GKE: the JobSet, against what its schema allows, and the image."""

import re

import yaml

from tests.launch.cloud import ROOT

_LAUNCH = ROOT / "launch"
_RUN = ("--config=bert_large_64core", "--corpus=gs://b/corpus", "--workdir=gs://b/run")

# What of the schema a run needs: a kind or a pattern of values, and the fields that have it.
# From config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset at 08dfbdf
# (v1alpha2), whose pods are those of Kubernetes 1.34. All of the rendered JobSet was validated
# against all of that file, closed to other fields. The pattern of a rule's name is that of the
# controller's webhook, which refuses another. Kueue's labels are named in its
# pkg/controller/constants at ff69552.
_NAME = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_CONTAINER = {
    "[a-z0-9-]{1,63}": "name",
    "str": "image command[] args[] env[].name env[].value volumeMounts[].name "
    "volumeMounts[].mountPath",
    "int": "ports[].containerPort resources.limits.google.com/tpu",
    "bool": "securityContext.privileged",
}
_POD = {
    "Never": "restartPolicy",
    "bool": "hostNetwork",
    "ClusterFirstWithHostNet": "dnsPolicy",
    "int": "terminationGracePeriodSeconds",
    "str": "serviceAccountName nodeSelector.cloud.google.com/gke-tpu-accelerator "
    "nodeSelector.cloud.google.com/gke-tpu-topology volumes[].name",
    "true": "nodeSelector.cloud.google.com/gke-spot nodeSelector.cloud.google.com/gke-flex-start",
    "{}": "volumes[].emptyDir",
}
_RULES = "podFailurePolicy.rules[]."
_JOB = {
    "int": "parallelism completions backoffLimit activeDeadlineSeconds "
    f"{_RULES}onExitCodes.values[]",
    "Indexed": "completionMode",
    "FailJob": f"{_RULES}action",
    "str": f"{_RULES}onExitCodes.containerName",
    "In|NotIn": f"{_RULES}onExitCodes.operator",
    "DisruptionTarget": f"{_RULES}onPodConditions[].type",
    "True": f"{_RULES}onPodConditions[].status",
}
_FAILURES = "spec.failurePolicy."
_JOBSET = {
    "jobset.x-k8s.io/v1alpha2": "apiVersion",
    "JobSet": "kind",
    _NAME: "metadata.name metadata.labels.kueue.x-k8s.io/queue-name spec.replicatedJobs[].name",
    "[1-9][0-9]*": "metadata.labels.kueue.x-k8s.io/max-exec-time-seconds "
    "metadata.annotations.provreq.kueue.x-k8s.io/maxRunDurationSeconds",
    "str": "metadata.annotations.alpha.jobset.sigs.k8s.io/exclusive-topology "
    f"{_FAILURES}rules[].onJobFailureMessagePatterns[]",
    "int": f"spec.ttlSecondsAfterFinished {_FAILURES}maxRestarts spec.replicatedJobs[].replicas",
    "Recreate|BlockingRecreate|InPlaceRestart": f"{_FAILURES}restartStrategy",
    "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?": f"{_FAILURES}rules[].name",
    "FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts": f"{_FAILURES}rules[].action",
    "PodFailurePolicy|DeadlineExceeded": f"{_FAILURES}rules[].onJobFailureReasons[]",
}
# The same of config/components/crd/bases/kueue.x-k8s.io_{resourceflavors,clusterqueues,
# localqueues}.yaml of kubernetes-sigs/kueue at ff69552 (v1beta2).
_GROUPS = "spec.resourceGroups[]."
_QUEUES = {
    "kueue.x-k8s.io/v1beta2": "apiVersion",
    "ResourceFlavor|ClusterQueue|LocalQueue": "kind",
    _NAME: "metadata.name metadata.namespace",
    "str": f"spec.tolerations[].key spec.tolerations[].value {_GROUPS}coveredResources[] "
    f"{_GROUPS}flavors[].name {_GROUPS}flavors[].resources[].name spec.clusterQueue",
    "Equal|Exists": "spec.tolerations[].operator",
    "NoSchedule": "spec.tolerations[].effect",
    "{}": "spec.namespaceSelector",
    "int": f"{_GROUPS}flavors[].resources[].nominalQuota",
}


def fields(kinds: dict[str, str], prefix: str = "") -> dict[str, str]:
    return {prefix + name: kind for kind, names in kinds.items() for name in names.split()}


_TEMPLATE = "spec.replicatedJobs[].template.spec."
_KNOWN = (
    fields(_JOBSET)
    | fields(_JOB, _TEMPLATE)
    | fields(_POD, f"{_TEMPLATE}template.spec.")
    | fields(_CONTAINER, f"{_TEMPLATE}template.spec.containers[].")
    | fields(_CONTAINER, f"{_TEMPLATE}template.spec.initContainers[].")
)


def leaves(value, at: str = "") -> list[tuple[str, object]]:
    if isinstance(value, dict) and value:
        return [leaf for key, one in value.items() for leaf in leaves(one, f"{at}.{key}")]
    if isinstance(value, list):
        return [leaf for one in value for leaf in leaves(one, f"{at}[]")]
    return [(at.removeprefix("."), value)]


def faults(value, known: dict[str, str]) -> list[str]:
    """Returns the places where a value is not as the schema has it."""
    found = []
    for at, leaf in leaves(value):
        kind = known.get(at, "no such field")
        is_right = type(leaf).__name__ == kind or (
            kind not in ("int", "bool", "str")
            and (leaf == {} if kind == "{}" else re.fullmatch(kind, str(leaf)) is not None)
        )
        if not is_right:
            found.append(f"{at}: {kind if kind == 'no such field' else repr(leaf)}")
    return found


def render(cloud, *options: str):
    arguments = ("--name=pod", "--image=example/bert-jax:1", *_RUN, "--max-hours=24", *options)
    return cloud().run(_LAUNCH / "gke" / "render", *arguments)


def jobset_of(cloud, *options: str) -> dict:
    done = render(cloud, *options)
    assert done.returncode == 0 and not re.search(r"@[A-Z_]+@", done.stdout), done.stderr
    jobset = yaml.safe_load(done.stdout)
    assert faults(jobset, _KNOWN) == []
    return jobset


def test_a_jobset_for_tpu7x(cloud):
    words = ("--type=tpu7x-64", "--slices=2", "--spot", "--", "--set", "seed=1")
    jobset = jobset_of(cloud, *words)
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
    assert stage["args"] == ["worker.sh", "stage", "gs://b/corpus", "/data/corpus/corpus"]
    more = jobset_of(cloud, "--type=v6e-64", "--corpus=code=gs://b/x")
    pod = more["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
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
    jobset = jobset_of(cloud, "--type=v5litepod-64")
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
    options = ("--type=v5litepod-64", "--flex-start", "--queue=mine", "--max-hours=10")
    jobset = jobset_of(cloud, *options)
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
        (["--max-hours="], "missing: --max-hours;"),
        (["--spot=yes"], "SPOT='yes': 0 or 1"),
        (["--name=a.b"], "NAME='a.b': small letters, digits and dashes"),
        (["--corpus=/data/x"], "'/data/x': write a place in a bucket"),
        (["--", "--workdir=gs://b/other"], "--workdir comes before --"),
        (["--config=bert_bas"], "nor a shipped config"),
        (["--slices=", "--queue="], "missing: --slices --queue; launch/gke/render --help"),
        (["--type=v2-8"], "has no accelerator name on GKE"),
        (["--type=v9"], "'v9' is not known"),
    ):
        done = render(cloud, "--type=v5litepod-64", *wrong)
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert done.stdout == ""


def test_the_queue(cloud):
    objects = list(yaml.safe_load_all((_LAUNCH / "gke" / "queue.yaml").read_text()))
    kinds = ["ResourceFlavor", "ClusterQueue", "LocalQueue"]
    assert [each["kind"] for each in objects] == kinds
    for each in objects:
        assert faults(each, fields(_QUEUES)) == []
    flavor, queue, local = objects
    (group,) = queue["spec"]["resourceGroups"]
    assert [each["name"] for each in group["flavors"]] == [flavor["metadata"]["name"]]
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    # The one that runs are sent to, and what their pods ask for.
    jobset = jobset_of(cloud, "--type=v5litepod-64")
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert group["coveredResources"] == ["google.com/tpu"]


def test_the_schema_finds_faults(cloud):
    jobset = jobset_of(cloud, "--type=tpu7x-64")
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "8"
    jobset["spec"]["ttlSeconds"] = 1
    assert sorted(faults(jobset, _KNOWN)) == [
        "spec.replicatedJobs[].template.spec.parallelism: '8'", "spec.ttlSeconds: no such field"
    ]  # fmt: skip
