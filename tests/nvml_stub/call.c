/* How a call begins and ends: the lock, the faults, what its handle stands for, what the facts say against it. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "session.h"

static void sleep_ms(unsigned ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void take_lock(struct call *call)
{
    pthread_mutex_lock(&session.lock);
    call->locked = true;
}

static void release_lock(struct call *call)
{
    pthread_mutex_unlock(&session.lock);
    call->locked = false;
}

void pause_call(struct call *call)
{
    release_lock(call);
}

bool resume_call(struct call *call)
{
    take_lock(call);
    if (session.references == 0 || !refresh(false))
        return false;
    call->facts = session.facts;
    return true;
}

/* Waits as the faults want it, without the lock: other threads' calls go on. */
static void wait_as_told(struct call *call, const struct outcome *outcome)
{
    char path[PATH_MAX];
    log_call(call->function, call->slot, "waits", 0);
    stub_file(path, outcome->hang_on);
    release_lock(call);
    sleep_ms(outcome->sleep_ms);
    while (*outcome->hang_on != '\0' && access(path, F_OK) == 0)
        sleep_ms(5);
    take_lock(call);
}

static nvmlReturn_t begin(struct call *call, const char *function, int slot)
{
    memset(call, 0, sizeof *call);
    call->function = function;
    call->slot = slot;
    take_lock(call);
    if (session.references == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!refresh(false))
        return NVML_ERROR_UNKNOWN;
    struct outcome outcome = faults_for(function, slot);
    if (outcome.kill) {
        log_call(function, slot, "dies", 0);
        kill(getpid(), SIGKILL);
    }
    if (outcome.sleep_ms > 0 || *outcome.hang_on != '\0') {
        wait_as_told(call, &outcome);
        if (session.references == 0 || !refresh(false))
            return NVML_ERROR_UNINITIALIZED;
    }
    call->late = outcome.late;
    call->kill_after = outcome.kill_after;
    call->facts = session.facts;
    return outcome.fail;
}

/* What the facts have this GPU answer to this function, if not its work. */
static nvmlReturn_t answer(const struct call *call)
{
    if (call->gpu == NULL || fact_or(&call->gpu->table, "lost", 0) != 0)
        return NVML_ERROR_GPU_IS_LOST;
    for (int i = 0; i < call->gpu->answers_count; i++) {
        const struct answer *answer = &call->gpu->answers[i];
        if (strcmp(answer->function, "*") == 0 || strcmp(answer->function, call->function) == 0)
            return answer->code;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t begin_node(struct call *call, const char *function)
{
    return begin(call, function, -1);
}

nvmlReturn_t begin_slot(struct call *call, const char *function, int slot)
{
    nvmlReturn_t code = begin(call, function, slot);
    if (code != NVML_SUCCESS)
        return code;
    if (index_of_slot(slot) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    call->gpu = gpu_of_slot(call->facts, slot);
    call->state = state_of_slot(slot);
    return answer(call);
}

/* Only the lock protects the session that a handle is decoded against; faults want the GPU before that. */
static struct handle decode_early(const void *opaque)
{
    pthread_mutex_lock(&session.lock);
    struct handle handle = decode(opaque);
    pthread_mutex_unlock(&session.lock);
    return handle;
}

static nvmlReturn_t begin_instance(struct call *call, const char *function, const struct handle *handle, bool compute)
{
    if (!handle->valid) {
        nvmlReturn_t code = begin(call, function, -1);
        return code != NVML_SUCCESS ? code : NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t code = begin_slot(call, function, handle->slot);
    if (code != NVML_SUCCESS)
        return code;
    if (compute) {
        if ((call->ci = ci_of(handle)) == NULL)
            return NVML_ERROR_INVALID_ARGUMENT;
        call->gi = &call->state->gi[call->ci->gpu_instance];
        return NVML_SUCCESS;
    }
    return (call->gi = gi_of(handle)) == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t begin_gpu(struct call *call, const char *function, nvmlDevice_t device, enum device_kind kind)
{
    struct handle handle = decode_early(device);
    handle.valid = handle.valid && (handle.kind == HANDLE_GPU || handle.kind == HANDLE_MIG);
    if (!handle.valid || handle.kind == HANDLE_MIG) {
        nvmlReturn_t code = begin_instance(call, function, &handle, true);
        return code == NVML_SUCCESS && kind == GPU_ONLY ? NVML_ERROR_NOT_SUPPORTED : code;
    }
    nvmlReturn_t code = begin_slot(call, function, handle.slot);
    return code == NVML_SUCCESS && kind == MIG_ONLY ? NVML_ERROR_NOT_SUPPORTED : code;
}

nvmlReturn_t begin_gi(struct call *call, const char *function, nvmlGpuInstance_t instance)
{
    struct handle handle = decode_early(instance);
    handle.valid = handle.valid && handle.kind == HANDLE_GI;
    return begin_instance(call, function, &handle, false);
}

nvmlReturn_t begin_ci(struct call *call, const char *function, nvmlComputeInstance_t instance)
{
    struct handle handle = decode_early(instance);
    handle.valid = handle.valid && handle.kind == HANDLE_CI;
    return begin_instance(call, function, &handle, true);
}

nvmlReturn_t leave(struct call *call, nvmlReturn_t code)
{
    if (call->kill_after) {
        log_call(call->function, call->slot, "dies", (int)code);
        kill(getpid(), SIGKILL);
    }
    if (code == NVML_SUCCESS && call->late != NVML_SUCCESS)
        code = call->late;
    log_call(call->function, call->slot, "returned", (int)code);
    release_lock(call);
    return code;
}
