"""launch/kubernetes: Kubernetes accepts it, its pods find each other, and nobody else reaches them.

The base is read as it stands; what kustomize makes of it needs kubectl.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from psruntime import config
from psruntime.config.process import SecurityConfig
from psruntime.launch.children import crashed
from tests.support.command_lines import complaint
from tests.support.docs import ROOT
from tests.support.kubernetes import (
    BASE,
    CREDENTIALS,
    EXAMPLE,
    GPU,
    GRACE_S,
    MODELS,
    OLDEST,
    READ,
    Object,
    args_of,
    as_it_stands,
    commands,
    container_of,
    flag_of,
    job_of,
    kustomization,
    kustomized,
    labels_of,
    of_kind,
    pod_of,
    rendered,
    selects,
    settings_of,
    volume_of,
    with_gpu,
    without_tls,
)


@pytest.fixture(params=READ)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> list[Object]:
    return READ[request.param](tmp_path)


def test_the_base_lists_all_its_files_and_says_no_namespace() -> None:
    listed = kustomization(BASE)
    files = {*listed["resources"], *(name for made in listed["configMapGenerator"] for name in made.get("files", ()))}
    assert files | {"kustomization.yaml"} == {path.name for path in BASE.iterdir()}
    assert not re.search(r"^\s*namespace:|\.svc\b", "".join(path.read_text() for path in BASE.iterdir()), re.M)


def test_the_base_is_what_kustomize_makes_of_it() -> None:
    """So the other tests mean what is applied, also where there is no kubectl."""
    names = {(found["kind"], re.sub("-[a-z0-9]{10}$", "", found["metadata"]["name"])) for found in rendered(BASE)}
    assert names == {(found["kind"], found["metadata"]["name"]) for found in as_it_stands(BASE)}


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_kubernetes_knows_every_field(objects: list[Object], version: str) -> None:
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)


def misspell(job: Object) -> None:
    job["spec"]["paralelism"] = job["spec"].pop("parallelism")


def nest_wrongly(job: Object) -> None:
    pod_of(job)["readOnlyRootFilesystem"] = True


def give_text_for_a_number(job: Object) -> None:
    pod_of(job)["containers"][0]["startupProbe"]["periodSeconds"] = "often"


def leave_out_what_is_required(job: Object) -> None:
    del pod_of(job)["containers"][0]["name"]


@pytest.mark.parametrize(
    "spoil", [misspell, nest_wrongly, give_text_for_a_number, leave_out_what_is_required], ids=lambda f: f.__name__
)
def test_a_wrong_field_would_be_found(spoil: Callable[[Object], None]) -> None:
    job = deepcopy(job_of(as_it_stands(BASE), "ps"))
    kubernetes_validate.validate(job, OLDEST, strict=True)
    spoil(job)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, OLDEST, strict=True)


def test_every_command_is_accepted(objects: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(of_kind(objects, "Job")) == 2
    for role in ("ps", "worker"):
        job = job_of(objects, role)
        for name, value in environment_of(job).items():
            monkeypatch.setenv(name, value)
        said = {" ".join(words): complaint(words, MODELS) for words in commands(objects, job, tmp_path)}
        assert len(said) == job["spec"]["completions"]
        assert not any(said.values()), said


def environment_of(job: Object) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container_of(job).get("env", ())}


def test_a_command_that_is_wrong_would_be_found(tmp_path: Path) -> None:
    objects = as_it_stands(BASE)
    for found in of_kind(objects, "ConfigMap"):
        found["data"] = {name: text.replace("train_steps", "trian_steps") for name, text in found["data"].items()}
    (first, *_) = commands(objects, job_of(objects, "ps"), tmp_path)
    assert "unknown setting 'trian_steps'; did you mean train_steps" in complaint(first, MODELS)


def test_all_find_ps_0_by_its_name(objects: list[Object]) -> None:
    (service,) = of_kind(objects, "Service")
    ps = job_of(objects, "ps")
    domain, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    for job in of_kind(objects, "Job"):
        assert flag_of(job, "--coordinator") == f"{ps['metadata']['name']}-0.{domain}:{port}"
        assert pod_of(job)["subdomain"] == domain
        assert selects({"matchLabels": service["spec"]["selector"]}, labels_of(job))


def test_the_number_of_ps_is_the_same_everywhere(objects: list[Object]) -> None:
    ps = job_of(objects, "ps")
    number = ps["spec"]["completions"]
    assert flag_of(ps, "--ps") == str(number)
    assert "ps" not in settings_of(objects)
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == number - 1
    assert selects(budget["spec"]["selector"], labels_of(ps))
    assert not selects(budget["spec"]["selector"], labels_of(job_of(objects, "worker")))
    for job in of_kind(objects, "Job"):
        assert job["spec"]["completionMode"] == "Indexed"
        assert job["spec"]["parallelism"] == job["spec"]["completions"]


def test_in_the_example_other_numbers_follow_the_completions(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    shutil.copytree(EXAMPLE, folder)
    text = (folder / "kustomization.yaml").read_text()
    for path, number in ("/spec/completions", 7), ("/spec/minAvailable", 6):
        text, count = re.subn(rf"(path: {path}, value:) \d+", rf"\1 {number}", text)
        assert count
    objects = kustomized(yaml.safe_load(text), folder)
    test_the_number_of_ps_is_the_same_everywhere(objects)
    assert {job["spec"]["completions"] for job in of_kind(objects, "Job")} == {7}


def test_a_pod_is_replaced_unless_the_job_is_over(objects: list[Object]) -> None:
    for job in of_kind(objects, "Job"):
        ignore, fail = job["spec"]["podFailurePolicy"]["rules"]
        assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        assert (fail["action"], fail["onExitCodes"]["operator"]) == ("FailJob", "In")
        assert set(fail["onExitCodes"]["values"]) == {code for code in range(1, 256) if not crashed(code)}
        assert pod_of(job)["restartPolicy"] == "Never"  # a podFailurePolicy asks for it


def test_times_fit_each_other(objects: list[Object]) -> None:
    stop_grace_s = settings_of(objects).get("stop_grace_s", config.JobConfig.stop_grace_s)
    for job in of_kind(objects, "Job"):
        assert pod_of(job)["terminationGracePeriodSeconds"] >= stop_grace_s + GRACE_S
        startup = container_of(job)["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] > float(flag_of(job, "--connect-timeout"))


def test_probes_ask_the_health_service(objects: list[Object]) -> None:
    """ps 0 has it on the coordinator's port.  With TLS a probe can only open the port."""
    for job in of_kind(objects, "Job"):
        port = int(flag_of(job_of(objects, "ps"), "--coordinator").rpartition(":")[2])
        assert int(flag_of(job, "--health-port")) == port
        assert [p["containerPort"] for p in container_of(job)["ports"]] == [port]
        secured = any("secret" in volume for volume in pod_of(job)["volumes"])
        how, other = ("tcpSocket", "grpc") if secured else ("grpc", "tcpSocket")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            found = container_of(job)[probe]
            assert found[how] == {"port": port} and other not in found, probe


def test_containers_are_confined(objects: list[Object]) -> None:
    """What the Pod Security Standard "restricted" asks for, and a root that cannot be written."""
    for job in of_kind(objects, "Job"):
        pod, container = pod_of(job), container_of(job)
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
        }  # fmt: skip
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
        assert container["resources"]["requests"]["cpu"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
        (temporary,) = [volume["name"] for volume in pod["volumes"] if "emptyDir" in volume]
        assert mounts[temporary] == "/tmp"


def test_checkpoints_are_on_a_claim_that_all_nodes_may_write(objects: list[Object]) -> None:
    (claim,) = of_kind(objects, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    folder = settings_of(objects)["checkpoint_dir"]
    for job in of_kind(objects, "Job"):
        (mount,) = [m for m in container_of(job)["volumeMounts"] if m["mountPath"] == folder]
        (volume,) = [v for v in pod_of(job)["volumes"] if v["name"] == mount["name"]]
        assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
        assert "readOnly" not in mount


def allows(rules: list[Object], side: str, labels: dict[str, str], port: int, protocol: str = "TCP") -> bool:
    """Whether one of the rules of a policy lets its pods and another pod of the namespace meet.

    side: from or to, where the rules name the other pod, which has these labels.
    """
    for rule in rules:
        assert rule[side] and rule.keys() <= {side, "ports"}
        peers = [peer["podSelector"] for peer in rule[side] if peer.keys() == {"podSelector"}]
        ports = [(found.get("protocol", "TCP"), found["port"]) for found in rule.get("ports", ())]
        if any(selects(peer, labels) for peer in peers) and (not ports or (protocol, port) in ports):
            return True
    return False


STRANGER, CLIENT = {"app.kubernetes.io/name": "other"}, {"psruntime-client": "true"}
TENSORFLOW = 40_000


def test_only_pods_of_the_job_reach_tensorflow_and_clients_the_coordinator(objects: list[Object]) -> None:
    (policy,) = of_kind(objects, "NetworkPolicy")
    coordinator = int(flag_of(job_of(objects, "ps"), "--coordinator").rpartition(":")[2])
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    rules = policy["spec"]["ingress"]
    assert all(peer.keys() == {"podSelector"} for rule in rules for peer in rule["from"])
    for job in of_kind(objects, "Job"):
        assert selects(policy["spec"]["podSelector"], labels_of(job))
        assert all(allows(rules, "from", labels_of(job), port) for port in (TENSORFLOW, coordinator))
    assert not any(allows(rules, "from", STRANGER, port) for port in (TENSORFLOW, coordinator))
    assert not allows(rules, "from", CLIENT, TENSORFLOW) and allows(rules, "from", CLIENT, coordinator)


def test_pods_of_the_job_reach_each_other_and_dns_alone(objects: list[Object]) -> None:
    """So what a model sends does not leave the job; ../example adds storage by its addresses."""
    (policy,) = of_kind(objects, "NetworkPolicy")
    rules = policy["spec"]["egress"]
    for job in of_kind(objects, "Job"):
        assert allows(rules, "to", labels_of(job), TENSORFLOW)
    assert not allows(rules, "to", STRANGER, TENSORFLOW) and not allows(rules, "to", CLIENT, TENSORFLOW)
    elsewhere = [rule for rule in rules if any(peer.keys() != {"podSelector"} for peer in rule["to"])]
    assert [(found["protocol"], found["port"]) for found in elsewhere[0]["ports"]] == [("UDP", 53), ("TCP", 53)]
    (dns,) = elsewhere[0]["to"]
    assert dns["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    assert dns["podSelector"] == {"matchLabels": {"k8s-app": "kube-dns"}}
    storage = rendered(EXAMPLE) == objects
    blocks = [(peer["ipBlock"]["cidr"], rule["ports"]) for rule in elsewhere[1:] for peer in rule["to"]]
    assert blocks == ([("192.0.2.0/24", [{"port": 443}])] if storage else [])


def test_every_process_has_the_files_of_tls_and_the_token_of_a_secret_of_its_role() -> None:
    objects = as_it_stands(BASE)
    for role in ("ps", "worker"):
        job = job_of(objects, role)
        assert "--insecure" not in args_of(job)
        volume = volume_of(job, "secret")
        assert volume["secretName"] == f"psruntime-{role}-credentials" and "optional" not in volume
        (mount,) = [m for m in container_of(job)["volumeMounts"] if m["name"] == "credentials"]
        assert mount["readOnly"]  # a secret that is open to the group of the pod is refused elsewhere
        assert "subPath" not in mount  # it would not change with the Secret
        read = SecurityConfig.of({}, environment_of(job))
        files = (read.tls_ca, read.tls_cert, read.tls_key, read.token_file)
        assert files == tuple(f"{mount['mountPath']}/{name}" for name in CREDENTIALS)


@pytest.mark.parametrize("folder", [BASE, EXAMPLE], ids=lambda folder: folder.name)
def test_the_commands_of_the_comment_make_these_secrets(folder: Path, tmp_path: Path) -> None:
    if missing := [tool for tool in ("kubectl", "openssl") if not shutil.which(tool)]:
        pytest.skip(f"needs {' and '.join(missing)}")
    comment = (folder / "kustomization.yaml").read_text().split("apiVersion")[0].replace("\\\n#", "")
    lines = [line[6:] for line in comment.splitlines() if line.startswith("#     ")]
    made = {}
    for line in lines:
        if line.startswith("kubectl") and "secret" not in line:
            continue
        show = " --dry-run=client -o json" if line.startswith("kubectl") else ""
        command = line.replace("launch/", f"{shlex.quote(str(ROOT / 'launch'))}/") + show
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        if show:
            secret = json.loads(done.stdout)
            made[secret["metadata"]["name"]] = secret["data"]
    for role in ("ps", "worker"):
        job = job_of(as_it_stands(BASE), role)
        assert made[volume_of(job, "secret")["secretName"]].keys() == set(CREDENTIALS)
    host = flag_of(job, "--coordinator").rpartition(":")[0]
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-checkhost", host, "-in", tmp_path / "certs" / host / "cert.pem"],
        capture_output=True,
        text=True,
    )
    assert "does match certificate" in shown.stdout


def test_with_gpus_each_worker_has_one_and_computes_there(tmp_path: Path) -> None:
    objects = with_gpu(tmp_path)
    plain = as_it_stands(BASE)
    limits = {"nvidia.com/gpu": 1, **container_of(job_of(plain, "worker"))["resources"]["limits"]}
    assert container_of(job_of(objects, "worker"))["resources"]["limits"] == limits
    assert args_of(job_of(objects, "worker")) == [*args_of(job_of(plain, "worker")), "--devices=gpu:0"]
    assert container_of(job_of(objects, "ps")) == container_of(job_of(plain, "ps"))
    (extras,) = re.findall(r"EXTRAS='(\[\w+\])'", (GPU / "kustomization.yaml").read_text())
    assert complaint(["pip", "install", f".{extras}"], {}) == ""


def test_without_tls_ps_0_has_to_say_that_it_serves_others(tmp_path: Path) -> None:
    """Else it would listen on its own machine only, and refuse this address."""
    objects, closed = without_tls(tmp_path), as_it_stands(BASE)
    assert args_of(job_of(objects, "ps")) == [*args_of(job_of(closed, "ps")), "--insecure"]
    assert args_of(job_of(objects, "worker")) == args_of(job_of(closed, "worker"))
    for job in of_kind(objects, "Job"):
        assert not environment_of(job) and not any("secret" in volume for volume in pod_of(job)["volumes"])
