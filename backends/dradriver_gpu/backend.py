"""The backend `gpu`."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dradriver.backend import Backend, ContainerEdits, Plan, PlannedDevice, Request
from dradriver.backend.settings import Settings
from dradriver.backend.together import run_together
from dradriver.backend.vfio import Vfio
from dradriver.host import Host, UeventsUnavailableError
from dradriver.model import ClaimRef, Peer, PoolContent
from dradriver_gpu.cdi import ContainerEditor
from dradriver_gpu.config import GpuConfig
from dradriver_gpu.devices import content_of
from dradriver_gpu.events import EventWatch
from dradriver_gpu.examine import Examiner
from dradriver_gpu.health import HealthBook
from dradriver_gpu.hotplug import BusWatch
from dradriver_gpu.inventory import GPUInventory
from dradriver_gpu.library import module_number
from dradriver_gpu.mps import ControlDaemons, KeptMps, Mps, MpsWatch, Process, Systemd
from dradriver_gpu.nvml import NVML
from dradriver_gpu.options import GpuOptions
from dradriver_gpu.owned import Owned
from dradriver_gpu.plan import plan_gpus
from dradriver_gpu.probe import Prober
from dradriver_gpu.render import render_gpus, strayed
from dradriver_gpu.steps_mig import CreatePartition, SwitchMigMode, UsePartition
from dradriver_gpu.steps_sharing import RunMps, SetComputeMode, SetTimeSlice
from dradriver_gpu.steps_vfio import BindVfio
from dradriver_gpu.tools import Tools

log = logging.getLogger(__name__)


class GpuBackend(Backend[GPUInventory, GpuOptions]):
    """NVIDIA GPUs of this host.

    nvml       the driver's library
    tools      the driver's programs
    health     what is wrong with the GPUs
    owned      which GPU instances claims of ours made; their steps say so
    settings   how GPUs were before claims changed what is set of them
    mps        the MPS control daemons, by who keeps them
    vfio       the PCI bus
    editor     what containers get
    """

    kind = "gpu"
    serves = "GPUs"
    options_type = GpuOptions
    config_types = (GpuConfig,)
    step_types = (
        CreatePartition,
        UsePartition,
        SwitchMigMode,
        SetTimeSlice,
        SetComputeMode,
        RunMps,
        BindVfio,
    )

    def __init__(self, host: Host, options: GpuOptions) -> None:
        super().__init__(host, options)
        self.nvml = NVML(host, options.driver_root, close_when_idle=options.close_when_idle)
        self.tools = Tools(host, options.driver_root)
        self.health = HealthBook(options.ignored_xids)
        self.owned = Owned(host, options.run_directory)
        self.settings = Settings(host, options.run_directory)
        launchers = {"systemd": Systemd(host), "process": Process(host, options.run_directory)}
        self._kept = KeptMps(host, options.run_directory)
        self.mps: dict[str, ControlDaemons] = {"pod": self._kept} | {
            name: Mps(host, options.run_directory, options.driver_root, self.tools, launcher)
            for name, launcher in launchers.items()
        }
        self.mps_watch = MpsWatch()
        self.vfio = Vfio(host)
        self.editor = ContainerEditor(host, options.driver_root, options.driver_capabilities)
        self._prober = Prober(host, self.nvml, options.driver_root, self.owned)
        self._examiner = Examiner(self._read, self.health)
        self._filter = options.filter()

    def probe(self) -> GPUInventory:
        """Read the driver and the GPUs. Raises UnavailableError where the driver was there and is not now."""
        return self._examiner.probe()

    def _read(self) -> GPUInventory:
        self.health.see_module(module_number(self.host))
        inventory = replace(self._prober.probe(), mps_ends=self.mps_watch.ends)
        trouble = self._kept.trouble() if self.options.mps_launcher == "pod" else ""
        return replace(inventory, notes=(*inventory.notes, trouble)) if trouble else inventory

    def devices(self, inventory: GPUInventory) -> PoolContent:
        """Offer them as the options say, as far as they can."""
        return content_of(inventory, self.options, self._filter)

    def base_edits(self, inventory: GPUInventory) -> ContainerEdits:
        """Give every container with a GPU the driver's files."""
        return self.editor.base(inventory.driver)

    def behind(self, inventory: GPUInventory) -> object:
        """Compare by which numbers containers get the GPUs, what stands of MIG, and whether more daemons have ended."""
        numbers = [
            (
                gpu.address,
                gpu.uuid,
                gpu.minor,
                tuple((one.id, tuple(compute.id for compute in one.compute)) for one in gpu.instances),
            )
            for gpu in inventory.gpus
        ]
        return numbers, inventory.mps_ends

    def strayed(self, device: str, edits: ContainerEdits, inventory: GPUInventory) -> str:
        """Compare the minor numbers of a claim's GPU with those of the others."""
        return strayed(device, edits, inventory)

    def plan(
        self,
        request: Request,
        inventory: GPUInventory,
        held: Mapping[str, ClaimRef],
        peers: tuple[Peer, ...],
    ) -> Plan:
        """Create partitions, set how GPUs are shared, and bind those that are passed through."""
        self.owned.settle()  # claims are planned once those that were there have been recovered
        return plan_gpus(request, inventory, held, self.options)

    def render(
        self,
        request: Request,
        plan: Plan,
        facts: tuple[Mapping[str, Any], ...],
        inventory: GPUInventory,
    ) -> tuple[PlannedDevice, ...]:
        """Give the containers their device nodes; a partition has them only since it was created."""
        return render_gpus(self, request, plan, facts, inventory)

    def watch(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        """Watch the bus, the driver's events, and what steps make."""
        self._examiner.changed = changed
        self._prober.changed = changed
        run_together(
            stop,
            lambda over: self._watch_bus(over, changed),
            lambda over: self._watch_events(over, changed),
            lambda over: self.owned.watch(over, changed),
            lambda over: self.mps_watch.run(over, changed),
        )

    def _watch_events(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        if self.options.close_when_idle:
            log.info("GPU events are not heard, since NVML is closed when idle (option closeWhenIdle)")
            return
        EventWatch(self.nvml, self.health).run(stop, changed)

    def _watch_bus(self, stop: threading.Event, changed: Callable[[str], None]) -> None:
        try:
            BusWatch(self.host, changed).run(stop)
        except UeventsUnavailableError as error:
            log.warning("GPUs that come and go are seen by probing only: %s", error)

    def close(self) -> None:
        """Shut NVML down."""
        self.nvml.close()
