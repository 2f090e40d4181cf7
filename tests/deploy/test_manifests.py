"""The image file, the Compose file and the Kubernetes manifests: valid, complete, and with settings that the gateway accepts."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deploy_programs import ROOT, need_wheel, run_check
from tollway.config.settings import Settings, load_settings
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.postgres_address import PostgresAddress

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = DEPLOY / "compose.yaml"
MANIFESTS = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
OLDEST_KUBERNETES = "1.33"
STAND_INS = {
    "TOLLWAY_SECRET_KEY": "5e" * 8 + "0123456789abcdef" * 3,
    "TOLLWAY_GAS_KEYS_BASE": "0x" + "5e" * 32,
    "GAS_KEY_FILE": "./secrets/gas_key",
    "TOLLWAY_DOMAIN": "gateway.example.com",
    "POSTGRES_DIGEST": "@sha256:" + "0" * 64,
    "TOLLWAY_RPC_BASE": "https://first.example,https://second.example",
}
"""Values for what an operator fills in."""


class StrictLoader(yaml.SafeLoader):
    """YAML whose mappings name each key once. The library takes the last one, and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        written = [key.value for key, _ in node.value]
        twice = sorted({key for key in written if written.count(key) > 1})
        assert twice == [], f"line {node.start_mark.line + 1}: {twice}"
        return super().construct_mapping(node, deep=deep)


def read(path: Path, *, has_workers: bool = False) -> dict[str, Any]:
    """`has_workers`: with the lines of control workers."""
    text = path.read_text()
    document: dict[str, Any] = yaml.load(
        text.replace("#control ", "") if has_workers else text, Loader=StrictLoader
    )
    return document


def of_kind(kind: str, *, has_workers: bool = False) -> dict[str, Any]:
    documents = [read(path, has_workers=has_workers) for path in MANIFESTS]
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def template_of(kind: str) -> dict[str, Any]:
    spec = of_kind(kind)["spec"]
    found: dict[str, Any] = spec["jobTemplate"]["spec"]["template"] if kind == "CronJob" else spec["template"]
    return found


def pod_of(kind: str) -> dict[str, Any]:
    pod: dict[str, Any] = template_of(kind)["spec"]
    return pod


# ---- The image.


def test_hadolint_accepts_the_image_file() -> None:
    assert run_check(need_wheel("hadolint"), DEPLOY / "Containerfile") == ""


def test_the_image_has_no_tag_that_moves_and_runs_as_no_root() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert "latest" not in text
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert 'CMD ["gateway", "serve"]' in text


# ---- Compose.


def interpolate(part: Any, values: dict[str, str]) -> Any:
    """`${NAME}`, `${NAME:-default}`, `${NAME:+instead}` and `${NAME:?why}` of the Compose specification, in the texts of the parsed file."""
    if isinstance(part, dict):
        return {name: interpolate(value, values) for name, value in part.items()}
    if isinstance(part, list):
        return [interpolate(value, values) for value in part]
    if not isinstance(part, str):
        return part

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match[1], match[2], match[3] or ""
        if kind == ":-":
            return values.get(name) or rest
        if kind == ":+":
            return rest if values.get(name) else ""
        assert values.get(name), f"{name}: {rest}"
        return values[name]

    return re.sub(r"\$\{([A-Z_]+)(?:(:[-+?])([^}]*))?\}", value, part)


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = interpolate(read(COMPOSE), STAND_INS)["services"]
    return found


def test_the_compose_file_follows_the_specification() -> None:
    run_check(need_wheel("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE)


GATEWAYS = ("migrate", "audit", "gateway-1", "gateway-2")
SECRETS = {
    "secret_key": "5e" * 8 + "0123456789abcdef" * 3,
    "gas_key": "0x" + "5e" * 32,
    "database_password": "postgres:5432:tollway:tollway:a1b2c3",
}


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateway_of_the_compose_file_starts_on_its_settings(
    services: dict[str, Any], name: str, tmp_path: Path
) -> None:
    assert set(services[name]["secrets"]) == set(SECRETS) - ({"gas_key"} if name == "audit" else set())
    for secret, text in SECRETS.items():
        (tmp_path / secret).write_text(text)
        (tmp_path / secret).chmod(0o600)
    environment = {
        key: str(value).replace("/run/secrets", str(tmp_path))
        for key, value in services[name]["environment"].items()
    }
    settings = load_settings(environment, config=None)
    assert settings.public_url == "https://gateway.example.com"
    assert not settings.is_sqlite
    address = PostgresAddress.parse(settings.database_url.get_secret_value())
    assert address.password is None
    assert ("passfile", str(tmp_path / "database_password")) in address.options
    assert settings.secret_keys
    assert len(settings.networks[0].settlement.gas_keys) == (0 if name == "audit" else 1)


def test_no_environment_of_the_compose_file_has_a_secret(services: dict[str, Any]) -> None:
    """`docker inspect` prints an environment."""
    names = [name for service in services.values() for name in service.get("environment", {})]
    assert [one for one in names if re.search(r"PASSWORD$|SECRET_KEY$|TOKEN$", one)] == []
    document = read(COMPOSE)
    used = {secret for service in services.values() for secret in service.get("secrets", ())}
    assert used == set(document["secrets"])


def test_every_service_of_the_compose_file_is_confined_and_a_gateway_writes_nowhere(
    services: dict[str, Any],
) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    for name in GATEWAYS:
        assert services[name]["read_only"]
        assert "volumes" not in services[name]
    added = {name: service["cap_add"] for name, service in services.items() if "cap_add" in service}
    assert set(added) == {"postgres", "caddy"}
    assert added["caddy"] == ["NET_BIND_SERVICE"]


def test_every_image_has_an_exact_version_and_a_place_for_its_digest() -> None:
    images = {name: service["image"] for name, service in read(COMPOSE)["services"].items()}
    assert {images.pop(name) for name in GATEWAYS} == {"${TOLLWAY_IMAGE:-localhost/tollway:edge}"}
    for name, image in images.items():
        place = f"${{{name.upper()}_DIGEST:-}}"
        assert re.fullmatch(r"docker\.io/[a-z/]+:v?[0-9]+(?:\.[0-9]+){1,2}" + re.escape(place), image), image


def test_the_proxy_of_the_compose_file_is_the_only_trusted_one(services: dict[str, Any]) -> None:
    proxy = services["caddy"]["networks"]["inside"]["ipv4_address"]
    assert services["gateway-1"]["environment"]["TOLLWAY_TRUSTED_PROXIES"] == f"{proxy}/32"
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published.pop("caddy")
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports), published


def test_the_example_of_values_has_every_value(services: dict[str, Any]) -> None:
    named = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE.read_text()))
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    assert {line.partition("=")[0] for line in lines if line and not line.startswith("#")} == named


def test_every_file_that_the_compose_file_mounts_exists(services: dict[str, Any]) -> None:
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert mounted
    assert [path for path in mounted if not (DEPLOY / path).exists()] == []


def test_prometheus_reads_the_admin_address_of_each_gateway_and_keeps_the_traces_of_buckets(
    services: dict[str, Any],
) -> None:
    (job,) = read(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    targets = job["static_configs"][0]["targets"]
    port = services["gateway-1"]["environment"]["TOLLWAY_ADMIN_LISTEN"].rpartition(":")[2]
    assert targets == [f"{name}:{port}" for name in services if name.startswith("gateway-")]
    assert job["job_name"] == "tollway"
    assert "--enable-feature=exemplar-storage" in services["prometheus"]["command"]


def test_no_image_has_a_tag_that_moves(services: dict[str, Any]) -> None:
    images = [service["image"] for service in services.values()]
    images += [pod["containers"][0]["image"] for pod in map(pod_of, ("Deployment", "Job", "CronJob"))]
    assert all(":" in image and not image.endswith(":latest") for image in images)


# ---- Kubernetes.


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, "newest"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_follows_the_schema_of_its_kind(path: Path, version: str) -> None:
    chosen = [] if version == "newest" else ["-k", version]
    run_check(need_wheel("kubernetes-validate"), "--strict", *chosen, path)


WITH_WORKERS = [path for path in MANIFESTS if "#control " in path.read_text()]


@pytest.mark.parametrize("path", WITH_WORKERS, ids=lambda path: path.name)
def test_a_manifest_with_control_workers_follows_the_schema_of_its_kind(path: Path, tmp_path: Path) -> None:
    (tmp_path / path.name).write_text(path.read_text().replace("#control ", ""))
    run_check(need_wheel("kubernetes-validate"), "--strict", tmp_path / path.name)


def test_control_workers_listen_where_the_service_sends_and_the_network_lets_through() -> None:
    settings = settings_of_the_manifests(has_workers=True)
    assert settings.control_workers == 1
    port = settings.control_listen.port
    (container,) = of_kind("Deployment", has_workers=True)["spec"]["template"]["spec"]["containers"]
    assert {"name": "control", "containerPort": port} in container["ports"]
    service, network = (of_kind(kind, has_workers=True)["spec"] for kind in ("Service", "NetworkPolicy"))
    assert [one["targetPort"] for one in service["ports"]] == ["http", "control"]
    assert {"protocol": "TCP", "port": port} in network["ingress"][0]["ports"]
    assert "control" not in {one["targetPort"] for one in of_kind("Service")["spec"]["ports"]}


@pytest.mark.parametrize("folder", [KUBERNETES, KUBERNETES / "monitoring"], ids=lambda path: path.name)
def test_the_kustomization_lists_every_file(folder: Path) -> None:
    kustomization = read(folder / "kustomization.yaml")
    assert set(kustomization) == {"apiVersion", "kind", "namespace", "resources"}
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert sorted(kustomization["resources"]) == sorted(files)


def settings_of_the_manifests(*, has_workers: bool = False) -> Settings:
    values = {**of_kind("ConfigMap", has_workers=has_workers)["data"], **of_kind("Secret")["stringData"]}
    for name, value in STAND_INS.items():
        if value != values.get(name, value) and values[name].startswith("REPLACE"):
            values[name] = value
    return load_settings(values, config=None)


def test_a_gateway_starts_on_the_settings_of_the_manifests_once_they_are_filled_in() -> None:
    settings = settings_of_the_manifests()
    assert settings.public_url == "https://gateway.example.com"
    assert settings.trusted_proxies == ("10.0.0.0/24",)
    secret = of_kind("Secret")["stringData"]
    marked = [name for name, value in secret.items() if value.startswith("REPLACE")]
    assert marked == ["TOLLWAY_SECRET_KEY", "TOLLWAY_GAS_KEYS_BASE"]


def test_prometheus_gives_the_pods_the_job_of_the_rules() -> None:
    monitor = read(KUBERNETES / "monitoring" / "podmonitor.yaml")["spec"]
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels[monitor["jobLabel"]] == "tollway"


def test_the_rules_of_the_operator_are_those_of_prometheus() -> None:
    rule = read(KUBERNETES / "monitoring" / "prometheusrule.yaml")
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == read(DEPLOY / "prometheus" / "alerts.yaml")


@pytest.mark.parametrize("kind", ["Deployment", "Job", "CronJob"])
def test_a_pod_runs_as_no_root_on_a_root_that_it_cannot_write(kind: str) -> None:
    pod = pod_of(kind)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 65532
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]


def test_a_rollout_takes_no_gateway_out_before_another_is_ready() -> None:
    spec = of_kind("Deployment")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    grace_s = pod_of("Deployment")["terminationGracePeriodSeconds"]
    assert grace_s >= settings_of_the_manifests().drain_notice_s + DEFAULT_LIMITS.drain_deadline_s + 10


def test_a_stop_is_announced_for_longer_than_two_probes() -> None:
    (container,) = pod_of("Deployment")["containers"]
    assert settings_of_the_manifests().drain_notice_s >= 2 * container["readinessProbe"]["periodSeconds"]


def test_the_probes_outlast_a_short_outage() -> None:
    (container,) = pod_of("Deployment")["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz?for=traffic"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    for probe in (container["readinessProbe"], container["livenessProbe"]):
        assert probe["periodSeconds"] * probe["failureThreshold"] >= DEFAULT_LIMITS.close_patience_s


def test_the_ledger_is_audited_where_no_timer_of_systemd_is(services: dict[str, Any]) -> None:
    """More often than the alert AuditOld allows, by a pod that gets no request of a caller."""
    (container,) = pod_of("CronJob")["containers"]
    assert container["args"] == ["gateway", "audit", "--json"]
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", of_kind("CronJob")["spec"]["schedule"])
    selected = of_kind("Service")["spec"]["selector"]
    assert not selected.items() <= template_of("CronJob")["metadata"]["labels"].items()
    _, _, loop = services["audit"]["entrypoint"]
    assert "tollway gateway audit --json" in loop
    assert int(re.findall(r"sleep (\d+)", loop)[0]) <= 7 * 86_400
    after_failure = re.findall(r"if tollway gateway audit --json; then [^;]+; else sleep (\d+); fi", loop)
    assert [int(seconds) for seconds in after_failure] == [3_600]


def test_an_audit_has_no_gas_key(services: dict[str, Any]) -> None:
    (container,) = pod_of("CronJob")["containers"]
    assert {"name": "TOLLWAY_GAS_KEYS_BASE", "value": ""} in container["env"]
    assert services["gateway-1"]["environment"]["TOLLWAY_GAS_KEYS_BASE"] == "/run/secrets/gas_key"
    assert services["audit"]["environment"]["TOLLWAY_GAS_KEYS_BASE"] == ""
    assert "gas_key" not in services["audit"]["secrets"]


def test_the_ports_agree() -> None:
    (container,) = pod_of("Deployment")["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    settings = settings_of_the_manifests()
    assert settings.admin_listen is not None
    assert ports == {"http": settings.listen.port, "admin": settings.admin_listen.port}
    monitor = read(KUBERNETES / "monitoring" / "podmonitor.yaml")
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports
    labels = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        of_kind("Service")["spec"]["selector"],
        of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        monitor["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
