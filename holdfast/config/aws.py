"""What is built on AWS: where, which capacity, which file system, and what it may cost. No identifier of an account.

Ids that exist before a deployment (an administrator's role, a capacity reservation, a mail address) are CDK context of
infra/deployment.py, not part of a run's config.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.config.section import NumberFromText, Real, Section, Whole

Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d[a-z]$")]
Cidr = Annotated[str, Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$")]
MOST_ZONES = 3
"""The VPC has addresses for so many."""


class Capacity(Section):
    """How the GPU nodes are bought."""

    mode: Literal["on_demand", "reservation", "capacity_block"] = "on_demand"
    """on_demand; reservation: an On-Demand Capacity Reservation (ODCR); capacity_block: a Capacity Block for ML. The
    last two need the CDK context `capacity_reservation_id`."""
    desired_nodes: Annotated[Whole, Field(ge=0, le=1024)] = 0
    """Nodes that the group starts with. 0: nothing is spent until it is scaled up on purpose."""
    max_nodes: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    """Upper limit of the group; default: cluster.nodes + recovery.spares."""
    placement_group: bool = Field(
        default_factory=lambda fields: fields.get("mode", "on_demand") == "on_demand",
        json_schema_extra={"default": True},
    )
    """Put the nodes into one cluster placement group. Default: true for on_demand; the other modes have their place
    already and take none."""


class Aws(Section):
    """The cluster that `cdk deploy` builds."""

    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")] = "us-west-2"
    """Region of everything."""
    zones: Annotated[tuple[Zone, ...], Field(min_length=2, max_length=MOST_ZONES)] = ("us-west-2a", "us-west-2b")
    """Availability zones of the VPC. EKS wants at least two."""
    gpu_zone: Zone = "us-west-2a"
    """The one zone of the GPU nodes and of FSx; must be among aws.zones."""
    vpc_cidr: Cidr = "10.64.0.0/16"
    """Address range of the VPC; each private subnet gets a /19 of it."""
    kubernetes_version: Literal["1.35"] = "1.35"
    """EKS version, in standard support until 2027-03. The kubectl layer and the manifest checks belong to it."""
    endpoint: Literal["private", "allow_listed"] = "private"
    """Who reaches the API server: only the VPC, or also aws.allowed_cidrs."""
    allowed_cidrs: tuple[Cidr, ...] = ()
    """With endpoint: allow_listed: public ranges that may reach the API server. 0.0.0.0/0 is refused."""
    system_instance_type: str = "m7i.xlarge"
    """Instance type of the two system nodes that carry the control pod and the add-ons."""
    apply_manifests: bool = True
    """Apply device plugins and storage within `cdk deploy`, through a kubectl Lambda that is cluster administrator.
    False: no such Lambda; apply dist/k8s/<profile>/platform by hand."""
    nic_layout: Literal["efa", "ena"] = "efa"
    """First interface of an EFA node: efa (efa + efa-only), or ena (ENA + efa-only; EC2's newer advice, not verified on
    managed node groups)."""
    production: bool = False
    """Termination and deletion protection."""
    allow_data_loss: bool = False
    """Let `cdk destroy` delete the file system and the checkpoint bucket. Otherwise they are retained."""
    capacity: Capacity = Capacity()
    """How the GPU nodes are bought."""


class FsxOptions(Section):
    """Options of the FSx for Lustre file system beyond its type and size."""

    compression: Literal["LZ4", "NONE"] = "LZ4"
    """Data compression on the servers."""
    efa: bool = False
    """EFA between clients and FSx; PERSISTENT_2 only, with a minimum size by throughput."""
    metadata_iops: Annotated[Literal[1500, 3000, 6000, 12000], NumberFromText] | None = None
    """PERSISTENT_2: provisioned metadata IOPS. Null: automatic."""
    s3_checkpoints: bool = False
    """Associate <mount_path>/runs with an S3 bucket: new and changed files are exported, deletions never."""


class Cost(Section):
    """Limits on spending, checked at synth with price estimates (holdfast/config/prices.py)."""

    max_hourly_usd: Annotated[Real, Field(gt=0)] | None = None
    """Refuse a deployment whose estimate at full size is above this."""
    node_hourly_usd: Annotated[Real, Field(gt=0)] | None = None
    """What one GPU node costs you per hour (a Capacity Block, a discount). Null: the on-demand estimate in
    holdfast/config/prices.py."""
    monthly_budget_usd: Annotated[Real, Field(gt=0)] | None = None
    """An AWS Budget with this limit; the CDK context `budget_email` says whom it warns."""
    owner: Annotated[str, Field(pattern=r"^[A-Za-z0-9@._-]{1,64}$")] = "holdfast"
    """Tag Owner of every resource."""
    expires_at: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    """Tag ExpiresAt (a date) of every resource."""
