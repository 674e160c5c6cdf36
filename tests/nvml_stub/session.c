/* The session, its files, and the handles: where the stub directory is, what is mapped, which GPUs there are. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "session.h"

struct session session = {.lock = PTHREAD_MUTEX_INITIALIZER, .state_file = -1, .log_file = -1};

/* --- the stub directory ------------------------------------------------------------------------------------------ */

static bool read_pointer(const char *path, char *directory)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool found = fgets(directory, PATH_MAX, file) != NULL;
    fclose(file);
    directory[strcspn(directory, "\n")] = '\0';
    return found && *directory != '\0';
}

static bool locate(void)
{
    static const char anchor;
    char path[PATH_MAX];
    Dl_info info;
    if (dladdr(&anchor, &info) == 0)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash == NULL ? 1 : (int)(slash - info.dli_fname);
    const char *beside = slash == NULL ? "." : info.dli_fname;
    if (snprintf(path, sizeof path, "%.*s/nvml-stub", length, beside) >= (int)sizeof path)
        return false;
    if (!read_pointer(path, session.directory))
        snprintf(session.directory, sizeof session.directory, "%.*s", length, beside);
    return true;
}

const char *stub_file(char *buffer, const char *name)
{
    if (snprintf(buffer, PATH_MAX, "%s/%s", session.directory, name) >= PATH_MAX)
        *buffer = '\0';
    return buffer;
}

/* --- state ------------------------------------------------------------------------------------------------------- */

bool map_state(void)
{
    char path[PATH_MAX];
    if (session.state != NULL)
        return true;
    if (!locate())
        return false;
    int fd = open(stub_file(path, "state"), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "nvml stub: %s: %s\n", path, strerror(errno));
        return false;
    }
    struct state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED || lseek(fd, 0, SEEK_END) < (off_t)sizeof *state ||
        memcmp(state->magic, STATE_MAGIC, sizeof state->magic) != 0) {
        fprintf(stderr, "nvml stub: %s: not a state file of this version\n", path);
        if (state != MAP_FAILED)
            munmap(state, sizeof *state);
        close(fd);
        return false;
    }
    session.state = state;
    session.state_file = fd;
    return true;
}

void unmap_state(void)
{
    if (session.state == NULL)
        return;
    munmap(session.state, sizeof *session.state);
    session.state = NULL;
    close(session.state_file);
    session.state_file = -1;
    if (session.log_file >= 0)
        close(session.log_file);
    session.log_file = -1;
}

void lock_state(void)
{
    while (flock(session.state_file, LOCK_EX) != 0 && errno == EINTR)
        ;
}

void unlock_state(void)
{
    flock(session.state_file, LOCK_UN);
}

bool refresh(bool anew)
{
    char path[PATH_MAX];
    uint32_t generation = __atomic_load_n(&session.state->generation, __ATOMIC_ACQUIRE);
    if (!anew && session.facts != NULL && generation == session.generation)
        return true;
    struct facts *facts = facts_load(stub_file(path, "facts"));
    if (facts == NULL)
        return session.facts != NULL && !anew;
    facts_free(session.facts);
    session.facts = facts;
    faults_load(stub_file(path, "faults"));
    session.generation = generation;
    return true;
}

/* --- GPUs of the session ----------------------------------------------------------------------------------------- */

int gpus_in_session(void)
{
    return session.gpus;
}

int slot_of_index(unsigned index)
{
    return index < (unsigned)session.gpus ? session.slots[index] : -1;
}

int index_of_slot(int slot)
{
    for (int index = 0; index < session.gpus; index++)
        if (session.slots[index] == slot)
            return index;
    return -1;
}

const struct gpu *gpu_of_slot(const struct facts *facts, int slot)
{
    for (int i = 0; i < facts->gpus_count; i++)
        if (facts->gpus[i].slot == slot)
            return &facts->gpus[i];
    return NULL;
}

struct gpu_state *state_of_slot(int slot)
{
    return &session.state->gpus[slot];
}

/* --- handles ----------------------------------------------------------------------------------------------------- */

/* tag 8 bits, kind 8, session 8, GPU slot 8, generation 16, place 16: no address that a program could read from */
#define TAG 0x4EULL

uint64_t encode(enum handle_kind kind, int slot, uint32_t generation, long place)
{
    return TAG << 56 | (uint64_t)kind << 48 | (uint64_t)session.number << 40 | (uint64_t)slot << 32 |
           (uint64_t)(generation & 0xFFFF) << 16 | (uint64_t)place;
}

struct handle decode(const void *opaque)
{
    uint64_t bits = (uint64_t)(uintptr_t)opaque;
    struct handle handle = {
        .valid = bits >> 56 == TAG && (bits >> 40 & 0xFF) == session.number,
        .kind = (enum handle_kind)(bits >> 48 & 0xFF),
        .slot = (int)(bits >> 32 & 0xFF),
        .generation = (unsigned)(bits >> 16 & 0xFFFF),
        .place = (unsigned)(bits & 0xFFFF),
    };
    return handle;
}

nvmlDevice_t gpu_handle(int slot)
{
    return (nvmlDevice_t)(uintptr_t)encode(HANDLE_GPU, slot, 0, 0);
}

nvmlDevice_t mig_device_handle(int slot, const struct ci_state *ci)
{
    return (nvmlDevice_t)(uintptr_t)encode(HANDLE_MIG, slot, ci->generation, ci - state_of_slot(slot)->ci);
}

nvmlGpuInstance_t gi_handle(int slot, const struct gi_state *gi)
{
    return (nvmlGpuInstance_t)(uintptr_t)encode(HANDLE_GI, slot, gi->generation, gi - state_of_slot(slot)->gi);
}

nvmlComputeInstance_t ci_handle(int slot, const struct ci_state *ci)
{
    return (nvmlComputeInstance_t)(uintptr_t)encode(HANDLE_CI, slot, ci->generation, ci - state_of_slot(slot)->ci);
}

struct gi_state *gi_of(const struct handle *handle)
{
    struct gi_state *gi = &state_of_slot(handle->slot)->gi[handle->place % MAX_GPU_INSTANCES];
    bool same = gi->live && (gi->generation & 0xFFFF) == handle->generation;
    return handle->place < MAX_GPU_INSTANCES && same ? gi : NULL;
}

struct ci_state *ci_of(const struct handle *handle)
{
    struct ci_state *ci = &state_of_slot(handle->slot)->ci[handle->place % MAX_COMPUTE_INSTANCES];
    bool same = ci->live && (ci->generation & 0xFFFF) == handle->generation;
    return handle->place < MAX_COMPUTE_INSTANCES && same ? ci : NULL;
}
