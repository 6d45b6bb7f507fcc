"""Plain objects -> cdk8s charts. Both ways to a cluster, cdk8s and CDK, render the same charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdk8s import ApiObject, ApiObjectMetadata, Chart, JsonPatch
from constructs import Construct

from k8s.placement import Manifest


class ObjectsChart(Chart):
    """A chart of plain objects: stable id -> object.

    The chart has no namespace: cdk8s would write it into cluster-scoped objects too. Each object carries its own.
    """

    def __init__(self, scope: Construct, chart_id: str, objects: Mapping[str, Manifest]) -> None:
        super().__init__(scope, chart_id)
        for object_id, body in objects.items():
            item = ApiObject(
                self,
                object_id,
                api_version=body["apiVersion"],
                kind=body["kind"],
                metadata=ApiObjectMetadata(**body["metadata"]),
            )
            rest = [key for key in body if key not in ("apiVersion", "kind", "metadata")]
            item.add_json_patch(*(JsonPatch.add(f"/{key}", body[key]) for key in rest))


def rendered(charts: Iterable[Chart]) -> dict[str, Manifest]:
    """Stable id -> object as cdk8s renders it, over all charts in their order."""
    return {item.node.id: item.to_json() for chart in charts for item in chart.api_objects}
