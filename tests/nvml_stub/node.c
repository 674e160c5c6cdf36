/* Init and shutdown, versions, error texts, and finding GPUs. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "session.h"

/* --- init and shutdown ------------------------------------------------------------------------------------------- */

static void begin_session(void)
{
    session.number++;
    session.gpus = session.facts->gpus_count < MAX_GPUS ? session.facts->gpus_count : MAX_GPUS;
    for (int index = 0; index < session.gpus; index++)
        session.slots[index] = session.facts->gpus[index].slot;
}

/* A first init reads everything anew, as the driver may be another one now. */
static nvmlReturn_t init(const char *function)
{
    struct call call = {.function = function, .slot = -1};
    pthread_mutex_lock(&session.lock);
    call.locked = true;
    if (!map_state() || !refresh(session.references == 0)) {
        pthread_mutex_unlock(&session.lock);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    session.references++;           /* so that the faults' wait finds the session there */
    pthread_mutex_unlock(&session.lock);
    nvmlReturn_t code = begin_node(&call, function);
    if (code == NVML_SUCCESS)
        code = (nvmlReturn_t)fact_or(&session.facts->node, "init-error", NVML_SUCCESS);
    if (code != NVML_SUCCESS)
        session.references--;
    else if (session.references == 1)
        begin_session();
    code = leave(&call, code);
    pthread_mutex_lock(&session.lock);
    if (session.references == 0)
        unmap_state();
    pthread_mutex_unlock(&session.lock);
    return code;
}

API(450) nvmlReturn_t nvmlInit(void)
{
    return init(__func__);
}

API(450) nvmlReturn_t nvmlInit_v2(void)
{
    return init(__func__);
}

API(450) nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return init(__func__);
}

API(450) nvmlReturn_t nvmlShutdown(void)
{
    ENTER(begin_node);
    bool last = --session.references == 0;
    nvmlReturn_t code = leave(&call, NVML_SUCCESS);
    pthread_mutex_lock(&session.lock);
    if (last && session.references == 0) {
        unmap_state();
        session.gpus = 0;
    }
    pthread_mutex_unlock(&session.lock);
    return code;
}

/* --- texts ------------------------------------------------------------------------------------------------------- */

API(450) const char *nvmlErrorString(nvmlReturn_t result)
{
    static const struct {
        int code;
        const char *text;
    } texts[] = {
        {0, "Success"},
        {1, "Uninitialized"},
        {2, "Invalid Argument"},
        {3, "Not Supported"},
        {4, "Insufficient Permissions"},
        {5, "Already Initialized"},
        {6, "Not Found"},
        {7, "Insufficient Size"},
        {8, "Insufficient External Power"},
        {9, "Driver Not Loaded"},
        {10, "Timeout"},
        {11, "Interrupt Request Issue"},
        {12, "NVML Shared Library Not Found"},
        {13, "Function Not Found"},
        {14, "Corrupted infoROM"},
        {15, "GPU is lost"},
        {16, "GPU requires reset"},
        {17, "GPU access blocked by the operating system"},
        {18, "Driver/library version mismatch"},
        {19, "In use by another client"},
        {20, "Insufficient Memory"},
        {21, "No data"},
        {22, "vGPU ECC Not Supported"},
        {23, "Insufficient Resources"},
        {24, "Frequency Not Supported"},
        {25, "Argument version mismatch"},
        {26, "This operation was deprecated"},
        {27, "System is not ready"},
        {28, "No GPUs found"},
        {29, "Invalid State"},
        {30, "Reset Type Not Supported"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == (int)result)
            return texts[i].text;
    return "Unknown Error";
}

nvmlReturn_t give_text(const char *text, char *buffer, unsigned length)
{
    if (buffer == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (text == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

/* --- the node ---------------------------------------------------------------------------------------------------- */

API(450) nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    ENTER(begin_node);
    return leave(&call, give_text(fact_text(&call.facts->node, "driver"), version, length));
}

API(450) nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    ENTER(begin_node);
    return leave(&call, give_text(fact_text(&call.facts->node, "nvml"), version, length));
}

static nvmlReturn_t cuda_version(const struct call *call, int *version)
{
    long long number;
    nvmlReturn_t code = fact_number(&call->facts->node, "cuda", &number);
    if (code == NVML_SUCCESS)
        *version = (int)number;
    return code;
}

API(450) nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER(begin_node);
    REQUIRE(version != NULL);
    return leave(&call, cuda_version(&call, version));
}

API(450) nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER(begin_node);
    REQUIRE(version != NULL);
    return leave(&call, cuda_version(&call, version));
}

API(560) nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned length)
{
    ENTER(begin_node);
    REQUIRE(info != NULL);
    if (info->version != STRUCT_VERSION(nvmlSystemDriverBranchInfo_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return leave(&call, give_text(fact_text(&call.facts->node, "branch"), info->branch, length));
}

API(450) nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], found[256];
    ENTER(begin_node);
    REQUIRE(name != NULL && length > 0);
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return leave(&call, NVML_ERROR_NOT_FOUND);
    char *line = fgets(found, sizeof found, file);
    fclose(file);
    if (line == NULL)
        return leave(&call, NVML_ERROR_NOT_FOUND);
    snprintf(name, length, "%.*s", (int)strcspn(found, "\n"), found);
    return leave(&call, NVML_SUCCESS);
}

API(465) nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count)
{
    ENTER(begin_node);
    REQUIRE(count != NULL);
    *count = fact_text(&call.facts->node, "excluded-uuid") != NULL;
    return leave(&call, NVML_SUCCESS);
}

API(465) nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned index, nvmlExcludedDeviceInfo_t *info)
{
    ENTER(begin_node);
    const char *uuid = fact_text(&call.facts->node, "excluded-uuid");
    REQUIRE(info != NULL && uuid != NULL && index == 0);
    nvmlReturn_t code = give_pci_info(&call.facts->node, &info->pciInfo);
    return leave(&call, code != NVML_SUCCESS ? code : give_text(uuid, info->uuid, sizeof info->uuid));
}

/* --- finding GPUs ------------------------------------------------------------------------------------------------ */

API(450) nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(begin_node);
    REQUIRE(count != NULL);
    *count = (unsigned)gpus_in_session();
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    ENTER(begin_slot, slot_of_index(index));
    REQUIRE(device != NULL);
    *device = gpu_handle(call.slot);
    return leave(&call, NVML_SUCCESS);
}

/* Answers with the GPU at that slot, as a call about it would be answered. */
static nvmlReturn_t found(struct call *call, int slot, nvmlDevice_t *device)
{
    const char *function = call->function;
    leave(call, NVML_SUCCESS);
    nvmlReturn_t code = begin_slot(call, function, slot);
    if (code == NVML_SUCCESS)
        *device = gpu_handle(slot);
    return leave(call, code);
}

static int slot_with(const char *key, const char *wanted)
{
    for (int index = 0; index < session.gpus; index++) {
        const struct gpu *gpu = gpu_of_slot(session.facts, session.slots[index]);
        const char *text = gpu == NULL ? NULL : fact_text(&gpu->table, key);
        if (text != NULL && strcasecmp(text, wanted) == 0)
            return session.slots[index];
    }
    return -1;
}

static nvmlReturn_t find_uuid(struct call *call, const char *uuid, nvmlDevice_t *device)
{
    int slot = slot_with("uuid", uuid);
    if (slot >= 0)
        return found(call, slot, device);
    struct ci_state *ci = mig_device_by_uuid(call->facts, uuid, &slot);
    if (ci == NULL)
        return leave(call, NVML_ERROR_NOT_FOUND);
    *device = mig_device_handle(slot, ci);
    return leave(call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER(begin_node);
    REQUIRE(uuid != NULL && device != NULL);
    return find_uuid(&call, uuid, device);
}

API(575) nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    ENTER(begin_node);
    REQUIRE(uuid != NULL && device != NULL);
    if (uuid->version != STRUCT_VERSION(nvmlUUID_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(uuid->type == UUID_TYPE_ASCII);
    return find_uuid(&call, uuid->value.str, device);
}

API(450) nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    ENTER(begin_node);
    REQUIRE(serial != NULL && device != NULL);
    int slot = slot_with("serial", serial);
    return slot < 0 ? leave(&call, NVML_ERROR_NOT_FOUND) : found(&call, slot, device);
}

API(450) nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    struct pci_address wanted, there;
    ENTER(begin_node);
    REQUIRE(bus_id != NULL && device != NULL && parse_pci_address(bus_id, &wanted));
    for (int index = 0; index < session.gpus; index++) {
        const struct gpu *gpu = gpu_of_slot(session.facts, session.slots[index]);
        const char *text = gpu == NULL ? NULL : fact_text(&gpu->table, "bus-id");
        if (text != NULL && parse_pci_address(text, &there) && there.domain == wanted.domain &&
            there.bus == wanted.bus && there.device == wanted.device)
            return found(&call, session.slots[index], device);
    }
    return leave(&call, NVML_ERROR_NOT_FOUND);
}
