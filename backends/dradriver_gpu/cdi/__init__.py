"""What containers get of the NVIDIA driver and of its GPUs, as CDI edits.

`ContainerEditor` is all that the rest of the backend needs: `base` for `Backend.base_edits`, `gpu` and `instance` for
single devices, `check` before a claim is answered.
"""

from dradriver_gpu.cdi.editor import ContainerEditor
from dradriver_gpu.cdi.nodes import MissingNodeError

__all__ = ["ContainerEditor", "MissingNodeError"]
