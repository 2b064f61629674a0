"""A run has one machine: no second one is made beside it, and no other run's is taken from it."""

import pytest

from tests.launch.cloud import ROOT
from tests.launch.test_life_cycles import end, read_until
from tests.launch.test_outages import started, wait_until

_RUN = ("--config=tiny_docs_cpu", "--corpus=/data/corpus", "--workdir=gs://b/run")
_UP = ["scp", "setup", "start"]


@pytest.mark.parametrize(("errors", "code"), [(1, 0), (99, 20)])
def test_a_zone_that_does_not_answer_may_have_it(cloud, errors, code):
    here = cloud(number_of_hosts=1, exists=["ACTIVE"], zone="zb", describe_errors=errors)
    done = here.tpu("create", "--zone=za,zb")
    assert (done.returncode, here.commands()) == (code, []), done.stderr


def test_a_request_whose_answer_is_lost_is_there(cloud):
    here = cloud(number_of_hosts=1, lost_answers=1)
    done = here.tpu("create", "--zone=za,zb")
    assert (done.returncode, here.commands()) == (0, ["create"]), done.stderr
    assert here.state()["zone"] == "za"


def test_all_zones_are_deleted_in(cloud):
    here = cloud(number_of_hosts=1, exists=["ACTIVE"], zone="zb")
    done = here.tpu("delete", "--zone=za,zb")
    assert done.returncode == 0 and here.state()["states"] in ([], ["GONE"]), done.stderr


def test_an_answer_without_a_state_is_none(cloud):
    here = cloud(number_of_hosts=1, exists=[*[""] * 12, "ACTIVE"])
    done = here.tpu("create", UNKNOWN_POLLS="2")
    assert (done.returncode, here.commands()) == (0, []), done.stderr


def test_a_state_that_nobody_knows_costs_no_run(cloud):
    """A supervisor that begins anew asks the hosts before it deletes."""
    here = cloud(trainer=[{"code": "waits"}])
    end(started(here))
    here.set_states("FANCY/READY")
    command = [ROOT / "launch" / "tpu", "supervise", *here.options, *_RUN]
    supervisor = here.start(*command, settings={"UNKNOWN_POLLS": "2"})
    read_until(supervisor, "its hosts train")
    read_until(supervisor, "the trainer runs already")
    (here.directory / "done").touch()
    _, err = supervisor.communicate(timeout=60)
    assert supervisor.returncode == 0, err
    assert here.commands() == ["create", *_UP]


@pytest.mark.parametrize(
    ("workdir", "codes", "code"),
    [("gs://b/run", [0, 0], 0), ("/shared/run", [0, 0], 0), ("/shared/run", [137, 137], 24)],
)
def test_what_some_hosts_say_is_no_proof_of_a_loss(cloud, workdir, codes, code):
    """One of two hosts is silent; the trainer of the other one has ended."""
    deaf = {"match": "worker.sh state", "times": list(range(2, 99)), "deaf": [1]}
    here = cloud(exists=["ACTIVE"], trainer=[{"codes": codes}], events=[deaf])
    done = here.tpu("supervise", *_RUN[:2], f"--workdir={workdir}", "--keep", UNKNOWN_POLLS="2")
    assert (done.returncode, here.commands()) == (code, _UP), done.stderr


def test_the_machine_of_another_run_is_left_to_it(cloud):
    """The first run is done, and says so in the bucket; another one has its machine by now."""
    here = cloud(trainer=[{"code": 0}, {"code": "waits"}])
    assert here.tpu("supervise", *_RUN, "--keep").returncode == 0
    other = ("--config=tiny_docs_cpu", "--corpus=/data/corpus", "--workdir=gs://b/other")
    assert here.tpu("start", *other).returncode == 0
    again = here.tpu("supervise", *_RUN, DELETE_WHEN_DONE="1")
    assert again.returncode == 0 and "another run is running on pod" in again.stderr, again.stderr
    assert here.commands() == ["create", *_UP, "start"]


def test_a_run_that_goes_on_is_told_what_ends_its_costs(cloud):
    here = cloud(number_of_hosts=1, trainer=[{"code": "waits"}])
    supervisor, guard = started(here), here.home() / "bert-jax" / "guard.env"
    wait_until(guard.exists, supervisor)
    end(supervisor)
    assert "MAX_MINUTES" not in guard.read_text()
    command = [ROOT / "launch" / "tpu", "supervise", *here.options, *_RUN, "--max-hours=5"]
    supervisor = here.start(*command)
    read_until(supervisor, "the trainer runs already")
    wait_until(lambda: "MAX_MINUTES=300" in guard.read_text(), supervisor)
    end(supervisor)


def test_places_are_plain_words(cloud):
    done = cloud(number_of_hosts=1).tpu("setup", BERT_JAX_HOME="/dev/shm/my dir")
    assert done.returncode == 2 and "BERT_JAX_HOME /dev/shm/my dir: letters, digits" in done.stderr
    text = (
        cloud(number_of_hosts=1)
        .tpu("start", "--dry-run", *_RUN[:2], "--workdir=gs://b/my run")
        .stdout
    )
    assert "JAX_COMPILATION_CACHE_DIR='\\''gs://b/my run/xla_cache'\\''" in text


def test_quick_looks_do_not_make_silence_long(cloud):
    """A sign of life comes every four minutes: for less than twelve nothing is certain."""
    silent = {"match": "worker.sh state", "times": list(range(3, 999)), "silent": True}
    here = cloud(trainer=[{"code": "waits"}], events=[silent])
    supervisor = started(here, UNKNOWN_POLLS="2", SILENT_SECONDS="3600")
    wait_until(lambda: here.state()["events"].get("0", 0) > 12, supervisor)
    end(supervisor)
    assert here.commands() == ["create", *_UP]


def test_a_host_that_does_not_answer_makes_no_finding_of_the_others(cloud):
    """Their doctors may only have missed it: all hosts are asked again."""
    deaf = {"match": "worker.sh start", "times": [1], "deaf": [1]}
    here = cloud(doctor=[2, 2], events=[deaf])
    done = here.tpu("supervise", *_RUN)
    assert (done.returncode, here.commands()) == (2, ["create", *_UP, *_UP]), done.stderr
