"""On GKE: the JobSet, against what its schema allows, and the image."""

import re

import pytest

from tests.launch.cloud import ROOT

_LAUNCH = ROOT / "launch"
_RUN = ("--config=bert_large_64core", "--corpus=gs://b/corpus", "--workdir=gs://b/run")
_HOURS = "--max-hours=24"

# What of the schema a run needs: each field, and its type or a pattern of its values.
# From config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset at 08dfbdf
# (v1alpha2), whose pods are those of Kubernetes 1.34. All of the rendered JobSet was validated
# against all of that file, closed to other fields. The pattern of a rule's name is that of the
# controller's webhook, which refuses another. Kueue's labels are named in its
# pkg/controller/constants at ff69552.
_NAME = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_CONTAINER = """
name [a-z0-9-]{1,63}
image str
command[] str
args[] str
env[].name str
env[].value str
ports[].containerPort int
resources.limits.google.com/tpu int
securityContext.privileged bool
volumeMounts[].name str
volumeMounts[].mountPath str
"""
_POD = """
restartPolicy Never
hostNetwork bool
dnsPolicy ClusterFirstWithHostNet
serviceAccountName str
terminationGracePeriodSeconds int
nodeSelector.cloud.google.com/gke-tpu-accelerator str
nodeSelector.cloud.google.com/gke-tpu-topology str
nodeSelector.cloud.google.com/gke-spot true
nodeSelector.cloud.google.com/gke-flex-start true
volumes[].name str
volumes[].emptyDir {}
"""
_JOB = """
parallelism int
completions int
completionMode Indexed
backoffLimit int
activeDeadlineSeconds int
podFailurePolicy.rules[].action FailJob
podFailurePolicy.rules[].onExitCodes.containerName str
podFailurePolicy.rules[].onExitCodes.operator In|NotIn
podFailurePolicy.rules[].onExitCodes.values[] int
podFailurePolicy.rules[].onPodConditions[].type DisruptionTarget
podFailurePolicy.rules[].onPodConditions[].status True
"""
_JOBSET = f"""
apiVersion jobset.x-k8s.io/v1alpha2
kind JobSet
metadata.name {_NAME}
metadata.labels.kueue.x-k8s.io/queue-name {_NAME}
metadata.labels.kueue.x-k8s.io/max-exec-time-seconds [1-9][0-9]*
metadata.annotations.alpha.jobset.sigs.k8s.io/exclusive-topology str
metadata.annotations.provreq.kueue.x-k8s.io/maxRunDurationSeconds [1-9][0-9]*
spec.ttlSecondsAfterFinished int
spec.failurePolicy.maxRestarts int
spec.failurePolicy.restartStrategy Recreate|BlockingRecreate|InPlaceRestart
spec.failurePolicy.rules[].name [A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?
spec.failurePolicy.rules[].action FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts
spec.failurePolicy.rules[].onJobFailureReasons[] PodFailurePolicy|DeadlineExceeded
spec.failurePolicy.rules[].onJobFailureMessagePatterns[] str
spec.replicatedJobs[].name [a-z0-9-]{{1,63}}
spec.replicatedJobs[].replicas int
"""
# The same of config/components/crd/bases/kueue.x-k8s.io_{resourceflavors,clusterqueues,
# localqueues}.yaml of kubernetes-sigs/kueue at ff69552 (v1beta2).
_QUEUES = f"""
apiVersion kueue.x-k8s.io/v1beta2
kind ResourceFlavor|ClusterQueue|LocalQueue
metadata.name {_NAME}
metadata.namespace {_NAME}
spec.tolerations[].key str
spec.tolerations[].operator Equal|Exists
spec.tolerations[].value str
spec.tolerations[].effect NoSchedule
spec.namespaceSelector {{}}
spec.resourceGroups[].coveredResources[] str
spec.resourceGroups[].flavors[].name str
spec.resourceGroups[].flavors[].resources[].name str
spec.resourceGroups[].flavors[].resources[].nominalQuota int
spec.clusterQueue str
"""


def fields(text: str, prefix: str = "") -> dict[str, str]:
    return {prefix + name: kind for name, kind in map(str.split, text.strip().splitlines())}


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
    arguments = ("--name=pod", "--image=example/bert-jax:1", *_RUN, _HOURS, *options)
    return cloud().run(_LAUNCH / "gke" / "render", *arguments)


def test_a_jobset_for_tpu7x(cloud):
    yaml = pytest.importorskip("yaml")
    done = render(cloud, "--type=tpu7x-64", "--slices=2", "--spot", "--", "--set", "seed=1")
    assert done.returncode == 0, done.stderr
    jobset = yaml.safe_load(done.stdout)
    assert faults(jobset, _KNOWN) == []
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
    assert faults(jobset, _KNOWN) == []
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
        (["--config=bert_bas"], "nor a shipped config"),
        (["--slices=", "--queue="], "missing: --slices --queue; launch/gke/render --help"),
        (["--type=v2-8"], "has no accelerator name on GKE"),
        (["--type=v9"], "'v9' is not known"),
    ):
        done = render(cloud, "--type=v5litepod-64", *wrong)
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert done.stdout == ""


def test_the_queue(cloud):
    yaml = pytest.importorskip("yaml")
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
    jobset = yaml.safe_load(render(cloud, "--type=v5litepod-64").stdout)
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]
    assert group["coveredResources"] == ["google.com/tpu"]


def test_the_schema_finds_faults(cloud):
    yaml = pytest.importorskip("yaml")
    jobset = yaml.safe_load(render(cloud, "--type=tpu7x-64").stdout)
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "8"
    jobset["spec"]["ttlSeconds"] = 1
    assert sorted(faults(jobset, _KNOWN)) == [
        "spec.replicatedJobs[].template.spec.parallelism: '8'", "spec.ttlSeconds: no such field"
    ]  # fmt: skip


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
