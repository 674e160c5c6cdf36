"""MPS control daemons: one for each claim, or for each GPU that is shared out, with directories of its own.

Such a daemon must outlive ours, since its end ends the GPU contexts of all its clients; one that ended by itself is
started again, for the clients that come then. Who starts it and keeps it is the option mpsLauncher: a transient unit of
the host's systemd, outside of clusters; the keeper, a program in a pod of its own (`python -m dradriver_gpu.mps`); or
nobody, and it is a process that ends with dradriver's unit or container.

Facts: the manual page of nvidia-cuda-mps-control. Clients and daemon meet in the pipe directory and share memory in
/dev/shm, so that containers get both.
"""

from dradriver_gpu.mps.daemons import ControlDaemons, Limits, Mps
from dradriver_gpu.mps.kept import KeptMps
from dradriver_gpu.mps.process import Process
from dradriver_gpu.mps.systemd import Systemd
from dradriver_gpu.mps.watch import MpsWatch

__all__ = ["ControlDaemons", "KeptMps", "Limits", "Mps", "MpsWatch", "Process", "Systemd"]
