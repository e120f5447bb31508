"""Settings of pods: what a cluster asks of each pod in which nodes run, beside what the nodes ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What pods have in common, beside what each node asks for itself."""

    image: str = ""  #: of nodes that name none
    service_account: str = ""
    template: Path | None = None  #: a manifest of a pod, in YAML, to which ours is added
    pools: Mapping[str, Path] = field(default_factory=dict)  #: templates that are added for the nodes of a pool
    secrets: tuple[str, ...] = ()  #: Secrets whose keys become variables of the environment
    gpu: str = GPU  #: what the cluster calls a GPU
    environment: Mapping[str, str] = field(default_factory=dict)  #: variables that are no secrets
