/* What a GPU, or a MIG device, says of itself: identity, modes, memory, power. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "stub.h"

nvmlReturn_t give_number(const struct call *call, const char *key, unsigned *value)
{
    long long number;
    if (value == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = fact_number(&call->gpu->table, key, &number);
    if (code == NVML_SUCCESS)
        *value = (unsigned)number;
    return code;
}

#define TWO_NUMBERS(branch, function, one_key, other_key)                                          \
    API(branch) nvmlReturn_t function(nvmlDevice_t device, unsigned *one, unsigned *other)         \
    {                                                                                              \
        ENTER(begin_gpu, device, GPU_ONLY);                                                        \
        nvmlReturn_t code = give_number(&call, one_key, one);                                      \
        return leave(&call, code != NVML_SUCCESS ? code : give_number(&call, other_key, other));   \
    }

#define TEXT(branch, function, key)                                                                  \
    API(branch) nvmlReturn_t function(nvmlDevice_t device, char *text, unsigned length)              \
    {                                                                                                \
        ENTER(begin_gpu, device, GPU_ONLY);                                                          \
        return leave(&call, give_text(fact_text(&call.gpu->table, key), text, length));              \
    }

/* A versioned structure with one number. */
#define VERSIONED(branch, function, key)                                                         \
    API(branch) nvmlReturn_t function(nvmlDevice_t device, versioned_unsigned_t *info)           \
    {                                                                                            \
        ENTER(begin_gpu, device, GPU_ONLY);                                                      \
        REQUIRE(info != NULL);                                                                   \
        if (info->version != STRUCT_VERSION(versioned_unsigned_t, 1u))                           \
            return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);                           \
        return leave(&call, give_number(&call, key, &info->value));                              \
    }

/* --- identity ---------------------------------------------------------------------------------------------------- */

NUMBER(450, nvmlDeviceGetMinorNumber, "minor")
NUMBER(450, nvmlDeviceGetBrand, "brand")
NUMBER(450, nvmlDeviceGetArchitecture, "architecture")
NUMBER(450, nvmlDeviceGetBoardId, "board-id")
NUMBER(450, nvmlDeviceGetMultiGpuBoard, "multi-gpu-board")
NUMBER(535, nvmlDeviceGetModuleId, "module-id")
NUMBER(495, nvmlDeviceGetBusType, "bus-type")
NUMBER(495, nvmlDeviceGetIrqNum, "irq")
TEXT(450, nvmlDeviceGetSerial, "serial")
TEXT(450, nvmlDeviceGetBoardPartNumber, "board-part")
TEXT(450, nvmlDeviceGetVbiosVersion, "vbios")
TEXT(450, nvmlDeviceGetInforomImageVersion, "inforom")

API(450) nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(index != NULL);
    *index = call.ci != NULL ? (unsigned)(call.ci - call.state->ci) : (unsigned)index_of_slot(call.slot);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    char of_instance[NAME_SIZE];
    ENTER(begin_gpu, device, ANY_DEVICE);
    if (call.ci == NULL)
        return leave(&call, give_text(fact_text(&call.gpu->table, "uuid"), uuid, length));
    mig_uuid(call.gpu, call.ci, of_instance);
    return leave(&call, give_text(of_instance, uuid, length));
}

/* A MIG device is called by its GPU and its compute instance profile: "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb". */
API(450) nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    char full[2 * NAME_SIZE];
    ENTER(begin_gpu, device, ANY_DEVICE);
    const char *gpu_name = fact_text(&call.gpu->table, "name");
    if (call.ci == NULL || gpu_name == NULL)
        return leave(&call, give_text(gpu_name, name, length));
    const struct compute_profile *profile = compute_profile_by_id(call.gpu, call.gi, call.ci->profile);
    snprintf(full, sizeof full, "%s %s", gpu_name, profile == NULL ? "MIG" : profile->name);
    return leave(&call, give_text(full, name, length));
}

API(450) nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(major != NULL && minor != NULL);
    const char *text = fact_text(&call.gpu->table, "compute-capability");
    if (text == NULL || sscanf(text, "%d.%d", major, minor) != 2)
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    return leave(&call, NVML_SUCCESS);
}

API(580) nvmlReturn_t nvmlDeviceGetPdi(nvmlDevice_t device, nvmlPdi_t *pdi)
{
    long long number;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(pdi != NULL);
    if (pdi->version != STRUCT_VERSION(nvmlPdi_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t code = fact_number(&call.gpu->table, "pdi", &number);
    if (code == NVML_SUCCESS)
        pdi->value = (unsigned long long)number;
    return leave(&call, code);
}

API(515) nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, give_text(fact_text(&call.gpu->table, "gsp-version"), version, 64));
}

TWO_NUMBERS(515, nvmlDeviceGetGspFirmwareMode, "gsp-enabled", "gsp-default")

/* --- modes ------------------------------------------------------------------------------------------------------- */

NUMBER(450, nvmlDeviceGetVirtualizationMode, "virtualization-mode")
NUMBER(450, nvmlDeviceGetHostVgpuMode, "host-vgpu-mode")
NUMBER(450, nvmlDeviceGetDisplayMode, "display-mode")
NUMBER(450, nvmlDeviceGetDisplayActive, "display-active")
VERSIONED(580, nvmlDeviceGetAddressingMode, "addressing-mode")
VERSIONED(545, nvmlDeviceGetC2cModeInfoV, "c2c-enabled")
VERSIONED(555, nvmlDeviceGetCapabilities, "capabilities")

API(450) nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(mode != NULL);
    *mode = call.state->persistence;
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(mode <= 1);
    REQUIRE_ROOT();
    call.state->persistence = mode;
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(mode != NULL);
    *mode = call.ci != NULL ? call.ci->compute_mode : call.state->compute_mode;
    return leave(&call, NVML_SUCCESS);
}

/* Modes: 0 default, 2 prohibited, 3 exclusive process; 1 is gone. A GPU in MIG mode has none, its MIG devices have. */
API(450) nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(mode <= 3);
    REQUIRE_ROOT();
    if (mode == 1 || (call.ci == NULL && mig_enabled(call.state)))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    *(call.ci != NULL ? &call.ci->compute_mode : &call.state->compute_mode) = mode;
    return leave(&call, NVML_SUCCESS);
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

struct memory {
    unsigned long long total, reserved, used;
};

static unsigned long long bytes_of_processes(const struct call *call)
{
    unsigned long long bytes = 0;
    for (int i = 0; i < call->gpu->processes_count; i++) {
        const struct process *process = &call->gpu->processes[i];
        if (call->ci == NULL || process->gpu_instance == gi_id(call->state, call->gi))
            bytes += process->bytes;
    }
    return bytes;
}

/* All instances of one GPU instance share its memory. */
static nvmlReturn_t read_memory(const struct call *call, struct memory *memory)
{
    memory->reserved = (unsigned long long)fact_or(&call->gpu->table, "memory-reserved", 0);
    if (call->ci != NULL) {
        const struct profile *profile = profile_of(call);
        memory->total = profile == NULL ? 0 : (unsigned long long)profile->memory_mib << 20;
        memory->reserved = 0;
    } else {
        long long total;
        nvmlReturn_t code = fact_number(&call->gpu->table, "memory-total", &total);
        if (code != NVML_SUCCESS)
            return code;
        memory->total = (unsigned long long)total;
    }
    memory->used = bytes_of_processes(call);
    return NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
    struct memory memory;
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(info != NULL);
    nvmlReturn_t code = read_memory(&call, &memory);
    if (code == NVML_SUCCESS) {
        info->total = memory.total;
        info->used = memory.used + memory.reserved;
        info->free = memory.total - info->used;
    }
    return leave(&call, code);
}

API(510) nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    struct memory memory;
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(info != NULL);
    if (info->version != STRUCT_VERSION(nvmlMemory_v2_t, 2u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t code = read_memory(&call, &memory);
    if (code == NVML_SUCCESS) {
        info->total = memory.total;
        info->reserved = memory.reserved;
        info->used = memory.used;
        info->free = memory.total - memory.used - memory.reserved;
    }
    return leave(&call, code);
}

API(450) nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
    long long total;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    nvmlReturn_t code = fact_number(&call.gpu->table, "bar1-total", &total);
    if (code == NVML_SUCCESS) {
        info->total = (unsigned long long)total;
        info->used = (unsigned long long)fact_or(&call.gpu->table, "bar1-used", 0);
        info->free = info->total - info->used;
    }
    return leave(&call, code);
}

NUMBER(510, nvmlDeviceGetMemoryBusWidth, "memory-bus-width")

/* --- load, power, temperature ------------------------------------------------------------------------------------- */

NUMBER(450, nvmlDeviceGetPowerUsage, "power-usage")
NUMBER(450, nvmlDeviceGetPowerManagementMode, "power-management")
NUMBER(450, nvmlDeviceGetPowerManagementLimit, "power-limit")
NUMBER(450, nvmlDeviceGetPowerManagementDefaultLimit, "power-default-limit")
NUMBER(450, nvmlDeviceGetEnforcedPowerLimit, "power-limit")
NUMBER(450, nvmlDeviceGetPerformanceState, "performance-state")
NUMBER(450, nvmlDeviceGetPowerState, "performance-state")
TWO_NUMBERS(450, nvmlDeviceGetPowerManagementLimitConstraints, "power-min-limit", "power-max-limit")

API(450) nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    long long number;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(millijoules != NULL);
    nvmlReturn_t code = fact_number(&call.gpu->table, "energy", &number);
    if (code == NVML_SUCCESS)
        *millijoules = (unsigned long long)number;
    return leave(&call, code);
}

API(450) nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *temperature)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(sensor == 0);
    return leave(&call, give_number(&call, "temperature", temperature));
}

API(570) nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *info)
{
    unsigned temperature;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    if (info->version != STRUCT_VERSION(nvmlTemperature_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t code = give_number(&call, "temperature", &temperature);
    if (code == NVML_SUCCESS)
        info->temperature = (int)temperature;
    return leave(&call, code);
}

static nvmlReturn_t clock_of(const struct call *call, unsigned type, const char *when, unsigned *clock)
{
    static const char *const names[] = {"graphics", "sm", "memory", "video"};
    char key[32];
    if (type >= sizeof names / sizeof *names)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "clock-%s%s", names[type], when);
    return give_number(call, key, clock);
}

API(450) nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *clock)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, clock_of(&call, type, "", clock));
}

API(450) nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *clock)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, clock_of(&call, type, "-max", clock));
}

/* Not answered in MIG mode, nor is the count of cores. */
API(450) nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(rates != NULL);
    if (mig_enabled(call.state))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    rates->gpu = (unsigned)fact_or(&call.gpu->table, "utilization-gpu", 0);
    rates->memory = (unsigned)fact_or(&call.gpu->table, "utilization-memory", 0);
    return leave(&call, NVML_SUCCESS);
}

API(510) nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *cores)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    if (mig_enabled(call.state))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    return leave(&call, give_number(&call, "cores", cores));
}

static nvmlReturn_t event_reasons(const struct call *call, unsigned long long *reasons)
{
    if (reasons == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *reasons = (unsigned long long)fact_or(&call->gpu->table, "clock-event-reasons", 0);
    return NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, event_reasons(&call, reasons));
}

API(535) nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, event_reasons(&call, reasons));
}
