/* MIG mode and GPU instances.
 *
 * What the driver does, from its open kernel modules (kernel_mig_manager.c, kmigmgr_ga100.c) and public listings of
 * nvidia-smi:
 *
 * - A GPU instance takes the memory slices of its placement and as many engines as its profile has. Overlap is an
 *   INSUFFICIENT_RESOURCES, whatever stands in the way, the very same instance too.
 * - Without a placement the driver takes the one after which most placements of any profile remain possible.
 * - Its id follows from where it is: 0 for the whole, 1-2 for halves, 3-6 for quarters, 7-14 for eighths. The slices
 *   behind the ids are the hardware's: on GPUs whose first half is cut down, the two halves have changed places
 *   (fact `swapped-halves`), so that 3g at 4 has id 1 and at 0 id 2.
 * - Only with MIG mode on; instances are gone after a reset or reboot.
 */
#include <stdio.h>
#include <string.h>

#include "stub.h"

#define MIG_OFF 0u
#define MIG_ON 1u

/* --- mode -------------------------------------------------------------------------------------------------------- */

bool mig_enabled(const struct gpu_state *state)
{
    return (state->mig & 0xFF) == MIG_ON;
}

static bool can_mig(const struct call *call)
{
    return call->gpu->profiles_count > 0;
}

API(450) nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(current != NULL && pending != NULL);
    if (!can_mig(&call))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    *current = call.state->mig & 0xFF;
    *pending = call.state->mig >> 8 & 0xFF;
    return leave(&call, NVML_SUCCESS);
}

static bool has_instances(const struct gpu_state *state)
{
    for (int id = 0; id < MAX_GPU_INSTANCES; id++)
        if (state->gi[id].live)
            return true;
    return false;
}

/* The call succeeds and the mode stays pending where something holds the GPU, or where the GPU changes it by a reset
 * only (fact mig-activation, the status then reported). */
API(450) nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(mode <= MIG_ON && activation != NULL);
    if (!can_mig(&call))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE_ROOT();
    const struct table *table = &call.gpu->table;
    bool busy = fact_or(table, "busy", 0) != 0 || call.gpu->processes_count > 0 || has_instances(call.state);
    lock_state();
    unsigned current = call.state->mig & 0xFF;
    *activation = NVML_SUCCESS;
    if (mode != current && busy)
        *activation = NVML_ERROR_IN_USE;
    else if (mode != current)
        *activation = (nvmlReturn_t)fact_or(table, "mig-activation", NVML_SUCCESS);
    if (*activation == NVML_SUCCESS)
        current = mode;
    __atomic_store_n(&call.state->mig, current | mode << 8, __ATOMIC_RELEASE);
    unlock_state();
    post_event(call.gpu, 0x100);
    return leave(&call, NVML_SUCCESS);
}

/* --- profiles ---------------------------------------------------------------------------------------------------- */

const struct profile *profile_by_id(const struct gpu *gpu, unsigned id)
{
    for (int i = 0; i < gpu->profiles_count; i++)
        if (gpu->profiles[i].id == id)
            return &gpu->profiles[i];
    return NULL;
}

const struct profile *profile_of(const struct call *call)
{
    return profile_by_id(call->gpu, call->gi->profile);
}

/* Some GPUs tell their profiles in MIG mode only (field 199 says which do always). */
static nvmlReturn_t find_profile(const struct call *call, unsigned index, const struct profile **profile)
{
    if (!can_mig(call))
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= (unsigned)fact_or(&call->facts->node, "profiles", 0))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!mig_enabled(call->state) && fact_or(&call->gpu->table, "mig-query-always", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < call->gpu->profiles_count; i++)
        if (call->gpu->profiles[i].index == index) {
            *profile = &call->gpu->profiles[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_SUPPORTED;
}

/* The three layouts have the same names for the same things. */
#define FILL(info, from)                                          \
    do {                                                          \
        (info)->id = (from)->id;                                  \
        (info)->sliceCount = (from)->slices;                      \
        (info)->instanceCount = (from)->instances;                \
        (info)->multiprocessorCount = (from)->multiprocessors;    \
        (info)->copyEngineCount = (from)->copy_engines;           \
        (info)->decoderCount = (from)->decoders;                  \
        (info)->encoderCount = (from)->encoders;                  \
        (info)->jpegCount = (from)->jpegs;                        \
        (info)->ofaCount = (from)->ofas;                          \
        (info)->memorySizeMB = (from)->memory_mib;                \
    } while (0)

static nvmlReturn_t fill_versioned(const struct profile *profile, void *info)
{
    unsigned version = *(unsigned *)info;
    if (version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2u)) {
        nvmlGpuInstanceProfileInfo_v2_t *second = info;
        FILL(second, profile);
        second->isP2pSupported = profile->p2p;
        return give_text(profile->name, second->name, sizeof second->name);
    }
    if (version == STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3u)) {
        nvmlGpuInstanceProfileInfo_v3_t *third = info;
        FILL(third, profile);
        third->capabilities = profile->capabilities;
        return give_text(profile->name, third->name, sizeof third->name);
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

API(450) nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned index,
                                                          nvmlGpuInstanceProfileInfo_t *info)
{
    const struct profile *profile;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    nvmlReturn_t code = find_profile(&call, index, &profile);
    if (code == NVML_SUCCESS) {
        FILL(info, profile);
        info->isP2pSupported = profile->p2p;
    }
    return leave(&call, code);
}

API(510) nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned index, void *info)
{
    const struct profile *profile;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    nvmlReturn_t code = find_profile(&call, index, &profile);
    return leave(&call, code != NVML_SUCCESS ? code : fill_versioned(profile, info));
}

API(580) nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id, void *info)
{
    const struct profile *profile;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    const struct profile *found = profile_by_id(call.gpu, id);
    if (!can_mig(&call))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(found != NULL);
    nvmlReturn_t code = find_profile(&call, found->index, &profile);
    return leave(&call, code != NVML_SUCCESS ? code : fill_versioned(profile, info));
}

/* --- what fits --------------------------------------------------------------------------------------------------- */

static bool overlap(unsigned start, unsigned size, unsigned other_start, unsigned other_size)
{
    return start < other_start + other_size && other_start < start + size;
}

struct engines {
    unsigned copy, decoders, encoders, jpegs, ofas;
};

static void add_engines(struct engines *sum, const struct profile *profile)
{
    sum->copy += profile->copy_engines;
    sum->decoders += profile->decoders;
    sum->encoders += profile->encoders;
    sum->jpegs += profile->jpegs;
    sum->ofas += profile->ofas;
}

static bool within(const struct engines *sum, const struct profile *whole)
{
    return sum->copy <= whole->copy_engines && sum->decoders <= whole->decoders && sum->encoders <= whole->encoders &&
           sum->jpegs <= whole->jpegs && sum->ofas <= whole->ofas;
}

/* The profile that takes all memory slices: it has whatever the GPU can give to instances. */
static const struct profile *whole_of(const struct gpu *gpu)
{
    const struct profile *whole = &gpu->profiles[0];
    for (int i = 1; i < gpu->profiles_count; i++)
        if (gpu->profiles[i].size > whole->size)
            whole = &gpu->profiles[i];
    return whole;
}

/* Instances as they are or as they would be. */
struct layout {
    const struct gpu *gpu;
    int count;
    const struct profile *profiles[MAX_GPU_INSTANCES + 1];
    unsigned starts[MAX_GPU_INSTANCES + 1];
};

static void read_layout(const struct call *call, struct layout *layout)
{
    layout->gpu = call->gpu;
    layout->count = 0;
    for (int id = 0; id < MAX_GPU_INSTANCES; id++) {
        const struct gi_state *gi = &call->state->gi[id];
        const struct profile *profile = gi->live ? profile_by_id(call->gpu, gi->profile) : NULL;
        if (profile == NULL)
            continue;
        layout->profiles[layout->count] = profile;
        layout->starts[layout->count++] = gi->start;
    }
}

static bool fits(const struct layout *layout, const struct profile *profile, unsigned start)
{
    struct engines engines = {0};
    unsigned same = 0;
    for (int i = 0; i < layout->count; i++) {
        if (overlap(start, profile->size, layout->starts[i], layout->profiles[i]->size))
            return false;
        add_engines(&engines, layout->profiles[i]);
        same += layout->profiles[i] == profile;
    }
    add_engines(&engines, profile);
    return same < profile->instances && within(&engines, whole_of(layout->gpu));
}

static bool is_placement(const struct profile *profile, unsigned start)
{
    for (unsigned i = 0; i < profile->starts_count; i++)
        if (profile->starts[i] == start)
            return true;
    return false;
}

static void add(struct layout *layout, const struct profile *profile, unsigned start)
{
    layout->profiles[layout->count] = profile;
    layout->starts[layout->count++] = start;
}

static int possibilities(const struct layout *layout)
{
    int count = 0;
    for (int i = 0; i < layout->gpu->profiles_count; i++)
        for (unsigned j = 0; j < layout->gpu->profiles[i].starts_count; j++)
            count += fits(layout, &layout->gpu->profiles[i], layout->gpu->profiles[i].starts[j]);
    return count;
}

/* The placement that the driver takes of itself; -1 if none fits. */
static int best_start(const struct layout *layout, const struct profile *profile)
{
    int best = -1, most = -1;
    for (unsigned i = 0; i < profile->starts_count; i++) {
        struct layout then = *layout;
        if (!fits(layout, profile, profile->starts[i]))
            continue;
        add(&then, profile, profile->starts[i]);
        int left = possibilities(&then);
        if (left > most) {
            most = left;
            best = (int)profile->starts[i];
        }
    }
    return best;
}

/* --- placements and capacity ------------------------------------------------------------------------------------- */

/* Both forms want a buffer that is large enough and do not look whether it is, as the driver does not. */
static nvmlReturn_t give_placements(const struct call *call, unsigned id, nvmlPlacement_t *placements, unsigned *count)
{
    const struct profile *profile = profile_by_id(call->gpu, id);
    if (!can_mig(call))
        return NVML_ERROR_NOT_SUPPORTED;
    if (profile == NULL || count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = profile->starts_count;
    for (unsigned i = 0; placements != NULL && i < profile->starts_count; i++)
        placements[i] = (nvmlPlacement_t){profile->starts[i], profile->size};
    return NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id,
                                                                 nvmlPlacement_t *placements, unsigned *count)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE_ROOT();
    if (!mig_enabled(call.state))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    return leave(&call, give_placements(&call, id, placements, count));
}

API(470) nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                                    nvmlPlacement_t *placements, unsigned *count)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE_ROOT();
    return leave(&call, give_placements(&call, id, placements, count));
}

/* What every call about instances needs: permission, MIG mode, and a GPU instance profile that there is. */
static nvmlReturn_t check_instances(const struct call *call, unsigned id, const struct profile **profile)
{
    if (fact_or(&call->facts->node, "permission", 1) == 0)
        return NVML_ERROR_NO_PERMISSION;
    if (!can_mig(call) || !mig_enabled(call->state))
        return NVML_ERROR_NOT_SUPPORTED;
    *profile = profile_by_id(call->gpu, id);
    return *profile == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
    const struct profile *profile;
    struct layout layout;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(count != NULL);
    nvmlReturn_t code = check_instances(&call, id, &profile);
    if (code != NVML_SUCCESS)
        return leave(&call, code);
    read_layout(&call, &layout);
    *count = 0;
    for (unsigned i = 0; i < profile->starts_count; i++)
        if (fits(&layout, profile, profile->starts[i])) {
            add(&layout, profile, profile->starts[i]);
            ++*count;
        }
    return leave(&call, NVML_SUCCESS);
}

/* --- instances --------------------------------------------------------------------------------------------------- */

static unsigned id_at(const struct gpu *gpu, const struct profile *profile, unsigned start)
{
    unsigned slices = whole_of(gpu)->size;
    if (fact_or(&gpu->table, "swapped-halves", 0) != 0 && profile->size < slices)
        start = (start + slices / 2) % slices;
    return slices / profile->size - 1 + start / profile->size;
}

unsigned gi_id(const struct gpu_state *state, const struct gi_state *gi)
{
    return (unsigned)(gi - state->gi);
}

static nvmlReturn_t create(struct call *call, unsigned id, const nvmlPlacement_t *placement, nvmlGpuInstance_t *instance)
{
    const struct profile *profile;
    struct layout layout;
    if (instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = check_instances(call, id, &profile);
    if (code != NVML_SUCCESS)
        return code;
    if (placement != NULL && (placement->size != profile->size || !is_placement(profile, placement->start)))
        return NVML_ERROR_INVALID_ARGUMENT;
    lock_state();
    read_layout(call, &layout);
    int start = placement == NULL ? best_start(&layout, profile) : (int)placement->start;
    if (start < 0 || !fits(&layout, profile, (unsigned)start)) {
        unlock_state();
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    struct gi_state *gi = &call->state->gi[id_at(call->gpu, profile, (unsigned)start)];
    gi->generation++;
    gi->profile = profile->id;
    gi->start = (unsigned)start;
    gi->size = profile->size;
    __atomic_store_n(&gi->live, 1, __ATOMIC_RELEASE);
    unlock_state();
    *instance = gi_handle(call->slot, gi);
    post_event(call->gpu, 0x100);
    return NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, create(&call, id, NULL, instance));
}

API(460) nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
                                                               const nvmlPlacement_t *placement,
                                                               nvmlGpuInstance_t *instance)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(placement != NULL);
    return leave(&call, create(&call, id, placement, instance));
}

API(450) nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    ENTER(begin_gi, instance);
    REQUIRE_ROOT();
    unsigned id = gi_id(call.state, call.gi);
    if (instance_has_processes(call.gpu, id, NO_INSTANCE))
        return leave(&call, NVML_ERROR_IN_USE);
    lock_state();
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (call.state->ci[i].live && call.state->ci[i].gpu_instance == id) {
            unlock_state();
            return leave(&call, NVML_ERROR_IN_USE);
        }
    __atomic_store_n(&call.gi->live, 0, __ATOMIC_RELEASE);
    unlock_state();
    post_event(call.gpu, 0x100);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instances,
                                                unsigned *count)
{
    const struct profile *profile;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(instances != NULL && count != NULL);
    nvmlReturn_t code = check_instances(&call, id, &profile);
    if (code != NVML_SUCCESS)
        return leave(&call, code);
    *count = 0;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        if (call.state->gi[i].live && call.state->gi[i].profile == id)
            instances[(*count)++] = gi_handle(call.slot, &call.state->gi[i]);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(instance != NULL);
    REQUIRE_ROOT();
    if (!can_mig(&call) || !mig_enabled(call.state))
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    if (id >= MAX_GPU_INSTANCES || !call.state->gi[id].live)
        return leave(&call, NVML_ERROR_NOT_FOUND);
    *instance = gi_handle(call.slot, &call.state->gi[id]);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    ENTER(begin_gi, instance);
    REQUIRE(info != NULL);
    info->device = gpu_handle(call.slot);
    info->id = gi_id(call.state, call.gi);
    info->profileId = call.gi->profile;
    info->placement = (nvmlPlacement_t){call.gi->start, call.gi->size};
    return leave(&call, NVML_SUCCESS);
}
