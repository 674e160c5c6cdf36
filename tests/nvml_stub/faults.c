/* Faults on command, and the record of calls.
 *
 * A line of the faults file:  FUNCTION SLOT FIRST COUNT BEGIN END ACTION [ARGUMENT]
 *
 *   FUNCTION  a function of the library, `*` at its end or alone for all that begin so
 *   SLOT      a physical GPU, -1 for any call
 *   FIRST     the first matching call that is hit, from 1
 *   COUNT     how many are hit from there on, 0 for all
 *   BEGIN END seconds since 1970 between which calls match, 0 for no limit
 *   ACTION    fail CODE      answer CODE, do nothing
 *             late CODE      do the work, then answer CODE
 *             sleep MS       wait first
 *             hang FILE      wait for as long as that file of the stub directory is there
 *             kill           SIGKILL to the process before the work
 *             killafter      SIGKILL to the process after the work, before the answer
 *
 * Matching calls are counted in the state, over all processes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "session.h"

struct fault {
    char function[NAME_SIZE];
    int slot;
    unsigned first, count;
    double begin, end;
    char action[16];
    char argument[NAME_MAX];
};

static struct fault faults[MAX_FAULTS];
static int faults_count;

void faults_load(const char *path)
{
    char line[1024];
    FILE *file = fopen(path, "re");
    faults_count = 0;
    while (file != NULL && faults_count < MAX_FAULTS && fgets(line, sizeof line, file) != NULL) {
        struct fault *fault = &faults[faults_count];
        memset(fault, 0, sizeof *fault);
        int columns = sscanf(line, "%95s %d %u %u %lf %lf %15s %254s", fault->function, &fault->slot, &fault->first,
                             &fault->count, &fault->begin, &fault->end, fault->action, fault->argument);
        if (columns >= 7)
            faults_count++;
        else
            fprintf(stderr, "nvml stub: %s: not a fault: %s", path, line);
    }
    if (file != NULL)
        fclose(file);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static bool matches(const struct fault *fault, const char *function, int slot)
{
    size_t length = strlen(fault->function);
    bool prefix = length > 0 && fault->function[length - 1] == '*';
    if (prefix ? strncmp(fault->function, function, length - 1) != 0 : strcmp(fault->function, function) != 0)
        return false;
    if (fault->slot >= 0 && fault->slot != slot)
        return false;
    if (fault->begin == 0 && fault->end == 0)
        return true;
    double time = now();
    return time >= fault->begin && (fault->end == 0 || time < fault->end);
}

static void apply(const struct fault *fault, struct outcome *outcome)
{
    int number = atoi(fault->argument);
    if (strcmp(fault->action, "fail") == 0)
        outcome->fail = (nvmlReturn_t)number;
    else if (strcmp(fault->action, "late") == 0)
        outcome->late = (nvmlReturn_t)number;
    else if (strcmp(fault->action, "sleep") == 0)
        outcome->sleep_ms = (unsigned)number;
    else if (strcmp(fault->action, "hang") == 0)
        strcpy(outcome->hang_on, fault->argument);
    else if (strcmp(fault->action, "kill") == 0)
        outcome->kill = true;
    else if (strcmp(fault->action, "killafter") == 0)
        outcome->kill_after = true;
}

struct outcome faults_for(const char *function, int slot)
{
    struct outcome outcome = {.fail = NVML_SUCCESS, .late = NVML_SUCCESS};
    for (int i = 0; i < faults_count; i++) {
        const struct fault *fault = &faults[i];
        if (!matches(fault, function, slot))
            continue;
        unsigned hit = __atomic_add_fetch(&session.state->hits[i], 1, __ATOMIC_RELAXED);
        if (hit >= fault->first && (fault->count == 0 || hit - fault->first < fault->count))
            apply(fault, &outcome);
    }
    return outcome;
}

/* calls: MONOTONIC_NS PID FUNCTION SLOT WHAT CODE; WHAT is `returned`, or `waits`, `dies` when a fault begins. */
void log_call(const char *function, int slot, const char *what, int code)
{
    char line[256], path[PATH_MAX];
    struct timespec time;
    if (session.state == NULL || (session.state->flags & FLAG_LOG) == 0)
        return;
    if (session.log_file < 0) {
        session.log_file = open(stub_file(path, "calls"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        if (session.log_file < 0)
            return;
    }
    clock_gettime(CLOCK_MONOTONIC, &time);
    int length = snprintf(line, sizeof line, "%lld %d %s %d %s %d\n",
                          (long long)time.tv_sec * 1000000000 + time.tv_nsec, getpid(), function, slot, what, code);
    if (write(session.log_file, line, (size_t)length) < 0)
        perror("nvml stub: calls");
}
