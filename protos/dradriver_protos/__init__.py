"""What the kubelet, a container runtime and a DRA driver tell each other, generated from the .proto files beside it.

`registration` is the registration of a plugin; `dra_v1` and `dra_v1beta1` are Prepare and Unprepare;
`health_v1` and `health_v1alpha1` are the health stream. Each has a module of messages (`dra_v1_pb2`, with its
types in the .pyi) and one of the service's stub and servicer (`dra_v1_pb2_grpc`). `nri` are the messages of the
container runtime's NRI, and `ttrpc` those that carry its calls. `hack/generate` makes them anew. Package, names and
numbers are those of the kubelet, NRI and ttrpc; the paths of the .proto files are ours, so that they can be loaded
next to another copy of those files.

The constants are what a driver says of itself at registration. They are labels only: the path of a call comes
from the proto package, such as `/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources`.
"""

from typing import Final

PLUGIN_TYPE: Final = "DRAPlugin"
"""PluginInfo.type of a DRA driver."""

DRA_V1: Final = "v1.DRAPlugin"
DRA_V1BETA1: Final = "v1beta1.DRAPlugin"
HEALTH_V1: Final = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"

SUPPORTED_VERSIONS: Final = (DRA_V1, DRA_V1BETA1, HEALTH_V1, HEALTH_V1ALPHA1)
"""PluginInfo.supported_versions, in the order in which the kubelet shall choose."""
