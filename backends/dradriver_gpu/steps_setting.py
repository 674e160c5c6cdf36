"""What is set on a GPU for claims, and put back behind the last one that needed it so."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dradriver.backend import HostStep, Work
from dradriver.backend.settings import holder

if TYPE_CHECKING:
    from dradriver_gpu.backend import GpuBackend


@dataclass(frozen=True)
class SettingStep(HostStep["GpuBackend"]):
    """A setting of a GPU for as long as device `index` of a claim is in use."""

    gpu: str
    claim: str
    index: int

    @property
    @abstractmethod
    def _setting(self) -> str:
        """The setting's name among those of the backend."""

    @property
    def _holder(self) -> str:
        return holder(self.claim, self.index)

    def revert(self, backend: "GpuBackend", work: Work) -> None:
        """Put it back, where this was the last one that needed it so.

        None outlives a reboot (MIG mode does on Ampere, where it is not switched for claims): what is set after one,
        somebody else wanted so.
        """
        if work.rebooted:
            backend.settings.leave(self._setting, self._holder, lambda _: True)
        else:
            self._put_back(backend, work)

    @abstractmethod
    def _put_back(self, backend: "GpuBackend", work: Work) -> None:
        """Leave the setting."""
