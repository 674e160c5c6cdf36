/* Where a GPU is: PCI, NUMA, NVLink, fabric, and how far GPUs are from each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

/* --- PCI --------------------------------------------------------------------------------------------------------- */

/* DOMAIN:BUS:DEVICE.FUNCTION with a domain of up to eight digits, or without one. */
bool parse_pci_address(const char *text, struct pci_address *address)
{
    int end = -1;
    sscanf(text, "%x:%x:%x.%*x%n", &address->domain, &address->bus, &address->device, &end);
    if (end > 0 && text[end] == '\0')
        return true;
    address->domain = 0;
    end = -1;
    sscanf(text, "%x:%x.%*x%n", &address->bus, &address->device, &end);
    return end > 0 && text[end] == '\0';
}

nvmlReturn_t give_pci_info(const struct table *table, nvmlPciInfo_t *info)
{
    struct pci_address address;
    const char *text = fact_text(table, "bus-id");
    if (text == NULL || !parse_pci_address(text, &address))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->domain = address.domain;
    info->bus = address.bus;
    info->device = address.device;
    info->pciDeviceId = (unsigned)fact_or(table, "pci-device", 0);
    info->pciSubSystemId = (unsigned)fact_or(table, "pci-subsystem", 0);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", address.domain & 0xFFFF,
             address.bus & 0xFF, address.device & 0xFF);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", address.domain, address.bus, address.device);
    return NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    return leave(&call, give_pci_info(&call.gpu->table, info));
}

API(550) nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *extended)
{
    nvmlPciInfo_t info;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(extended != NULL);
    if (extended->version != STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t code = give_pci_info(&call.gpu->table, &info);
    if (code == NVML_SUCCESS) {
        extended->domain = info.domain;
        extended->bus = info.bus;
        extended->device = info.device;
        extended->pciDeviceId = info.pciDeviceId;
        extended->pciSubSystemId = info.pciSubSystemId;
        extended->baseClass = 3;
        extended->subClass = 2;
        memcpy(extended->busId, info.busId, sizeof extended->busId);
    }
    return leave(&call, code);
}

NUMBER(450, nvmlDeviceGetMaxPcieLinkGeneration, "pcie-max-generation")
NUMBER(525, nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie-max-generation")
NUMBER(450, nvmlDeviceGetCurrPcieLinkGeneration, "pcie-generation")
NUMBER(450, nvmlDeviceGetMaxPcieLinkWidth, "pcie-max-width")
NUMBER(450, nvmlDeviceGetCurrPcieLinkWidth, "pcie-width")
NUMBER(450, nvmlDeviceGetPcieReplayCounter, "pcie-replays")
NUMBER(515, nvmlDeviceGetPcieSpeed, "pcie-speed")
NUMBER(510, nvmlDeviceGetPcieLinkMaxSpeed, "pcie-max-speed")

/* --- NUMA -------------------------------------------------------------------------------------------------------- */

/* The NUMA node that the GPU's own memory is, on Grace; not the one that the GPU stands next to. */
API(550) nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, int *node)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, give_number(&call, "memory-numa-node", (unsigned *)node));
}

/* Sets the bits of a list like `0-55,112-167`. */
static void set_bits(const char *list, unsigned long *words, unsigned count)
{
    const unsigned width = 8 * sizeof *words;
    for (const char *rest = list; *rest != '\0';) {
        char *end;
        unsigned long first = strtoul(rest, &end, 10), last = first;
        if (end == rest)
            return;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long bit = first; bit <= last && bit / width < count; bit++)
            words[bit / width] |= 1UL << bit % width;
        rest = *end == ',' ? end + 1 : end;
    }
}

static nvmlReturn_t give_bits(const struct call *call, const char *key, unsigned count, unsigned long *words)
{
    const char *list = fact_text(&call->gpu->table, key);
    if (words == NULL || count == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (list == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(words, 0, count * sizeof *words);
    set_bits(list, words, count);
    return NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned count, unsigned long *words)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, give_bits(&call, "cpus", count, words));
}

API(450) nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned count, unsigned long *words,
                                                          unsigned scope)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(scope <= 1);
    return leave(&call, give_bits(&call, "cpus", count, words));
}

API(450) nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned count, unsigned long *words,
                                                  unsigned scope)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(scope <= 1);
    return leave(&call, give_bits(&call, "numa-node", count, words));
}

/* --- between GPUs ------------------------------------------------------------------------------------------------ */

/* Begins a call about two GPUs; the second one's facts are left in `other`. */
static nvmlReturn_t begin_pair(struct call *call, const char *function, nvmlDevice_t one, nvmlDevice_t two,
                               const struct gpu **other)
{
    *other = NULL;
    nvmlReturn_t code = begin_gpu(call, function, one, GPU_ONLY);
    if (code != NVML_SUCCESS)
        return code;
    for (int index = 0; index < gpus_in_session(); index++)
        if (gpu_handle(slot_of_index((unsigned)index)) == two)
            *other = gpu_of_slot(call->facts, slot_of_index((unsigned)index));
    return *other == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

static bool same_text(const struct gpu *one, const struct gpu *other, const char *key)
{
    const char *text = fact_text(&one->table, key), *other_text = fact_text(&other->table, key);
    return text != NULL && other_text != NULL && strcmp(text, other_text) == 0;
}

/* How many leading parts of `pci0000:15/0000:15:01.0/...`, root first, two paths share; the rest of `path` after it. */
static int shared_parts(const char *path, const char *other, int *rest)
{
    int shared = 0;
    while (*path != '\0') {
        size_t length = strcspn(path, "/"), other_length = strcspn(other, "/");
        if (length != other_length || strncmp(path, other, length) != 0)
            break;
        shared++;
        path += length + (path[length] == '/');
        other += length + (other[length] == '/');
    }
    *rest = 0;
    for (; *path != '\0'; (*rest)++)
        path += strcspn(path, "/") + (path[strcspn(path, "/")] == '/');
    return shared;
}

enum { SINGLE = 10, MULTIPLE = 20, HOST_BRIDGE = 30, NODE = 40, SYSTEM = 50 };

API(450) nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, unsigned *level)
{
    const struct gpu *other;
    ENTER(begin_pair, one, two, &other);
    REQUIRE(level != NULL && other != call.gpu);
    const char *path = fact_text(&call.gpu->table, "pci-path"), *other_path = fact_text(&other->table, "pci-path");
    if (path == NULL || other_path == NULL)
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    int rest, shared = shared_parts(path, other_path, &rest);
    if (shared >= 2)
        *level = rest <= 2 ? SINGLE : MULTIPLE;
    else if (shared == 1)
        *level = HOST_BRIDGE;
    else
        *level = same_text(call.gpu, other, "numa-node") ? NODE : SYSTEM;
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t two, int *same)
{
    const struct gpu *other;
    ENTER(begin_pair, one, two, &other);
    REQUIRE(same != NULL);
    *same = same_text(call.gpu, other, "board-id");
    return leave(&call, NVML_SUCCESS);
}

/* 0 peer access works, 5 it does not; index 2 asks for NVLink. */
API(450) nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t two, unsigned index, unsigned *status)
{
    const struct gpu *other;
    ENTER(begin_pair, one, two, &other);
    REQUIRE(status != NULL && index <= 4);
    bool linked = call.gpu->nvlinks_count > 0 && other->nvlinks_count > 0;
    *status = mig_enabled(call.state) || (index == 2 && !linked) ? 5 : 0;
    return leave(&call, NVML_SUCCESS);
}

/* --- NVLink and fabric ------------------------------------------------------------------------------------------- */

static const struct nvlink *link_of(const struct call *call, unsigned number)
{
    for (int i = 0; i < call->gpu->nvlinks_count; i++)
        if (call->gpu->nvlinks[i].number == number)
            return &call->gpu->nvlinks[i];
    return NULL;
}

#define MAX_NVLINKS 36

#define NVLINK(branch, function, member)                                                                \
    API(branch) nvmlReturn_t function(nvmlDevice_t device, unsigned number, unsigned *value)            \
    {                                                                                                   \
        ENTER(begin_gpu, device, GPU_ONLY);                                                             \
        REQUIRE(value != NULL && number < MAX_NVLINKS);                                                 \
        const struct nvlink *link = link_of(&call, number);                                             \
        if (link == NULL)                                                                               \
            return leave(&call, NVML_ERROR_NOT_SUPPORTED);                                              \
        *value = link->member;                                                                          \
        return leave(&call, NVML_SUCCESS);                                                              \
    }

NVLINK(450, nvmlDeviceGetNvLinkState, active)
NVLINK(450, nvmlDeviceGetNvLinkVersion, version)
NVLINK(470, nvmlDeviceGetNvLinkRemoteDeviceType, remote_type)

API(450) nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned number, unsigned capability,
                                                    unsigned *result)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(result != NULL && number < MAX_NVLINKS && capability <= 5);
    if (link_of(&call, number) == NULL)
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    *result = capability != 4;      /* everything but an SLI bridge */
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned number, nvmlPciInfo_t *info)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL && number < MAX_NVLINKS);
    const struct nvlink *link = link_of(&call, number);
    if (link == NULL)
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    struct fact remote = {.key = "bus-id", .text = link->remote};
    struct table table = {.facts = &remote, .count = 1};
    return leave(&call, give_pci_info(&table, info));
}

static bool hex_bytes(const char *text, unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++, text += 2) {
        while (*text == '-')
            text++;
        if (sscanf(text, "%2hhx", &bytes[i]) != 1)
            return false;
    }
    return true;
}

/* States: 0 not supported, 1 not started, 2 in progress, 3 completed. */
static nvmlReturn_t read_fabric(const struct call *call, nvmlGpuFabricInfo_v3_t *fabric)
{
    const struct table *table = &call->gpu->table;
    const char *cluster = fact_text(table, "fabric-cluster");
    long long state;
    memset(fabric, 0, sizeof *fabric);
    nvmlReturn_t code = fact_number(table, "fabric-state", &state);
    if (code != NVML_SUCCESS)
        return code;
    if (cluster != NULL && !hex_bytes(cluster, fabric->clusterUuid, sizeof fabric->clusterUuid))
        return NVML_ERROR_UNKNOWN;
    fabric->state = (unsigned)state;
    fabric->status = (unsigned)fact_or(table, "fabric-status", 0);
    fabric->cliqueId = (unsigned)fact_or(table, "fabric-clique", 0);
    fabric->healthMask = (unsigned)fact_or(table, "fabric-health", 0);
    fabric->healthSummary = (unsigned char)fact_or(table, "fabric-health-summary", 0);
    return NVML_SUCCESS;
}

API(525) nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    nvmlGpuFabricInfo_v3_t fabric;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    nvmlReturn_t code = read_fabric(&call, &fabric);
    if (code == NVML_SUCCESS) {
        memcpy(info->clusterUuid, fabric.clusterUuid, sizeof info->clusterUuid);
        info->status = fabric.status;
        info->cliqueId = fabric.cliqueId;
        info->state = fabric.state;
    }
    return leave(&call, code);
}

API(550) nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void *info)
{
    nvmlGpuFabricInfo_v3_t fabric;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    unsigned version = *(unsigned *)info;
    bool newest = version == STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3u);
    if (!newest && version != STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t code = read_fabric(&call, &fabric);
    if (code == NVML_SUCCESS) {
        fabric.version = version;
        memcpy(info, &fabric, newest ? sizeof(nvmlGpuFabricInfo_v3_t) : sizeof(nvmlGpuFabricInfo_v2_t));
    }
    return leave(&call, code);
}

/* Which tray of which rack. */
API(570) nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    const struct table *table = &call.gpu->table;
    const char *chassis = fact_text(table, "chassis-serial");
    if (info->version != STRUCT_VERSION(nvmlPlatformInfo_t, 2u) &&
        info->version != STRUCT_VERSION(nvmlPlatformInfo_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (chassis == NULL)
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    memset(info->ibGuid, 0, sizeof info->ibGuid);
    memset(info->chassisSerialNumber, 0, sizeof info->chassisSerialNumber);
    memcpy(info->chassisSerialNumber, chassis, strnlen(chassis, sizeof info->chassisSerialNumber));
    info->slotNumber = (unsigned char)fact_or(table, "chassis-slot", 0);
    info->trayIndex = (unsigned char)fact_or(table, "tray", 0);
    info->hostId = (unsigned char)fact_or(table, "host-id", 0);
    info->peerType = (unsigned char)fact_or(table, "peer-type", 0);
    info->moduleId = (unsigned char)fact_or(table, "module-id", 0);
    return leave(&call, NVML_SUCCESS);
}
