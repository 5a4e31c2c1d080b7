"""The effective configuration: defaults, then ``sluice.toml``, then ``SLUICE__SECTION__KEY``, then flags.

Unknown keys are errors that name the nearest known key. Each value has its origin, for ``sluice config show``.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from sluice.cli.errors import UsageError
from sluice.core import EgressConfig, EgressSetting, LogConfig, SluiceError, TracingConfig, egress_mode
from sluice.gateway import GatewayConfig
from sluice.pki import PkiConfig
from sluice.pki.ca import CaConfig
from sluice.runtime import (
    ConnectConfig,
    HistoryConfig,
    JobManagerConfig,
    JobsConfig,
    LimitsConfig,
    PodsConfig,
    ResourcesConfig,
    RestartConfig,
    RuntimeConfig,
    SchedulingConfig,
    SecretsConfig,
    SparkConfig,
    TaskManagerConfig,
)
from sluice.runtime.checkpoint import StreamingConfig
from sluice.runtime.ha import HaConfig, check_ha
from sluice.runtime.notify import NotifyConfig
from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.shuffle import ShuffleConfig, check_shuffle
from sluice.runtime.spark.jvm import check_allow_conf
from sluice.runtime.spark.managers import KubernetesConfig, YarnConfig
from sluice.runtime.warm import WarmConfig

ENVIRONMENT_PREFIX = "SLUICE__"
MAX_CONFIG_BYTES = 1 << 20
CONFIG_FILE = "sluice.toml"

DEFAULT = "default"
FLAG = "flag"
EMBEDDED = "default of a cluster of this machine"
"""Origins of values, besides files and the environment."""

_Layer = dict[str, dict[str, Any]]
_Section = TypeVar("_Section", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Configuration:
    """All sections, typed, and the origin of every value (``section.key`` -> text)."""

    pki: PkiConfig
    ca: CaConfig
    jobmanager: JobManagerConfig
    taskmanager: TaskManagerConfig
    spark: SparkConfig
    jobs: JobsConfig
    connect: ConnectConfig
    ha: HaConfig
    shuffle: ShuffleConfig
    restart: RestartConfig
    streaming: StreamingConfig
    resources: ResourcesConfig
    pods: PodsConfig
    limits: LimitsConfig
    scheduling: SchedulingConfig
    isolation: IsolationConfig
    egress: EgressConfig
    secrets: SecretsConfig
    warm: WarmConfig
    history: HistoryConfig
    notify: NotifyConfig
    log: LogConfig
    tracing: TracingConfig
    kubernetes: KubernetesConfig
    yarn: YarnConfig
    gateway: GatewayConfig
    origins: Mapping[str, str]

    @property
    def gateway_egress(self) -> EgressConfig:
        """The gateway's settings of outgoing connections: with the mode for the level of isolation."""
        mode = EgressSetting(egress_mode(self.egress, self.isolation.level))
        return msgspec.structs.replace(self.egress, mode=mode)

    @property
    def runtime(self) -> RuntimeConfig:
        """The settings of JobManagers and TaskManagers."""
        sections = {name: getattr(self, name) for name in RuntimeConfig.__struct_fields__ if name in SECTIONS}
        return RuntimeConfig(trust_domain=self.pki.trust_domain, **sections)

    def embedded(self) -> Configuration:
        """The configuration of a whole cluster on this machine.

        It uses the shuffle service by default, and its gateway is the issuer of the tokens of jobs. Elsewhere the
        service must be configured, because somebody has to start it.
        """
        known = self._as_issuer()
        if known.origins["shuffle.enabled"] != DEFAULT or known.ha.mode != "embedded":
            return known
        with _refusing():
            shuffle = check_shuffle(msgspec.structs.replace(known.shuffle, enabled=True))
        return replace(known, shuffle=shuffle, origins={**known.origins, "shuffle.enabled": EMBEDDED})

    def _as_issuer(self) -> Configuration:
        """Make the gateway the issuer of tokens, if its address is known before it starts."""
        if self.origins["pki.token_issuer"] != DEFAULT or not (self.gateway.public_url or self.gateway.port):
            return self
        pki = msgspec.structs.replace(self.pki, token_issuer=self.gateway.origin)
        return replace(self, pki=pki, origins={**self.origins, "pki.token_issuer": EMBEDDED})

    def values(self) -> dict[str, Any]:
        """Every value as plain data, keyed ``section.key``."""
        return {
            f"{section}.{key}": value
            for section in SECTIONS
            for key, value in msgspec.to_builtins(getattr(self, section)).items()
        }


SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    name: section for name, section in get_type_hints(Configuration).items() if name != "origins"
}
"""The tables of a configuration file, in the order in which they are documented."""


def find_config_file(explicit: Path | None, home: Path) -> Path | None:
    """The file to read: ``--config``, else ``<home>/sluice.toml``, else ``./sluice.toml``, else none."""
    if explicit is not None:
        if not explicit.is_file():
            raise UsageError(f"there is no configuration file {explicit}", "check --config")
        return explicit.absolute()
    for candidate in (home / CONFIG_FILE, Path(CONFIG_FILE)):
        if candidate.is_file():
            return candidate.absolute()
    return None


def load(
    file: Path | None, *, environment: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> Configuration:
    """Merge the layers; raises :class:`UsageError` naming the key and its place."""
    merged: _Layer = {section: {} for section in SECTIONS}
    origins = {
        f"{section}.{name}": DEFAULT for section, struct in SECTIONS.items() for name in struct.__struct_fields__
    }
    layers: list[tuple[str, _Layer]] = []
    if file is not None:
        layers.append((str(file), _read_file(file)))
    layers.append(("environment", _read_environment(environment)))
    layers.append((FLAG, _read_flags(flags or {})))
    for origin, layer in layers:
        for section, values in layer.items():
            for key, value in values.items():
                merged[section][key] = value
                origins[f"{section}.{key}"] = origin
    sections: dict[str, Any] = {name: _convert(name, merged, origins, struct) for name, struct in SECTIONS.items()}
    configuration = Configuration(**sections, origins=origins)
    with _refusing():
        check_allow_conf(configuration.jobs.allow_conf)
        egress_mode(configuration.egress, configuration.isolation.level)
        return replace(configuration, ha=check_ha(configuration.ha), shuffle=check_shuffle(configuration.shuffle))


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn refusals of a check into errors of the configuration."""
    try:
        yield
    except SluiceError as error:
        raise UsageError(f"configuration: {error.what}", error.remedy) from error


def _convert(section: str, merged: _Layer, origins: Mapping[str, str], struct: type[_Section]) -> _Section:
    try:
        return msgspec.convert(merged[section], struct, strict=False)
    except msgspec.ValidationError as error:
        what, _, path = str(error).rpartition(" - at `$.")
        if not what:  # a check of the whole section, whose text begins with the key
            what, path = path, ""
        key = path.strip("`").split("[")[0]
        where = f"{section}.{key}" if key else section
        origin = origins.get(f"{section}.{key.partition('.')[0] or what.partition(' ')[0]}", "")
        raise UsageError(
            f"configuration {where}{f', set by {origin}' if origin else ''}: {what}",
            "correct it; `sluice config reference` shows every setting with its meaning and default",
        ) from None


def _read_file(file: Path) -> _Layer:
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise UsageError(f"{file} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from error
    layer: _Layer = {}
    for section, values in document.items():
        _check_section(section, str(file))
        if not isinstance(values, dict):
            raise UsageError(f"{file}: {section} must be a table, as in [{section}]")
        for key in values:
            _check_key(section, key, str(file))
        layer[section] = values
    return layer


def _read_environment(environment: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        section, _, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        _check_section(section, name)
        _check_key(section, key, name)
        layer.setdefault(section, {})[key] = value
    return layer


def _read_flags(flags: Mapping[str, Any]) -> _Layer:
    layer: _Layer = {}
    for name, value in flags.items():
        if value is not None:
            section, _, key = name.partition(".")
            layer.setdefault(section, {})[key] = value
    return layer


def _check_section(section: str, where: str) -> None:
    if section not in SECTIONS:
        raise UsageError(f"{where}: unknown section {section!r}", _nearest(section, SECTIONS))


def _check_key(section: str, key: str, where: str) -> None:
    known = SECTIONS[section].__struct_fields__
    if key not in known:
        raise UsageError(f"{where}: unknown key {section}.{key}", _nearest(key, known))


def _nearest(word: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
