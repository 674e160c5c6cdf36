/* Compute instances, and the MIG devices that they are.
 *
 * A compute instance takes compute slices of its GPU instance and shares its other engines. Its id is the lowest free
 * one there. A MIG device is a compute instance under a device handle; its index is the lowest free one of the GPU, so
 * that indices have holes after destructions. Its UUID is made of the GPU, the GPU instance and the slices (the driver
 * hashes the GPU's id, the GPU instance's and the graphics engine's): an instance that is made again at the same place
 * has the same UUID again.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "stub.h"

#define COMPUTE_PROFILES 9u     /* indices that there are, up to 7_SLICE_NVL */

/* --- profiles ---------------------------------------------------------------------------------------------------- */

const struct compute_profile *compute_profile_by_id(const struct gpu *gpu, const struct gi_state *gi, unsigned id)
{
    for (int i = 0; i < gpu->compute_profiles_count; i++)
        if (gpu->compute_profiles[i].gpu_profile == gi->profile && gpu->compute_profiles[i].id == id)
            return &gpu->compute_profiles[i];
    return NULL;
}

static nvmlReturn_t find_profile(const struct call *call, unsigned index, unsigned engines,
                                 const struct compute_profile **profile)
{
    if (index >= COMPUTE_PROFILES || engines > 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < call->gpu->compute_profiles_count; i++) {
        const struct compute_profile *candidate = &call->gpu->compute_profiles[i];
        if (candidate->gpu_profile == call->gi->profile && candidate->index == index) {
            *profile = candidate;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

static void fill(const struct call *call, const struct compute_profile *profile, nvmlComputeInstanceProfileInfo_t *info)
{
    const struct profile *shared = profile_of(call);
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->instances,
        .multiprocessorCount = profile->multiprocessors,
        .sharedCopyEngineCount = shared->copy_engines,
        .sharedDecoderCount = shared->decoders,
        .sharedEncoderCount = shared->encoders,
        .sharedJpegCount = shared->jpegs,
        .sharedOfaCount = shared->ofas,
    };
}

API(450) nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned index,
                                                                   unsigned engines,
                                                                   nvmlComputeInstanceProfileInfo_t *info)
{
    const struct compute_profile *profile;
    ENTER(begin_gi, instance);
    REQUIRE(info != NULL);
    nvmlReturn_t code = find_profile(&call, index, engines, &profile);
    if (code == NVML_SUCCESS)
        fill(&call, profile, info);
    return leave(&call, code);
}

API(510) nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned index,
                                                                    unsigned engines, void *info)
{
    const struct compute_profile *profile;
    ENTER(begin_gi, instance);
    REQUIRE(info != NULL);
    unsigned version = *(unsigned *)info;
    bool third = version == STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3u);
    REQUIRE(third || version == STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2u));
    nvmlReturn_t code = find_profile(&call, index, engines, &profile);
    if (code != NVML_SUCCESS)
        return leave(&call, code);
    nvmlComputeInstanceProfileInfo_v2_t *second = info;     /* the third version goes on where the second ends */
    fill(&call, profile, &second->profile);
    if (third)
        ((nvmlComputeInstanceProfileInfo_v3_t *)info)->capabilities = 0;
    return leave(&call, give_text(profile->name, second->name, sizeof second->name));
}

/* --- what fits --------------------------------------------------------------------------------------------------- */

static bool is_in(const struct call *call, const struct ci_state *ci)
{
    return ci->live && ci->gpu_instance == gi_id(call->state, call->gi);
}

static bool fits(const struct call *call, const struct compute_profile *profile, unsigned start)
{
    unsigned same = 0;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++) {
        const struct ci_state *ci = &call->state->ci[i];
        if (!is_in(call, ci))
            continue;
        if (start < ci->start + ci->size && ci->start < start + profile->size)
            return false;
        same += ci->profile == profile->id;
    }
    return same < profile->instances;
}

static bool is_placement(const struct compute_profile *profile, unsigned start)
{
    for (unsigned i = 0; i < profile->starts_count; i++)
        if (profile->starts[i] == start)
            return true;
    return false;
}

static nvmlReturn_t check_profile(const struct call *call, unsigned id, const struct compute_profile **profile)
{
    if (fact_or(&call->facts->node, "permission", 1) == 0)
        return NVML_ERROR_NO_PERMISSION;
    *profile = compute_profile_by_id(call->gpu, call->gi, id);
    return *profile == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

API(525) nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned id,
                                                                          nvmlPlacement_t *placements, unsigned *count)
{
    const struct compute_profile *profile;
    ENTER(begin_gi, instance);
    REQUIRE(count != NULL);
    nvmlReturn_t code = check_profile(&call, id, &profile);
    if (code != NVML_SUCCESS)
        return leave(&call, code);
    *count = profile->starts_count;
    for (unsigned i = 0; placements != NULL && i < profile->starts_count; i++)
        placements[i] = (nvmlPlacement_t){profile->starts[i], profile->size};
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id,
                                                                         unsigned *count)
{
    const struct compute_profile *profile;
    ENTER(begin_gi, instance);
    REQUIRE(count != NULL);
    nvmlReturn_t code = check_profile(&call, id, &profile);
    if (code != NVML_SUCCESS)
        return leave(&call, code);
    *count = 0;
    for (unsigned i = 0; i < profile->starts_count; i++)
        *count += fits(&call, profile, profile->starts[i]);
    return leave(&call, NVML_SUCCESS);
}

/* --- instances --------------------------------------------------------------------------------------------------- */

static unsigned lowest_free_id(const struct call *call)
{
    unsigned taken = 0, id = 0;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (is_in(call, &call->state->ci[i]))
            taken |= 1u << call->state->ci[i].id;
    while (taken & 1u << id)
        id++;
    return id;
}

static struct ci_state *lowest_free_index(const struct call *call)
{
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (!call->state->ci[i].live)
            return &call->state->ci[i];
    return NULL;
}

static int first_start(const struct call *call, const struct compute_profile *profile)
{
    for (unsigned i = 0; i < profile->starts_count; i++)
        if (fits(call, profile, profile->starts[i]))
            return (int)profile->starts[i];
    return -1;
}

/* With the lock: the GPU instance may have gone since the call began. */
static nvmlReturn_t create_locked(struct call *call, const struct compute_profile *profile,
                                  const nvmlPlacement_t *placement, struct ci_state **made)
{
    int start = placement == NULL ? first_start(call, profile) : (int)placement->start;
    struct ci_state *ci = lowest_free_index(call);
    if (!call->gi->live)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (start < 0 || ci == NULL || !fits(call, profile, (unsigned)start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    ci->generation++;
    ci->id = lowest_free_id(call);
    ci->gpu_instance = gi_id(call->state, call->gi);
    ci->profile = profile->id;
    ci->start = (unsigned)start;
    ci->size = profile->size;
    ci->compute_mode = 0;
    __atomic_store_n(&ci->live, 1, __ATOMIC_RELEASE);
    *made = ci;
    return NVML_SUCCESS;
}

static nvmlReturn_t create(struct call *call, unsigned id, const nvmlPlacement_t *placement,
                           nvmlComputeInstance_t *instance)
{
    const struct compute_profile *profile;
    struct ci_state *ci;
    if (instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = check_profile(call, id, &profile);
    if (code != NVML_SUCCESS)
        return code;
    if (placement != NULL && (placement->size != profile->size || !is_placement(profile, placement->start)))
        return NVML_ERROR_INVALID_ARGUMENT;
    lock_state();
    code = create_locked(call, profile, placement, &ci);
    unlock_state();
    if (code == NVML_SUCCESS) {
        *instance = ci_handle(call->slot, ci);
        post_event(call->gpu, 0x100);
    }
    return code;
}

API(450) nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id,
                                                           nvmlComputeInstance_t *compute_instance)
{
    ENTER(begin_gi, instance);
    return leave(&call, create(&call, id, NULL, compute_instance));
}

API(525) nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned id,
                                                                        const nvmlPlacement_t *placement,
                                                                        nvmlComputeInstance_t *compute_instance)
{
    ENTER(begin_gi, instance);
    REQUIRE(placement != NULL);
    return leave(&call, create(&call, id, placement, compute_instance));
}

API(450) nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    ENTER(begin_ci, instance);
    REQUIRE_ROOT();
    if (instance_has_processes(call.gpu, call.ci->gpu_instance, call.ci->id))
        return leave(&call, NVML_ERROR_IN_USE);
    lock_state();
    __atomic_store_n(&call.ci->live, 0, __ATOMIC_RELEASE);
    unlock_state();
    post_event(call.gpu, 0x100);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id,
                                                         nvmlComputeInstance_t *instances, unsigned *count)
{
    const struct compute_profile *profile;
    ENTER(begin_gi, instance);
    REQUIRE(instances != NULL && count != NULL);
    nvmlReturn_t code = check_profile(&call, id, &profile);
    if (code != NVML_SUCCESS)
        return leave(&call, code);
    *count = 0;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (is_in(&call, &call.state->ci[i]) && call.state->ci[i].profile == id)
            instances[(*count)++] = ci_handle(call.slot, &call.state->ci[i]);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                            nvmlComputeInstance_t *compute_instance)
{
    ENTER(begin_gi, instance);
    REQUIRE(compute_instance != NULL);
    REQUIRE_ROOT();
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (is_in(&call, &call.state->ci[i]) && call.state->ci[i].id == id) {
            *compute_instance = ci_handle(call.slot, &call.state->ci[i]);
            return leave(&call, NVML_SUCCESS);
        }
    return leave(&call, NVML_ERROR_NOT_FOUND);
}

/* The device is the MIG device (drivers of the field take its UUID from here), although the documentation says parent;
 * fact `ci-info-parent` gives the parent. */
static void fill_info(const struct call *call, nvmlComputeInstanceInfo_t *info)
{
    bool parent = fact_or(&call->gpu->table, "ci-info-parent", 0) != 0;
    info->device = parent ? gpu_handle(call->slot) : mig_device_handle(call->slot, call->ci);
    info->gpuInstance = gi_handle(call->slot, call->gi);
    info->id = call->ci->id;
    info->profileId = call->ci->profile;
    info->placement = (nvmlPlacement_t){call->ci->start, call->ci->size};
}

API(460) nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    ENTER(begin_ci, instance);
    REQUIRE(info != NULL);
    fill_info(&call, info);
    return leave(&call, NVML_SUCCESS);
}

/* The first form, without the placement. */
API(450) nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_v1_t *info)
{
    nvmlComputeInstanceInfo_t full;
    ENTER(begin_ci, instance);
    REQUIRE(info != NULL);
    fill_info(&call, &full);
    *info = (nvmlComputeInstanceInfo_v1_t){full.device, full.gpuInstance, full.id, full.profileId};
    return leave(&call, NVML_SUCCESS);
}

/* --- MIG devices ------------------------------------------------------------------------------------------------- */

API(450) nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
    ENTER(begin_gpu, device, ANY_DEVICE);
    REQUIRE(is_mig != NULL);
    *is_mig = call.ci != NULL;
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    ENTER(begin_gpu, device, MIG_ONLY);
    REQUIRE(id != NULL);
    *id = call.ci->gpu_instance;
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    ENTER(begin_gpu, device, MIG_ONLY);
    REQUIRE(id != NULL);
    *id = call.ci->id;
    return leave(&call, NVML_SUCCESS);
}

/* As many as the profile with the most instances allows, and none without MIG mode. */
static unsigned most_devices(const struct call *call)
{
    unsigned most = 0;
    for (int i = 0; mig_enabled(call->state) && i < call->gpu->profiles_count; i++)
        if (call->gpu->profiles[i].instances > most)
            most = call->gpu->profiles[i].instances;
    return most;
}

API(450) nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(count != NULL);
    *count = most_devices(&call);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig_device)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(mig_device != NULL);
    if (call.gpu->profiles_count == 0 || !mig_enabled(call.state))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(index < most_devices(&call) && index < MAX_COMPUTE_INSTANCES);
    if (!call.state->ci[index].live)
        return leave(&call, NVML_ERROR_NOT_FOUND);
    *mig_device = mig_device_handle(call.slot, &call.state->ci[index]);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig_device, nvmlDevice_t *device)
{
    ENTER(begin_gpu, mig_device, MIG_ONLY);
    REQUIRE(device != NULL);
    *device = gpu_handle(call.slot);
    return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t read_attributes(const struct call *call, nvmlDeviceAttributes_t *attributes)
{
    const struct profile *profile = profile_of(call);
    const struct compute_profile *compute = compute_profile_by_id(call->gpu, call->gi, call->ci->profile);
    if (profile == NULL || compute == NULL)
        return NVML_ERROR_UNKNOWN;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = compute->multiprocessors,
        .sharedCopyEngineCount = profile->copy_engines,
        .sharedDecoderCount = profile->decoders,
        .sharedEncoderCount = profile->encoders,
        .sharedJpegCount = profile->jpegs,
        .sharedOfaCount = profile->ofas,
        .gpuInstanceSliceCount = profile->slices,
        .computeInstanceSliceCount = compute->slices,
        .memorySizeMB = profile->memory_mib,
    };
    return NVML_SUCCESS;
}

API(455) nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER(begin_gpu, device, MIG_ONLY);
    REQUIRE(attributes != NULL);
    return leave(&call, read_attributes(&call, attributes));
}

/* The first form ends with the engines. */
API(450) nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, void *attributes)
{
    nvmlDeviceAttributes_t full;
    ENTER(begin_gpu, device, MIG_ONLY);
    REQUIRE(attributes != NULL);
    nvmlReturn_t code = read_attributes(&call, &full);
    if (code == NVML_SUCCESS)
        memcpy(attributes, &full, offsetof(nvmlDeviceAttributes_t, gpuInstanceSliceCount));
    return leave(&call, code);
}

static uint64_t hash(const char *text, uint64_t seed)
{
    uint64_t value = 0xcbf29ce484222325ULL ^ seed;      /* FNV-1a */
    for (; *text != '\0'; text++)
        value = (value ^ (unsigned char)*text) * 0x100000001b3ULL;
    return value ^ value >> 29;
}

/* Drivers before R470 named a MIG device by its GPU and its ids (fact mig-uuid-by-id). Fact mig-uuid: all are named so. */
void mig_uuid(const struct gpu *gpu, const struct ci_state *ci, char *buffer)
{
    char place[NAME_SIZE];
    const char *uuid = fact_text(&gpu->table, "uuid");
    if (uuid == NULL)
        uuid = "GPU-";
    if (fact_text(&gpu->table, "mig-uuid") != NULL) {
        snprintf(buffer, NAME_SIZE, "%s", fact_text(&gpu->table, "mig-uuid"));
        return;
    }
    if (fact_or(&gpu->table, "mig-uuid-by-id", 0) != 0) {
        snprintf(buffer, NAME_SIZE, "MIG-%.48s/%u/%u", uuid, ci->gpu_instance, ci->id);
        return;
    }
    snprintf(place, sizeof place, "%.48s/%u/%u", uuid, ci->gpu_instance, ci->start);
    uint64_t high = hash(place, 0), low = hash(place, 1);
    snprintf(buffer, NAME_SIZE, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(high >> 32),
             (unsigned)(high >> 16 & 0xFFFF), (unsigned)(high & 0xFFF), (unsigned)(0x8000 | (low >> 48 & 0x3FFF)),
             (unsigned long long)(low & 0xFFFFFFFFFFFFULL));
}

struct ci_state *mig_device_by_uuid(const struct facts *facts, const char *uuid, int *slot)
{
    char there[NAME_SIZE];
    for (int index = 0; index < gpus_in_session(); index++) {
        *slot = slot_of_index((unsigned)index);
        const struct gpu *gpu = gpu_of_slot(facts, *slot);
        struct gpu_state *state = state_of_slot(*slot);
        for (int i = 0; gpu != NULL && mig_enabled(state) && i < MAX_COMPUTE_INSTANCES; i++) {
            if (!state->ci[i].live)
                continue;
            mig_uuid(gpu, &state->ci[i], there);
            if (strcasecmp(there, uuid) == 0)
                return &state->ci[i];
        }
    }
    return NULL;
}
