/* Who uses a GPU or a MIG device: what the facts say. */
#include <stddef.h>

#include "stub.h"

static unsigned id_or_none(unsigned id, bool mig)
{
    return mig ? id : NO_INSTANCE;
}

/* Whether a process is of that kind ('*' all) and on what the call is about. */
static bool concerns(const struct call *call, const struct process *process, char kind)
{
    if (kind != '*' && process->kind != kind)
        return false;
    if (call->ci == NULL)
        return true;
    return process->gpu_instance == gi_id(call->state, call->gi) && process->compute_instance == call->ci->id;
}

static unsigned count_of(const struct call *call, char kind)
{
    unsigned count = 0;
    for (int i = 0; i < call->gpu->processes_count; i++)
        count += concerns(call, &call->gpu->processes[i], kind);
    return count;
}

static nvmlReturn_t list(const struct call *call, char kind, unsigned *count, nvmlProcessInfo_t *infos)
{
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned there = count_of(call, kind), room = *count, filled = 0;
    *count = there;
    if (there == 0)
        return NVML_SUCCESS;
    if (infos == NULL || room < there)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (int i = 0; i < call->gpu->processes_count; i++) {
        const struct process *process = &call->gpu->processes[i];
        if (!concerns(call, process, kind))
            continue;
        bool mig = mig_enabled(call->state);
        infos[filled++] = (nvmlProcessInfo_t){
            .pid = process->pid,
            .usedGpuMemory = process->bytes,
            .gpuInstanceId = id_or_none(process->gpu_instance, mig),
            .computeInstanceId = id_or_none(process->compute_instance, mig),
        };
    }
    return NVML_SUCCESS;
}

#define PROCESSES(branch, function, kind)                                                                \
    API(branch) nvmlReturn_t function(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)    \
    {                                                                                                    \
        ENTER(begin_gpu, device, ANY_DEVICE);                                                            \
        return leave(&call, list(&call, kind, count, infos));                                            \
    }

PROCESSES(455, nvmlDeviceGetComputeRunningProcesses_v2, 'c')
PROCESSES(510, nvmlDeviceGetComputeRunningProcesses_v3, 'c')
PROCESSES(455, nvmlDeviceGetGraphicsRunningProcesses_v2, 'g')
PROCESSES(510, nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')
PROCESSES(470, nvmlDeviceGetMPSComputeRunningProcesses_v2, 'm')
PROCESSES(510, nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')

/* The first form knows no instances; the binding does not call it, programs of an old driver's time do. */
API(450) nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                           nvmlProcessInfo_v1_t *infos)
{
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(count != NULL);
    unsigned there = count_of(&call, 'c'), room = *count, filled = 0;
    *count = there;
    if (there > 0 && (infos == NULL || room < there))
        return leave(&call, NVML_ERROR_INSUFFICIENT_SIZE);
    for (int i = 0; i < call.gpu->processes_count; i++)
        if (concerns(&call, &call.gpu->processes[i], 'c'))
            infos[filled++] = (nvmlProcessInfo_v1_t){call.gpu->processes[i].pid, call.gpu->processes[i].bytes};
    return leave(&call, NVML_SUCCESS);
}

API(535) nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *details)
{
    static const char kinds[] = {'c', 'g', 'm', '*'};
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(details != NULL);
    if (details->version != STRUCT_VERSION(nvmlProcessDetailList_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(details->mode < sizeof kinds);
    char kind = kinds[details->mode];
    unsigned there = count_of(&call, kind), room = details->numProcArrayEntries, filled = 0;
    details->numProcArrayEntries = there;
    if (there > 0 && (details->procArray == NULL || room < there))
        return leave(&call, NVML_ERROR_INSUFFICIENT_SIZE);
    for (int i = 0; i < call.gpu->processes_count; i++) {
        const struct process *process = &call.gpu->processes[i];
        if (!concerns(&call, process, kind))
            continue;
        bool mig = mig_enabled(call.state);
        details->procArray[filled++] = (nvmlProcessDetail_v1_t){
            .pid = process->pid,
            .usedGpuMemory = process->bytes,
            .gpuInstanceId = id_or_none(process->gpu_instance, mig),
            .computeInstanceId = id_or_none(process->compute_instance, mig),
            .usedGpuCcProtectedMemory = 0,
        };
    }
    return leave(&call, NVML_SUCCESS);
}

bool instance_has_processes(const struct gpu *gpu, unsigned gpu_instance, unsigned compute_instance)
{
    for (int i = 0; i < gpu->processes_count; i++) {
        const struct process *process = &gpu->processes[i];
        if (process->gpu_instance == gpu_instance &&
            (compute_instance == NO_INSTANCE || process->compute_instance == compute_instance))
            return true;
    }
    return false;
}
