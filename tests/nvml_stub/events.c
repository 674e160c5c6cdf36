/* Event sets: what is appended to the events file reaches every set, of every process, that registered for it.
 *
 * A line:  UUID TYPE DATA GPU_INSTANCE COMPUTE_INSTANCE, with - for no instance. Lines of other GPUs and types wake a
 * waiting set without an answer, so that a wait also notices changed facts. Events from before a registration are not
 * delivered. While a registered GPU is lost, a wait delivers what is still there, then answers GPU_IS_LOST at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "session.h"

#define MAX_SETS 64
#define LONGEST_SLEEP 200       /* ms after which a wait looks whether the library was shut down meanwhile */

struct event_set {
    bool live;
    unsigned char session;                  /* sets of a past session are free to take */
    unsigned generation;
    int notify;                             /* inotify descriptor */
    off_t offset;                           /* in the events file; what comes from there is new */
    unsigned long long types[MAX_GPUS];     /* registered, by slot */
    off_t since[MAX_GPUS];                  /* where the events file ended at registration */
};

static struct event_set sets[MAX_SETS];

struct event {
    int slot;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
    off_t offset;
};

static off_t size_of(const char *path)
{
    int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
    off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    if (fd >= 0)
        close(fd);
    return size;
}

void post_event(const struct gpu *gpu, unsigned long long type)
{
    char path[PATH_MAX], line[256];
    const char *uuid = fact_text(&gpu->table, "uuid");
    int fd = open(stub_file(path, "events"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    int length = snprintf(line, sizeof line, "%s %#llx 0 - -\n", uuid == NULL ? "?" : uuid, type);
    if (fd < 0 || write(fd, line, (size_t)length) < 0)
        perror("nvml stub: events");
    if (fd >= 0)
        close(fd);
}

/* --- sets -------------------------------------------------------------------------------------------------------- */

static nvmlEventSet_t set_handle(const struct event_set *set)
{
    return (nvmlEventSet_t)(uintptr_t)encode(HANDLE_EVENTS, 0, set->generation, set - sets);
}

static struct event_set *set_of(nvmlEventSet_t opaque)
{
    struct handle handle = decode(opaque);
    if (!handle.valid || handle.kind != HANDLE_EVENTS || handle.place >= MAX_SETS)
        return NULL;
    struct event_set *set = &sets[handle.place];
    return set->live && (set->generation & 0xFFFF) == handle.generation ? set : NULL;
}

static struct event_set *free_set(void)
{
    for (struct event_set *set = sets; set < sets + MAX_SETS; set++) {
        if (set->live && set->session == session.number)
            continue;
        if (set->live)
            close(set->notify);
        unsigned generation = set->generation + 1;
        memset(set, 0, sizeof *set);
        set->generation = generation;
        set->session = session.number;
        return set;
    }
    return NULL;
}

API(450) nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *opaque)
{
    char path[PATH_MAX];
    ENTER(begin_node);
    REQUIRE(opaque != NULL);
    struct event_set *set = free_set();
    if (set == NULL)
        return leave(&call, NVML_ERROR_INSUFFICIENT_RESOURCES);
    set->offset = size_of(stub_file(path, "events"));
    set->notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (set->notify < 0 || inotify_add_watch(set->notify, path, IN_MODIFY) < 0) {
        if (set->notify >= 0)
            close(set->notify);
        return leave(&call, NVML_ERROR_UNKNOWN);
    }
    set->live = true;
    *opaque = set_handle(set);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t opaque)
{
    ENTER(begin_node);
    struct event_set *set = set_of(opaque);
    REQUIRE(set != NULL);
    set->live = false;
    close(set->notify);
    return leave(&call, NVML_SUCCESS);
}

API(450) nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(types != NULL);
    *types = (unsigned long long)fact_or(&call.gpu->table, "event-types", 0);
    return leave(&call, NVML_SUCCESS);
}

/* All or nothing: with one type that the GPU does not support, none is registered. */
API(450) nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t opaque)
{
    char path[PATH_MAX];
    ENTER(begin_gpu, device, GPU_ONLY);
    struct event_set *set = set_of(opaque);
    REQUIRE(set != NULL);
    if ((types & ~(unsigned long long)fact_or(&call.gpu->table, "event-types", 0)) != 0)
        return leave(&call, NVML_ERROR_NOT_SUPPORTED);
    if (set->types[call.slot] == 0)
        set->since[call.slot] = size_of(stub_file(path, "events"));
    set->types[call.slot] |= types;
    return leave(&call, NVML_SUCCESS);
}

/* --- waiting ----------------------------------------------------------------------------------------------------- */

static unsigned instance(const char *text)
{
    return *text == '-' ? NO_INSTANCE : (unsigned)strtoul(text, NULL, 0);
}

static int slot_of_uuid(const char *uuid)
{
    for (int i = 0; i < session.facts->gpus_count; i++) {
        const char *there = fact_text(&session.facts->gpus[i].table, "uuid");
        if (there != NULL && strcasecmp(there, uuid) == 0)
            return session.facts->gpus[i].slot;
    }
    return -1;
}

static bool parse_event(const char *line, struct event *event)
{
    char uuid[NAME_SIZE], type[32], data[32], gpu_instance[16], compute_instance[16];
    if (sscanf(line, "%95s %31s %31s %15s %15s", uuid, type, data, gpu_instance, compute_instance) != 5)
        return false;
    event->slot = slot_of_uuid(uuid);
    event->type = strtoull(type, NULL, 0);
    event->data = strtoull(data, NULL, 0);
    event->gpu_instance = instance(gpu_instance);
    event->compute_instance = instance(compute_instance);
    return event->slot >= 0;
}

static bool wanted(const struct event_set *set, const struct event *event)
{
    return (set->types[event->slot] & event->type) != 0 && event->offset >= set->since[event->slot] &&
           index_of_slot(event->slot) >= 0;
}

/* Takes the next event of the file that the set wants; whole lines only. */
static bool next_event(struct event_set *set, struct event *event)
{
    char path[PATH_MAX], line[256];
    bool found = false;
    FILE *file = fopen(stub_file(path, "events"), "re");
    if (file == NULL)
        return false;
    fseeko(file, set->offset, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) != NULL && strchr(line, '\n') != NULL) {
        event->offset = set->offset;
        set->offset += (off_t)strlen(line);
        found = parse_event(line, event) && wanted(set, event);
    }
    fclose(file);
    return found;
}

static bool lost_one(const struct event_set *set)
{
    for (int index = 0; index < session.gpus; index++) {
        int slot = session.slots[index];
        const struct gpu *gpu = gpu_of_slot(session.facts, slot);
        if (set->types[slot] != 0 && (gpu == NULL || fact_or(&gpu->table, "lost", 0) != 0))
            return true;
    }
    return false;
}

static long long milliseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (long long)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Sleeps without the lock until the file grows or the time is up; false if a signal came. */
static bool sleep_for(struct call *call, int notify, long long left)
{
    char notices[4096];
    struct pollfd watched = {.fd = notify, .events = POLLIN};
    pause_call(call);
    int ready = poll(&watched, 1, left < 0 || left > LONGEST_SLEEP ? LONGEST_SLEEP : (int)left);
    bool interrupted = ready < 0 && errno == EINTR;
    while (read(notify, notices, sizeof notices) > 0)
        ;
    return !interrupted;
}

API(450) nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t opaque, nvmlEventData_t *data, unsigned timeout)
{
    struct event event;
    ENTER(begin_node);
    REQUIRE(data != NULL);
    long long end = milliseconds() + timeout;
    for (;;) {
        struct event_set *set = set_of(opaque);
        REQUIRE(set != NULL);
        if (next_event(set, &event)) {
            *data = (nvmlEventData_t){gpu_handle(event.slot), event.type, event.data, event.gpu_instance,
                                      event.compute_instance};
            return leave(&call, NVML_SUCCESS);
        }
        if (lost_one(set))
            return leave(&call, NVML_ERROR_GPU_IS_LOST);
        long long left = timeout == 0xFFFFFFFFu ? -1 : end - milliseconds();
        if (left <= 0 && timeout != 0xFFFFFFFFu)
            return leave(&call, NVML_ERROR_TIMEOUT);
        bool slept = sleep_for(&call, set->notify, left);
        if (!resume_call(&call))
            return leave(&call, NVML_ERROR_UNINITIALIZED);
        if (!slept)
            return leave(&call, NVML_ERROR_TIMEOUT);
    }
}
