/* What the files of the stub share: facts, state, and how a call begins and ends.
 *
 * A stub directory holds what stands for the driver and its GPUs:
 *
 *   facts    text: the driver, the GPUs, their MIG geometry; replaced as a whole by tests, also while we run
 *   state    binary, mapped by every process: MIG mode, instances, compute mode; the hardware, as it were
 *   faults   text: which calls fail, sleep, hang or kill their process
 *   events   text, appended: what waiting event sets receive
 *   calls    text, appended if asked for: every call with its outcome
 *
 * It is the directory of the library itself, or the one that a file `nvml-stub` beside the library names.
 */
#ifndef NVML_STUB_H
#define NVML_STUB_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

/* A function of the library, with the driver branch (450, 535 ...) that brought it; the build leaves out what is newer
 * than the driver that it stands for. */
#define API(branch) __attribute__((visibility("default")))

#define MAX_GPUS 64
#define MAX_GPU_INSTANCES 16        /* the driver numbers them 0 to 14 */
#define MAX_COMPUTE_INSTANCES 16
#define MAX_PLACEMENTS 16
#define MAX_FAULTS 256

/* --- facts ------------------------------------------------------------------------------------------------------- */

struct fact {
    const char *key;
    const char *text;
    long long number;
    bool is_number;
};

struct table {
    struct fact *facts;
    int count;
};

/* A GPU instance profile: `nvidia-smi mig -lgip` and `-lgipp`. */
struct profile {
    unsigned index, id, slices, instances, multiprocessors;
    unsigned copy_engines, decoders, encoders, jpegs, ofas;
    unsigned memory_mib, p2p, capabilities;
    unsigned size, starts[MAX_PLACEMENTS], starts_count;
    const char *name;
};

/* A compute instance profile of one GPU instance profile: `nvidia-smi mig -lcip`. */
struct compute_profile {
    unsigned gpu_profile;           /* id of the GPU instance profile */
    unsigned index, id, slices, instances, multiprocessors;
    unsigned size, starts[MAX_PLACEMENTS], starts_count;
    const char *name;
};

struct process {
    char kind;                      /* c compute, g graphics, m MPS client */
    unsigned pid, gpu_instance, compute_instance;
    unsigned long long bytes;
};

struct field {
    unsigned id, scope, type;
    long long value;
};

struct nvlink {
    unsigned number, active, version, remote_type;
    const char *remote;
};

/* What a function answers for this GPU instead of its work; function "*" is every function. */
struct answer {
    const char *function;
    nvmlReturn_t code;
};

struct gpu {
    int slot;                       /* which physical GPU, whatever its index */
    struct table table;
    struct profile *profiles;
    struct compute_profile *compute_profiles;
    struct process *processes;
    struct field *fields;
    struct nvlink *nvlinks;
    struct answer *answers;
    int profiles_count, compute_profiles_count, processes_count, fields_count, nvlinks_count, answers_count;
};

struct facts {
    char *text;
    struct table node;
    struct gpu *gpus;
    int gpus_count;
};

struct facts *facts_load(const char *path);
void facts_free(struct facts *facts);

/* NULL and NOT_SUPPORTED respectively for what the facts do not have. */
const char *fact_text(const struct table *table, const char *key);
nvmlReturn_t fact_number(const struct table *table, const char *key, long long *number);
long long fact_or(const struct table *table, const char *key, long long otherwise);

/* --- state ------------------------------------------------------------------------------------------------------- */

/* A slot is written in full before `live` is set, and `live` is cleared before anything else: a process that dies at
 * any instruction leaves the instance there or not there. */
struct gi_state {
    uint32_t live, generation, profile, start, size;
};

struct ci_state {
    uint32_t live, generation, gpu_instance, id, profile, start, size, compute_mode;
};

struct gpu_state {
    uint32_t mig;                   /* current mode, and the pending one << 8 */
    uint32_t compute_mode, persistence;
    uint32_t spare;
    struct gi_state gi[MAX_GPU_INSTANCES];      /* by GPU instance id */
    struct ci_state ci[MAX_COMPUTE_INSTANCES];  /* by MIG device index */
};

#define STATE_MAGIC "NVMLSTB1"
#define FLAG_LOG 1u

struct state {
    char magic[8];
    uint32_t generation;            /* goes up when facts or faults were replaced */
    uint32_t flags;
    uint32_t hits[MAX_FAULTS];      /* how many calls each fault has matched */
    struct gpu_state gpus[MAX_GPUS];
};

/* --- a call ------------------------------------------------------------------------------------------------------ */

struct call {
    const char *function;
    int slot;                       /* physical GPU; -1 for calls about none */
    const struct facts *facts;
    const struct gpu *gpu;
    struct gpu_state *state;
    struct gi_state *gi;            /* of a GPU or compute instance, or of a MIG device */
    struct ci_state *ci;            /* of a compute instance or a MIG device */
    bool locked, kill_after;
    nvmlReturn_t late;              /* a fault: reported although the work is done */
};

enum device_kind { ANY_DEVICE, GPU_ONLY, MIG_ONLY };

nvmlReturn_t begin_node(struct call *call, const char *function);
nvmlReturn_t begin_slot(struct call *call, const char *function, int slot);
nvmlReturn_t begin_gpu(struct call *call, const char *function, nvmlDevice_t device, enum device_kind kind);
nvmlReturn_t begin_gi(struct call *call, const char *function, nvmlGpuInstance_t instance);
nvmlReturn_t begin_ci(struct call *call, const char *function, nvmlComputeInstance_t instance);
nvmlReturn_t leave(struct call *call, nvmlReturn_t code);

/* Begins a call, or answers it with what speaks against it. */
#define ENTER(begin, ...)                                          \
    struct call call;                                              \
    nvmlReturn_t begun = begin(&call, __func__, ##__VA_ARGS__);    \
    if (begun != NVML_SUCCESS)                                     \
        return leave(&call, begun)

/* Answers INVALID_ARGUMENT if the condition fails. */
#define REQUIRE(condition)                                         \
    if (!(condition))                                              \
        return leave(&call, NVML_ERROR_INVALID_ARGUMENT)

/* Answers NO_PERMISSION where the facts say that this process is not privileged. */
#define REQUIRE_ROOT()                                             \
    if (fact_or(&call.facts->node, "permission", 1) == 0)          \
        return leave(&call, NVML_ERROR_NO_PERMISSION)

/* Takes and releases the lock on the state, between processes; within a process a call has it anyway. */
void lock_state(void);
void unlock_state(void);

/* Lets another thread run while this call waits; afterwards, whether the library is still initialized. */
void pause_call(struct call *call);
bool resume_call(struct call *call);

/* The session: from nvmlInit to the last nvmlShutdown. The order of GPUs is fixed when it begins. */
int gpus_in_session(void);
int slot_of_index(unsigned index);          /* -1: no such index */
int index_of_slot(int slot);                /* -1: not in this session */
const struct gpu *gpu_of_slot(const struct facts *facts, int slot);
struct gpu_state *state_of_slot(int slot);
const char *stub_file(char *buffer, const char *name);      /* buffer of PATH_MAX bytes */

nvmlDevice_t gpu_handle(int slot);
nvmlDevice_t mig_device_handle(int slot, const struct ci_state *ci);
nvmlGpuInstance_t gi_handle(int slot, const struct gi_state *gi);
nvmlComputeInstance_t ci_handle(int slot, const struct ci_state *ci);

/* --- helpers of single files -------------------------------------------------------------------------------------- */

nvmlReturn_t give_text(const char *text, char *buffer, unsigned length);
nvmlReturn_t give_number(const struct call *call, const char *key, unsigned *value);

/* A number that is a fact of the GPU and of nothing else. */
#define NUMBER(branch, function, key)                                            \
    API(branch) nvmlReturn_t function(nvmlDevice_t device, unsigned *value)      \
    {                                                                            \
        ENTER(begin_gpu, device, GPU_ONLY);                                      \
        return leave(&call, give_number(&call, key, value));                     \
    }

struct pci_address { unsigned domain, bus, device; };
bool parse_pci_address(const char *text, struct pci_address *address);
nvmlReturn_t give_pci_info(const struct table *table, nvmlPciInfo_t *info);

bool mig_enabled(const struct gpu_state *state);
const struct profile *profile_by_id(const struct gpu *gpu, unsigned id);
const struct profile *profile_of(const struct call *call);          /* of the call's GPU instance */
const struct compute_profile *compute_profile_by_id(const struct gpu *gpu, const struct gi_state *gi, unsigned id);
unsigned gi_id(const struct gpu_state *state, const struct gi_state *gi);
void mig_uuid(const struct gpu *gpu, const struct ci_state *ci, char *buffer);
struct ci_state *mig_device_by_uuid(const struct facts *facts, const char *uuid, int *slot);
bool instance_has_processes(const struct gpu *gpu, unsigned gpu_instance, unsigned compute_instance);
void post_event(const struct gpu *gpu, unsigned long long type);

#endif
