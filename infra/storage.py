"""Storage stack: FSx for Lustre that outlives the rest, its rules, and an S3 copy of the checkpoints if wanted."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk.aws_eks import CfnPodIdentityAssociation
from aws_cdk.aws_fsx import CfnDataRepositoryAssociation, CfnFileSystem
from constructs import Construct

from holdfast.config import RunConfig, names
from holdfast.config.schema import Storage
from infra import security
from infra.nag import acknowledge
from infra.stack import HoldfastStack

PORTS = ((988, 988), (1018, 1023))
"""TCP ports of Lustre (docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html)."""
VERSION = "2.15"
"""Never left out: FSx then takes 2.10, which the Lustre client of Amazon Linux 2023 cannot mount."""
RUNS = "runs"
"""Folder of all run directories, below the root of the file system."""
KEEP = cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""Data stays when its stack goes or another file system takes its place; not when the deployment that makes it fails,
where RETAIN would leave an empty file system outside all stacks, paid for and in the way of the next try."""


class LustreSecurityGroup(Construct):
    """Group of the file system's interfaces: `resource`, `group_id`, and the `rules` that FSx checks at creation."""

    def __init__(
        self, scope: Construct, construct_id: str, *, vpc_id: str, nodes_group_id: str, efa: bool, keep: bool
    ) -> None:
        """`nodes_group_id`: the group on the nodes' primary interfaces. `efa`: members, which then include the nodes'
        EFA interfaces, reach each other without limits."""
        super().__init__(scope, construct_id)
        self.resource = ec2.CfnSecurityGroup(self, "Resource", group_description="FSx for Lustre", vpc_id=vpc_id)
        self.group_id = own = self.resource.attr_group_id
        inner: list[cdk.CfnResource] = []
        outer: list[cdk.CfnResource] = []
        for first, last in PORTS:
            ports = (first, last)
            inner.append(security.allow_in(self, f"Own{first}", group_id=own, peer_id=own, ports=ports))
            outer.append(security.allow_in(self, f"Nodes{first}", group_id=own, peer_id=nodes_group_id, ports=ports))
            # Lustre's servers call back to their clients.
            outer.append(security.allow_in(self, f"ToNodes{first}", group_id=nodes_group_id, peer_id=own, ports=ports))
        if efa:
            inner.append(security.allow_in(self, "OwnEfaIn", group_id=own, peer_id=own))
            inner.append(security.allow_out(self, "OwnEfaOut", group_id=own, peer_id=own))
        self.rules = [*inner, *outer]
        if keep:
            # A file system that stays keeps its group. Rules that name the nodes' group go: they would hold that one.
            for resource in (self.resource, *inner):
                resource.apply_removal_policy(KEEP)


class LustreFileSystem(Construct):
    """The file system, in one subnet. `resource` is the L1: its ref, attr_dns_name and attr_lustre_mount_name.

    The L2 cannot say whether EFA is on, how metadata is provisioned, nor wait for the group's rules.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        storage: Storage,
        subnet_id: str,
        group: LustreSecurityGroup,
        removal: cdk.RemovalPolicy,
    ) -> None:
        super().__init__(scope, construct_id)
        self.resource = CfnFileSystem(
            self,
            "Resource",
            file_system_type="LUSTRE",
            file_system_type_version=VERSION,
            storage_type="SSD",
            storage_capacity=storage.capacity_gib,
            subnet_ids=[subnet_id],
            security_group_ids=[group.group_id],
            lustre_configuration=_lustre(storage),
        )
        for rule in group.rules:
            self.resource.add_resource_dependency(rule)
        self.resource.apply_removal_policy(removal)


def _lustre(storage: Storage) -> CfnFileSystem.LustreConfigurationProperty:
    fsx = storage.fsx
    if storage.deployment_type == "SCRATCH_2":
        return CfnFileSystem.LustreConfigurationProperty(
            deployment_type="SCRATCH_2", data_compression_type=fsx.compression
        )
    provisioned = fsx.metadata_iops is not None
    return CfnFileSystem.LustreConfigurationProperty(
        deployment_type=storage.deployment_type,
        data_compression_type=fsx.compression,
        per_unit_storage_throughput=storage.throughput_mbps_per_tib,
        efa_enabled=fsx.efa or None,
        metadata_configuration=CfnFileSystem.MetadataConfigurationProperty(
            mode="USER_PROVISIONED" if provisioned else "AUTOMATIC", iops=fsx.metadata_iops
        ),
    )


class CheckpointBucket(Construct):
    """S3 bucket to which FSx copies what appears below runs/. `bucket` and `association`.

    Deletions are never copied: a pruned, or wiped, file system must not take the copies along.
    """

    def __init__(self, scope: Construct, construct_id: str, *, file_system: CfnFileSystem, delete: bool) -> None:
        super().__init__(scope, construct_id)
        removal = cdk.RemovalPolicy.DESTROY if delete else KEEP
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            removal_policy=removal,
            auto_delete_objects=delete,
        )
        acknowledge(self.bucket, "AwsSolutions-S1", "Only FSx writes here; an access log would be a second bucket.")
        self.association = CfnDataRepositoryAssociation(
            self,
            "Association",
            file_system_id=file_system.ref,
            file_system_path=f"/{RUNS}",
            data_repository_path=self.bucket.s3_url_for_object(RUNS),
            # A new file system in front of an old bucket shows the checkpoints that are in it.
            batch_import_meta_data_on_create=True,
            s3=CfnDataRepositoryAssociation.S3Property(
                auto_export_policy=CfnDataRepositoryAssociation.AutoExportPolicyProperty(events=["NEW", "CHANGED"])
            ),
        )
        self.association.apply_removal_policy(removal)


class TrainerAccess(Construct):
    """Lets the training pods read the copies in S3, by Pod Identity, and nothing else of AWS. `role`."""

    def __init__(
        self, scope: Construct, construct_id: str, *, bucket: s3.IBucket, cluster_name: str, namespace: str
    ) -> None:
        super().__init__(scope, construct_id)
        pods = iam.ServicePrincipal("pods.eks.amazonaws.com").with_session_tags()
        self.role = iam.Role(self, "Role", assumed_by=pods)
        inside = {"StringLike": {"s3:prefix": [f"{RUNS}/*"]}}
        self.role.add_to_policy(
            iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn], conditions=inside)
        )
        objects = bucket.arn_for_objects(f"{RUNS}/*")
        self.role.add_to_policy(iam.PolicyStatement(actions=["s3:GetObject"], resources=[objects]))
        resource = bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket)
        name = cdk.Stack.of(self).get_logical_id(resource)
        rule = f"AwsSolutions-IAM5[Resource::<{name}.Arn>/{RUNS}/*]"
        acknowledge(self.role, rule, "Any object, but below one prefix of one bucket, and only to read.")
        CfnPodIdentityAssociation(
            self,
            "Association",
            cluster_name=cluster_name,
            namespace=namespace,
            service_account=names.SERVICE_ACCOUNT,
            role_arn=self.role.role_arn,
        )


class StorageStack(HoldfastStack):
    """`file_system` (L1) for charts; `efa_client_group_id` for EFA interfaces of clients, where FSx speaks EFA."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: RunConfig,
        vpc: ec2.IVpc,
        gpu_subnet: ec2.ISubnet,
        cluster_name: str,
        nodes_group_id: str,
    ) -> None:
        purpose = "FSx for Lustre"
        super().__init__(scope, construct_id, config=config, stack=names.STACK_STORAGE, purpose=purpose, keep=True)
        keep, efa = not config.aws.allow_data_loss, config.storage.fsx.efa
        group = LustreSecurityGroup(
            self, "SecurityGroup", vpc_id=vpc.vpc_id, nodes_group_id=nodes_group_id, efa=efa, keep=keep
        )
        self.efa_client_group_id = group.group_id if efa else None
        self.file_system = LustreFileSystem(
            self,
            "FileSystem",
            storage=config.storage,
            subnet_id=gpu_subnet.subnet_id,
            group=group,
            removal=KEEP if keep else cdk.RemovalPolicy.DESTROY,
        ).resource
        cdk.CfnOutput(self, names.OUTPUT_FILE_SYSTEM_ID, value=self.file_system.ref)
        cdk.CfnOutput(self, names.OUTPUT_FILE_SYSTEM_DNS, value=self.file_system.attr_dns_name)
        cdk.CfnOutput(self, names.OUTPUT_FILE_SYSTEM_MOUNT, value=self.file_system.attr_lustre_mount_name)
        if config.storage.fsx.s3_checkpoints:
            copies = CheckpointBucket(self, "Checkpoints", file_system=self.file_system, delete=not keep)
            cdk.CfnOutput(self, "CheckpointBucketName", value=copies.bucket.bucket_name)
            TrainerAccess(
                self,
                "TrainerAccess",
                bucket=copies.bucket,
                cluster_name=cluster_name,
                namespace=config.cluster.namespace,
            )
