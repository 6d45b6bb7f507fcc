"""Rules about FSx for Lustre and the buckets that hold checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.config.fsx import EFA_SIZE_STEP_GIB, SIZE_STEP_GIB, SMALLEST_GIB, THROUGHPUTS
from infra.rules.assembly import BUCKET, CLUSTER, FILE_SYSTEM, SECURITY_GROUP, Assembly, Resource, items
from infra.rules.nodes import gpu_groups, slot
from infra.rules.rule import Finding, Rule

LUSTRE_VERSION = "2.15"
LUSTRE_PORTS = ((988, 988), (1018, 1023))


def _lustre(file_system: Resource) -> dict[str, Any]:
    return dict(file_system.properties.get("LustreConfiguration") or {})


def version_can_be_mounted(assembly: Assembly) -> Iterator[Finding]:
    """2.15, which the client of Amazon Linux 2023 speaks."""
    for file_system in assembly.of(FILE_SYSTEM):
        version = file_system.properties.get("FileSystemTypeVersion")
        if version != LUSTRE_VERSION:
            yield Finding(
                resource=file_system,
                wrong=f"FileSystemTypeVersion is {version or 'not set, which means 2.10'}",
                why="the Lustre client of Amazon Linux 2023 cannot mount it; no pod would ever start",
                write=f'FileSystemTypeVersion: "{LUSTRE_VERSION}"',
            )


def size_can_be_ordered(assembly: Assembly) -> Iterator[Finding]:
    """1200, or a multiple of 2400."""
    for file_system in assembly.of(FILE_SYSTEM):
        size = file_system.properties.get("StorageCapacity")
        if not isinstance(size, int) or (size != SMALLEST_GIB and (size < SIZE_STEP_GIB or size % SIZE_STEP_GIB)):
            yield Finding(
                resource=file_system,
                wrong=f"StorageCapacity is {size}",
                why=f"FSx for Lustre on SSD is sold as {SMALLEST_GIB} GiB or multiples of {SIZE_STEP_GIB}",
                write="a whole number of those",
            )


def throughput_belongs_to_the_type(assembly: Assembly) -> Iterator[Finding]:
    """PERSISTENT_2 has one of four; SCRATCH_2 has none, and no metadata configuration."""
    for file_system in assembly.of(FILE_SYSTEM):
        lustre = _lustre(file_system)
        kind, speed = lustre.get("DeploymentType"), lustre.get("PerUnitStorageThroughput")
        wrong = None
        if kind == "PERSISTENT_2" and speed not in THROUGHPUTS:
            wrong = f"PERSISTENT_2 with PerUnitStorageThroughput {speed or 'not set'}"
        elif kind == "SCRATCH_2" and speed is not None:
            wrong = f"SCRATCH_2 with PerUnitStorageThroughput {speed}"
        elif kind == "SCRATCH_2" and "MetadataConfiguration" in lustre:
            wrong = "SCRATCH_2 with a MetadataConfiguration"
        elif kind not in ("PERSISTENT_2", "SCRATCH_2"):
            wrong = f"DeploymentType is {kind or 'not set, which means SCRATCH_1'}"
        if wrong:
            allowed = ", ".join(map(str, THROUGHPUTS))
            yield Finding(
                resource=file_system,
                wrong=wrong,
                why="FSx refuses the pair when the file system is made, late in the deployment",
                write=f"PERSISTENT_2 with one of {allowed}, or SCRATCH_2 with neither of the two",
            )


def efa_has_its_size(assembly: Assembly) -> Iterator[Finding]:
    """EFA only on PERSISTENT_2, with metadata configuration, in multiples that depend on the throughput."""
    for file_system in assembly.of(FILE_SYSTEM):
        lustre, size = _lustre(file_system), file_system.properties.get("StorageCapacity")
        if lustre.get("EfaEnabled") is not True:
            continue
        speed = lustre.get("PerUnitStorageThroughput")
        step = EFA_SIZE_STEP_GIB.get(speed) if isinstance(speed, int) else None
        wrong = None
        if lustre.get("DeploymentType") != "PERSISTENT_2":
            wrong = "EFA on a file system that is not PERSISTENT_2"
        elif step and isinstance(size, int) and size % step:
            wrong = f"EFA with {speed} MB/s per TiB and {size} GiB"
        elif "MetadataConfiguration" not in lustre:
            wrong = "EFA without a MetadataConfiguration"
        if wrong:
            sizes = ", ".join(f"{step} at {speed}" for speed, step in EFA_SIZE_STEP_GIB.items())
            yield Finding(
                resource=file_system,
                wrong=wrong,
                why="FSx refuses it when the file system is made; no other check knows",
                write=f"PERSISTENT_2, MetadataConfiguration, and multiples of {sizes} MB/s per TiB",
            )


def _security_groups(assembly: Assembly, file_system: Resource) -> list[Resource]:
    values = file_system.properties.get("SecurityGroupIds") or []
    targets = [assembly.target(file_system.stack, value) for value in values]
    return [target for target in targets if target and target.type == SECURITY_GROUP]


def _ingress(assembly: Assembly, group: Resource) -> Iterator[tuple[Resource, dict[str, Any]]]:
    """(the resource that says it, the rule) of everything that a group lets in."""
    for rule in items(group, "SecurityGroupIngress"):
        yield group, rule
    for resource in assembly.of("AWS::EC2::SecurityGroupIngress"):
        if assembly.target(resource.stack, resource.properties.get("GroupId")) == group:
            yield resource, resource.properties


def _covers(rule: dict[str, Any], low: int, high: int) -> bool:
    if str(rule.get("IpProtocol")) == "-1":
        return True
    start, end = rule.get("FromPort"), rule.get("ToPort")
    is_tcp = str(rule.get("IpProtocol")) in ("tcp", "6")
    return is_tcp and isinstance(start, int) and isinstance(end, int) and start <= low and high <= end


def _node_groups_of_security(assembly: Assembly) -> list[Resource]:
    """Groups by which nodes speak to the file system: on primary interfaces, and the cluster, for its own group."""
    found = assembly.of(CLUSTER)
    for group in gpu_groups(assembly):
        for interface in group.interfaces:
            if slot(interface) == (0, 0):
                targets = [assembly.target(group.where.stack, value) for value in interface.get("Groups") or []]
                found += [target for target in targets if target]
    return found


def lustre_ports_are_open(assembly: Assembly) -> Iterator[Finding]:
    """988 and 1018-1023, from the file system itself and from the nodes."""
    for file_system in assembly.of(FILE_SYSTEM):
        groups = _security_groups(assembly, file_system)
        rules = [(holder, rule) for group in groups for holder, rule in _ingress(assembly, group)]
        peers = [("itself", groups), ("the nodes", _node_groups_of_security(assembly))]
        for who, sources in peers:
            for low, high in LUSTRE_PORTS:
                open_to = [
                    assembly.target(holder.stack, rule.get("SourceSecurityGroupId"))
                    for holder, rule in rules
                    if _covers(rule, low, high)
                ]
                if not any(source in sources for source in open_to if source):
                    ports = str(low) if low == high else f"{low}-{high}"
                    yield Finding(
                        resource=file_system,
                        wrong=f"its security group does not let in TCP {ports} from {who}",
                        why="FSx refuses to make a file system without them, or mounts time out",
                        write="ingress of TCP 988 and 1018-1023 from the group itself and from the nodes' group",
                    )


def ports_open_before_the_file_system(assembly: Assembly) -> Iterator[Finding]:
    """Rules that are resources of their own are made first."""
    for file_system in assembly.of(FILE_SYSTEM):
        for group in _security_groups(assembly, file_system):
            for holder, rule in _ingress(assembly, group):
                late = holder != group and not assembly.before(holder, file_system)
                if late and any(_covers(rule, low, high) for low, high in LUSTRE_PORTS):
                    yield Finding(
                        resource=file_system,
                        wrong=f"it does not wait for the rule {holder.path} of its security group",
                        why="FSx looks at the rules at the moment of creation, and CloudFormation may be there first",
                        write=f"DependsOn: {holder.logical_id} (file_system.node.add_dependency)",
                    )


def storage_is_beside_the_gpus(assembly: Assembly) -> Iterator[Finding]:
    """The file system and the GPU nodes share one subnet, and so the zone."""
    for file_system in assembly.of(FILE_SYSTEM):
        own = (file_system.properties.get("SubnetIds") or [None])[0]
        for group in gpu_groups(assembly):
            subnets = group.group.properties.get("Subnets")
            first = subnets[0] if isinstance(subnets, list) and subnets else subnets
            if not assembly.same(file_system.stack, own, group.group.stack, first):
                yield Finding(
                    resource=file_system,
                    wrong=f"it is in another subnet than the GPU nodes of {group.group.path}",
                    why="traffic between zones is slower and is paid for by the gigabyte",
                    write="the subnet of aws.gpu_zone for both",
                )


def data_has_a_stated_fate(assembly: Assembly) -> Iterator[Finding]:
    """DeletionPolicy and UpdateReplacePolicy where checkpoints are."""
    for resource in assembly.of(FILE_SYSTEM, BUCKET):
        missing = [name for name in ("DeletionPolicy", "UpdateReplacePolicy") if name not in resource.body]
        if missing:
            yield Finding(
                resource=resource,
                wrong=f"it has no {' and no '.join(missing)}",
                why="CloudFormation then deletes the data with the stack, or with a replacement that no diff announces",
                write="RetainExceptOnCreate and Retain; or Delete with aws.allow_data_loss=true (apply_removal_policy)",
            )


def exports_never_delete(assembly: Assembly) -> Iterator[Finding]:
    """A pruned or lost file system does not empty the bucket."""
    for association in assembly.of("AWS::FSx::DataRepositoryAssociation"):
        policy = (association.properties.get("S3") or {}).get("AutoExportPolicy") or {}
        if "DELETED" in (policy.get("Events") or []):
            yield Finding(
                resource=association,
                wrong="it exports deletions to the bucket",
                why="a checkpoint that is pruned or lost on the file system would vanish from its only copy",
                write="AutoExportPolicy.Events: [NEW, CHANGED]",
            )


RULES = (
    Rule("HF025", "the file system has Lustre 2.15", version_can_be_mounted),
    Rule("HF026", "the size of the file system can be ordered", size_can_be_ordered),
    Rule("HF027", "throughput and metadata belong to the deployment type", throughput_belongs_to_the_type),
    Rule("HF028", "a file system with EFA has the size for it", efa_has_its_size),
    Rule("HF029", "Lustre's ports are open to the file system itself and to the nodes", lustre_ports_are_open),
    Rule("HF030", "Lustre's ports are open before the file system is made", ports_open_before_the_file_system),
    Rule("HF031", "the file system is in the subnet of the GPU nodes", storage_is_beside_the_gpus),
    Rule("HF032", "what holds checkpoints has a stated deletion policy", data_has_a_stated_fate),
    Rule("HF033", "deletions are never exported to the bucket", exports_never_delete),
)
