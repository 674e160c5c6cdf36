"""Which of the driver's files belong to which driver capability.

The groups are those of NVIDIA's container tools, by the names of NVIDIA_DRIVER_CAPABILITIES: libnvidia-container
(nvc_info.c) for libraries and programs, nvidia-container-toolkit (pkg/nvcdi, internal/discover) for what came later and
for configuration files. A library that is needed by another one of the driver comes along with it in any case.
"""

from collections.abc import Collection

COMPUTE, UTILITY, GRAPHICS, VIDEO, DISPLAY, NGX, COMPAT32 = (
    "compute",
    "utility",
    "graphics",
    "video",
    "display",
    "ngx",
    "compat32",
)

LEADING = {
    COMPUTE: "libcuda",
    UTILITY: "libnvidia-ml",
    GRAPHICS: "libGLX_nvidia",
    VIDEO: "libnvcuvid",
}
"""The library without which a capability is none. The others are not there on every machine and with every driver."""

_LIBRARIES = {
    # The driver of CUDA, its debugger, OpenCL, and the compilers that these load when they need them.
    "libcuda": {COMPUTE},
    "libcudadebugger": {COMPUTE},
    "libnvidia-opencl": {COMPUTE},
    "libnvidia-compiler": {COMPUTE},
    "libnvidia-fatbinaryloader": {COMPUTE},
    "libnvidia-ptxjitcompiler": {COMPUTE},
    "libnvidia-nvvm": {COMPUTE},
    "libnvidia-nvvm70": {COMPUTE},
    "libnvidia-tileiras": {COMPUTE},
    # Confidential computing.
    "libnvidia-pkcs11": {COMPUTE},
    "libnvidia-pkcs11-openssl3": {COMPUTE},
    # Shader compilers and buffers serve graphics as well.
    "libnvidia-gpucomp": {COMPUTE, GRAPHICS},
    "libnvidia-allocator": {COMPUTE, GRAPHICS},
    "libnvidia-ml": {UTILITY},
    "libnvidia-cfg": {UTILITY},
    "libnvidia-nscq": {UTILITY},
    "libnvidia-sandboxutils": {UTILITY},
    "libvdpau_nvidia": {VIDEO},
    "libnvidia-encode": {VIDEO},
    "libnvidia-opticalflow": {VIDEO},
    "libnvcuvid": {VIDEO},
    "libnvidia-eglcore": {GRAPHICS},
    "libnvidia-glcore": {GRAPHICS},
    "libnvidia-tls": {GRAPHICS},
    "libnvidia-glsi": {GRAPHICS},
    "libnvidia-fbc": {GRAPHICS},
    "libnvidia-ifr": {GRAPHICS},
    "libnvidia-rtcore": {GRAPHICS},
    "libnvoptix": {GRAPHICS},
    "libGLX_nvidia": {GRAPHICS},
    "libEGL_nvidia": {GRAPHICS},
    "libGLESv2_nvidia": {GRAPHICS},
    "libGLESv1_CM_nvidia": {GRAPHICS},
    "libnvidia-glvkspirv": {GRAPHICS},
    "libnvidia-cbl": {GRAPHICS},
    "libnvidia-vksc-core": {GRAPHICS},
    "libnvidia-vulkan-producer": {GRAPHICS},
    "libnvidia-egl-gbm": {GRAPHICS},
    "libnvidia-egl-wayland": {GRAPHICS},
    "libnvidia-egl-wayland2": {GRAPHICS},
    "libnvidia-egl-xcb": {GRAPHICS},
    "libnvidia-egl-xlib": {GRAPHICS},
    "libnvidia-ngx": {NGX},
    # Of the X server and of the settings program.
    "libglxserver_nvidia": {DISPLAY},
    "libnvidia-wayland-client": {DISPLAY},
    "libnvidia-wfb": {DISPLAY},
    "libnvidia-gtk2": set(),
    "libnvidia-gtk3": set(),
}

OWN_VERSION = (
    "libnvidia-egl-gbm",
    "libnvidia-egl-wayland",
    "libnvidia-egl-wayland2",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
)
"""Libraries that come with a driver, and whose files are named by a version of their own."""

_PROGRAMS = {
    "nvidia-smi": UTILITY,
    "nvidia-debugdump": UTILITY,
    "nvidia-persistenced": UTILITY,
    "nvidia-cuda-mps-control": COMPUTE,
    "nvidia-cuda-mps-server": COMPUTE,
    "nvidia-imex": COMPUTE,
    "nvidia-imex-ctl": COMPUTE,
    "nvidia-xconfig": DISPLAY,
}

_CONFIGURATION = {
    "/etc/OpenCL/vendors/nvidia.icd": {COMPUTE},
    "/etc/vulkan/icd.d/nvidia_icd.json": {GRAPHICS},
    "/etc/vulkan/icd.d/nvidia_icd.x86_64.json": {GRAPHICS},
    "/etc/vulkan/icd.d/nvidia_icd.aarch64.json": {GRAPHICS},
    "/etc/vulkan/icd.d/nvidia_layers.json": {GRAPHICS},
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json": {GRAPHICS},
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": {GRAPHICS},
    "/usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json": {GRAPHICS},
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json": {GRAPHICS},
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": {GRAPHICS},
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json": {GRAPHICS},
    "/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json": {GRAPHICS},
    "/usr/share/nvidia/nvoptix.bin": {GRAPHICS},
    "/usr/share/X11/xorg.conf.d/10-nvidia.conf": {DISPLAY},
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf": {DISPLAY},
}


def wants_library(stem: str, capabilities: Collection[str]) -> bool:
    """Return whether a library belongs to these capabilities.

    stem   its name up to `.so`

    One that is not known yet came with a newer driver, whose other libraries may load it: it belongs to all.
    """
    groups = _LIBRARIES.get(stem)
    return groups is None or any(group in capabilities for group in groups)


def programs(capabilities: Collection[str]) -> tuple[str, ...]:
    """Return the names of the programs that belong to these capabilities."""
    return tuple(name for name, group in _PROGRAMS.items() if group in capabilities)


def configuration(capabilities: Collection[str]) -> tuple[str, ...]:
    """Return the configuration files of these capabilities, by where loaders look for them in a container."""
    return tuple(
        path for path, groups in _CONFIGURATION.items() if any(one in capabilities for one in groups)
    )
