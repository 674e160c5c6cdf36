/* What session.c, call.c, faults.c, node.c and events.c share about the session. */
#ifndef NVML_STUB_SESSION_H
#define NVML_STUB_SESSION_H

#include <limits.h>
#include <pthread.h>

#include "stub.h"

struct session {
    pthread_mutex_t lock;           /* held by a call for as long as it works */
    int references;                 /* nvmlInit less nvmlShutdown */
    unsigned char number;           /* of the session; part of every handle, so that old ones are refused */
    char directory[PATH_MAX];
    struct state *state;
    int state_file, log_file;
    uint32_t generation;            /* of facts and faults as read */
    struct facts *facts;
    int gpus, slots[MAX_GPUS];
};

extern struct session session;

bool map_state(void);
void unmap_state(void);
bool refresh(bool anew);            /* reads facts and faults if they were replaced */

enum handle_kind { HANDLE_GPU = 1, HANDLE_MIG, HANDLE_GI, HANDLE_CI, HANDLE_EVENTS };

struct handle {
    bool valid;
    enum handle_kind kind;
    int slot;
    unsigned generation, place;
};

uint64_t encode(enum handle_kind kind, int slot, uint32_t generation, long place);
struct handle decode(const void *opaque);
struct gi_state *gi_of(const struct handle *handle);    /* NULL if it is gone */
struct ci_state *ci_of(const struct handle *handle);

/* What the faults have in store for a call. */
struct outcome {
    nvmlReturn_t fail, late;
    bool kill, kill_after;
    unsigned sleep_ms;
    char hang_on[NAME_MAX];         /* a file of the stub directory; the call hangs for as long as it is there */
};

void faults_load(const char *path);
struct outcome faults_for(const char *function, int slot);
void log_call(const char *function, int slot, const char *what, int code);

#endif
